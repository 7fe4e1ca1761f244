"""Known pairs and pairs of one's own: what loads decodes as the library does."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ddtree_core.decoding import generate
from ddtree_core.models import (
    PAIRS,
    CheckpointError,
    ModelPair,
    OutOfMemoryError,
    PairWarning,
    load_pair,
    loading,
    memory,
)
from ddtree_core.models.footprint import GIB
from ddtree_core.models.load_pair import wrong_facts
from ddtree_core.models.published_pairs import PUBLISHED_PAIRS
from tests.models.pair_files import Folders, load, refusal, write_pair

# Drafters of random weights draft noise; but a first look at them must not fail.
pytestmark = [
    pytest.mark.filterwarnings("ignore:drafts of:ddtree_core.models.PairWarning"),
    pytest.mark.filterwarnings("error:a first look:ddtree_core.models.PairWarning"),
]

PROMPT = "def add(a, b):"


def by_library(pair: ModelPair, new_tokens: int) -> list[int]:
    """New tokens of the library's own greedy decoding, on the very same model."""
    ids = torch.tensor([pair.tokenizer(PROMPT).input_ids])
    model: Any = pair.model
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens)
    return out[0, ids.shape[1] :].tolist()


def check_decodes(pair: ModelPair, new_tokens: int = 16) -> None:
    expected = by_library(pair, new_tokens)
    for method, budget in (("autoregressive", None), ("dflash", None), ("ddtree", 1), ("ddtree", 24)):
        made = generate(pair, PROMPT, method, budget=budget, max_new_tokens=new_tokens)
        assert made.ids == expected, (method, budget)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_pair_of_folders_decodes_as_the_library_does(
    kind: str, packed: bool, on_disk: dict[str, Folders]
) -> None:
    pair = load(on_disk[kind].names, packed=packed)
    assert (pair.name, pair.packed, pair.dtype) == ("target", packed, torch.float32)
    assert pair.draft.layer_ids == (0, 2, 3)
    check_decodes(pair)


def test_a_pair_may_be_named_in_one_string(on_disk: dict[str, Folders]) -> None:
    target, drafter = on_disk["llama"].names
    pair = load(f"{target} + {drafter}")
    assert pair.name == "target"
    assert type(pair.model).__name__ == "LlamaForCausalLM"


def test_a_target_in_shards_loads_alike(tmp_path: Path, on_disk: dict[str, Folders]) -> None:
    sharded = write_pair(tmp_path, "qwen3", max_shard_size="200KB")
    assert len(list(sharded.target.glob("model-*-of-*.safetensors"))) > 2
    whole = load(on_disk["qwen3"].names, packed=False)
    loaded = load(sharded.names, packed=False)
    other = whole.model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in loaded.model.state_dict().items())


def test_bfloat16_is_loaded_as_asked(on_disk: dict[str, Folders]) -> None:
    for dtype in ("bfloat16", torch.bfloat16):
        pair = load(on_disk["qwen3"].names, dtype=dtype)
        assert isinstance(pair.draft, torch.nn.Module)
        kinds = {p.dtype for module in (pair.model, pair.draft) for p in module.parameters()}
        assert (kinds, pair.packed) == ({torch.bfloat16}, False)
        assert len(generate(pair, PROMPT, max_new_tokens=4).ids) == 4
    assert load("tiny-qwen3", dtype="bfloat16").dtype == torch.bfloat16


OFFLOADED = {"model.layers.1": "disk", "model.layers.2": "disk", "lm_head": "disk"}


@pytest.mark.parametrize("where", ["whole", "by module", "partly on disk"])
def test_a_target_spread_by_a_device_map_decodes_as_the_library_does(
    where: str, on_disk: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = ("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head")
    spread = dict.fromkeys((*modules, *(f"model.layers.{i}" for i in range(4))), "cpu")
    placed = {"whole": {"": "cpu"}, "by module": spread, "partly on disk": spread | OFFLOADED}[where]
    monkeypatch.setattr(loading, "_device_map", lambda device: placed)
    pair = load(on_disk["qwen3"].names)
    offloaded = [name for name, p in pair.model.named_parameters() if p.device.type == "meta"]
    assert bool(offloaded) == (where == "partly on disk")
    assert pair.draft.device.type == "cpu"
    check_decodes(pair, new_tokens=8)


def test_a_target_and_a_drafter_the_wrong_way_round_are_refused(on_disk: dict[str, Folders]) -> None:
    target, drafter = on_disk["qwen3"].names
    assert "not a DFlash checkpoint" in refusal(CheckpointError, (drafter, target))


@pytest.mark.usefixtures("no_weights")
def test_a_drafter_for_another_target_is_refused_before_weights_are_read(
    on_disk: dict[str, Folders], tmp_path: Path
) -> None:
    folders = on_disk["qwen3"].copy(tmp_path)
    path = folders.drafter / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_target_layers": 36}))
    message = refusal(CheckpointError, folders.names)
    assert "trained for 36 target layers, this target has 4" in message


@pytest.mark.usefixtures("no_weights", "offline")
@pytest.mark.parametrize("name", [row.name for row in PUBLISHED_PAIRS])
def test_a_known_pair_that_does_not_fit_is_refused_before_anything_is_fetched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 3 * GIB)
    message = refusal(OutOfMemoryError, name, dtype="float32", device="cpu")
    assert message.startswith(f"{name} needs ")
    assert "3.0 GiB are free on cpu; what would fit: smollm2-135m, hybrid-4m, tiny-llama" in message


@pytest.mark.usefixtures("no_weights")
def test_folders_that_do_not_fit_are_refused_before_weights_are_read(
    on_disk: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = on_disk["llama"].names
    needed = memory.required(names, torch.float32, "cpu")
    weights = load_file(on_disk["llama"].target / "model.safetensors").values()
    assert needed.weights == sum(tensor.nbytes for tensor in weights)
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed.total - 1)
    message = refusal(OutOfMemoryError, names, device="cpu")
    assert "free on cpu; what would fit: target with dtype='bfloat16'" in message


@pytest.mark.parametrize(
    ("facts", "row", "files"),
    [
        ({"block_size": 16, "mask_token_id": 3}, "block size 16, mask token 3", "block size 8, mask token 2"),
        ({"target_layer_ids": (1, 3)}, r"captured blocks \(1, 3\)", r"captured blocks \(1, 3, 5, 7\)"),
        ({"shape": {"num_hidden_layers": 9, "vocab_size": 2048}}, "target layers 9", "target layers 8"),
    ],
)
def test_a_row_that_its_checkpoints_contradict_is_told(
    facts: dict[str, Any], row: str, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, spec = load("hybrid-4m", check=False), PAIRS["hybrid-4m"]
    assert wrong_facts(spec, pair) is None
    sentence = wrong_facts(replace(spec, **facts), pair) or ""
    assert re.search(rf"^registry says {row} of hybrid-4m, its checkpoints \(.*\) say {files}: ", sentence)
    assert "\n" not in sentence
    monkeypatch.setitem(PAIRS, "hybrid-4m", replace(spec, block_size=16))
    with pytest.warns(PairWarning, match="registry says block size 16 of hybrid-4m") as caught:
        load_pair("hybrid-4m", device="cpu", check=False)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "name",
    ["tiny-llama", "tiny-qwen3", "tiny-sliding", "tiny-qwen3_5", "tiny-qwen3_5_moe", "tiny-qwen3_next"],
)
def test_tiny_pairs_load_in_under_a_second_and_are_the_same_each_time(name: str) -> None:
    start = time.perf_counter()
    first = load(name, packed=False)
    assert time.perf_counter() - start < 1
    again = load(name, packed=False).model.state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.model.state_dict().items())


def test_chat_template_arguments_are_those_of_the_row_or_those_given(
    tiny_pair: Callable[..., ModelPair],
) -> None:
    assert tiny_pair("tiny-llama").template == {}
    assert load("tiny-llama", template={"enable_thinking": True}).template == {"enable_thinking": True}
