"""Known pairs and pairs of one's own: what loads decodes as the library does, and the rest is told in a
sentence.
"""

import copy
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from ddtree_core.decoding import generate
from ddtree_core.models import (
    DEFAULT_PAIR,
    PAIRS,
    CheckpointError,
    ModelPair,
    OutOfMemoryError,
    PairError,
    PairSpec,
    load_pair,
    loading,
    memory,
)
from ddtree_core.models.draft_config import default_layer_ids
from ddtree_core.models.tiny import MASK_TOKEN_ID, byte_tokenizer, tiny_config, tiny_target
from ddtree_core.paths import data_dir
from tests.models.draft_files import BY_NAME, Release, body_tensors, write_checkpoint, z_lab_config

# Drafters of random weights draft noise; but a first look at them must not fail.
pytestmark = [
    pytest.mark.filterwarnings("ignore:drafts of:ddtree_core.models.PairWarning"),
    pytest.mark.filterwarnings("error:a first look:ddtree_core.models.PairWarning"),
]

PROMPT = "def add(a, b):"
# For the tiny targets: 4 blocks of hidden size 64, the last one among those read.
DRAFTER = Release("tiny", 2, 64, 48, (8, 2, 8), 6, (0, 2, 3), 4)


@dataclass(frozen=True)
class Folders:
    """A target and a drafter on disk."""

    target: Path
    drafter: Path

    @property
    def names(self) -> tuple[str, str]:
        return str(self.target), str(self.drafter)

    def copy(self, to: Path) -> "Folders":
        """Copies to be damaged."""
        shutil.copytree(self.target, to / "target")
        shutil.copytree(self.drafter, to / "drafter")
        return Folders(to / "target", to / "drafter")


def write_pair(folder: Path, kind: str, **saving: Any) -> Folders:
    target = folder / "target"
    tiny_target(tiny_config(kind)).save_pretrained(target, **saving)
    byte_tokenizer().save_pretrained(target)
    inner = {"mask_token_id": MASK_TOKEN_ID, "target_layer_ids": list(DRAFTER.ids)}
    config = z_lab_config(DRAFTER, "older") | {"vocab_size": 260, "dflash_config": inner}
    return Folders(target, write_checkpoint(folder / "drafter", config, body_tensors(DRAFTER)))


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folders]:
    return {kind: write_pair(tmp_path_factory.mktemp(kind), kind) for kind in ("llama", "qwen3")}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def refusal(error: type[ValueError], pair: Any, **options: Any) -> str:
    """The message with which a pair is refused; one sentence."""
    with pytest.raises(error) as caught:
        load_pair(pair, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def load(pair: Any, **options: Any) -> ModelPair:
    """On the CPU, also where there are GPUs."""
    return load_pair(pair, device="cpu", **options)


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


# Parameters of the drafters from their published shapes: L layers of hidden size H, MLP width I, query and
# key/value heads of dimension D, over T captured layers.
SHAPES = {  # L, H, I, Nq, Nkv, D, T
    "qwen3-4b": (5, 2560, 9728, 32, 8, 128, 5),
    "qwen3-8b": (5, 4096, 12288, 32, 8, 128, 5),
    "qwen3-coder-30b-a3b": (8, 2048, 6144, 32, 4, 128, 5),
    "qwen3.5-4b": (5, 2560, 9728, 32, 8, 128, 5),
    "qwen3.5-9b": (6, 4096, 12288, 32, 8, 128, 8),  # as retrained
    "qwen3.5-27b": (6, 5120, 17408, 32, 8, 128, 5),  # layers as retrained, the rest of the first release
    "qwen3.5-35b-a3b": (8, 2048, 6144, 32, 4, 128, 5),
    "qwen3.6-27b": (5, 5120, 17408, 32, 8, 128, 5),
    "qwen3.6-35b-a3b": (8, 2048, 6144, 32, 4, 128, 5),
    "llama-3.1-8b": (5, 4096, 12288, 32, 8, 128, 5),
    "gpt-oss-20b": (8, 2880, 7680, 64, 8, 64, 5),
}
# Parameters of the targets as their names and model cards tell, of the language model alone.
TARGETS = {
    "smollm2-135m": 134.5e6,
    "hybrid-4m": 4.04e6,
    "qwen3-4b": 4.02e9,
    "qwen3-8b": 8.19e9,
    "qwen3-coder-30b-a3b": 30.5e9,
    "llama-3.1-8b": 8.03e9,
    "gpt-oss-20b": 20.9e9,
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_row_of_the_registry_is_well_formed(name: str) -> None:
    row = PAIRS[name]
    assert isinstance(row, PairSpec)
    assert row.name == name
    assert row.target_parameters > row.drafter_parameters >= 0
    assert row.block_size is not None
    assert row.block_size >= 2
    assert row.target_layers is not None
    ids = row.target_layer_ids or ()
    assert all(0 <= k < row.target_layers for k in ids)
    if not row.on_hub:
        return
    assert ids == () or ids == default_layer_ids(row.target_layers)  # all of them are of the first releases
    assert [source.count("/") for source in (row.target, row.drafter)] == [1, 1]
    assert row.drafter.startswith("z-lab/")
    assert row.tiny is None
    layers, hidden, mlp, query, key_value, dim, captured = SHAPES[name]
    attention = 2 * hidden * query * dim + 2 * hidden * key_value * dim + 2 * dim
    layer = attention + 3 * hidden * mlp + 2 * hidden
    assert row.drafter_parameters == layers * layer + captured * hidden * hidden + 2 * hidden


@pytest.mark.parametrize("name", [name for name, row in PAIRS.items() if row.shape])
def test_a_rows_shape_has_the_rows_parameters(name: str) -> None:
    row = PAIRS[name]
    config = AutoConfig.for_model(**copy.deepcopy(row.shape or {}))
    count = memory.parameter_count(config)
    assert row.target_parameters == pytest.approx(count, rel=1e-3)
    assert config.get_text_config(decoder=True).num_hidden_layers == row.target_layers
    if name in TARGETS:
        assert count == pytest.approx(TARGETS[name], rel=2e-3)


def test_the_shape_of_the_27b_hybrid_gives_the_size_of_its_published_checkpoint() -> None:
    """The published index of Qwen3.6-27B tells 55,562,855,904 bytes (51.7 GiB, "about 52 GB") for language
    model, vision tower and one multi-token prediction layer, two bytes a parameter.
    """
    config = AutoConfig.for_model(**copy.deepcopy(PAIRS["qwen3.6-27b"].shape or {}))
    with torch.device("meta"):
        vision = sum(p.numel() for p in AutoModel.from_config(config.vision_config).parameters())
    hidden, mlp, queries, keys = 5120, 17408, 24 * 256, 4 * 256
    attention = hidden * (2 * queries + 2 * keys + queries) + 2 * 256  # queries with their output gate
    norms = 2 * hidden + 3 * hidden  # of the layer; before and behind it
    prediction = 2 * hidden * hidden + attention + 3 * hidden * mlp + norms
    assert 2 * (memory.parameter_count(config) + vision + prediction) == 55_562_855_904


@pytest.mark.parametrize("name", sorted(SHAPES.keys() & BY_NAME.keys()))
def test_rows_tell_what_the_published_configs_tell(name: str) -> None:
    row, release = PAIRS[name], BY_NAME[name]
    assert (row.target_layers, row.block_size) == (release.target_layers, release.block)
    retrained = BY_NAME.get(f"{name}-retrained")
    # Two releases under one hub id: what differs is not told.
    assert row.target_layer_ids == (None if retrained else release.ids)
    assert row.draft_shape is not None
    assert row.draft_shape.layers == (retrained or release).layers


def test_the_registry_holds_the_default_and_the_published_pairs() -> None:
    assert DEFAULT_PAIR == "smollm2-135m"
    assert {name for name, row in PAIRS.items() if row.on_hub} == SHAPES.keys()
    assert {"tiny-llama", "tiny-qwen3", "tiny-sliding"} <= {row.name for row in PAIRS.values() if row.tiny}
    blocks = {name: (PAIRS[name].block_size, PAIRS[name].mask_token_id) for name in SHAPES}
    assert blocks["qwen3-4b"] == blocks["qwen3-8b"] == (16, 151669)
    assert blocks["gpt-oss-20b"] == (8, 200000)
    hybrids = [name for name in SHAPES if name.startswith(("qwen3.5", "qwen3.6"))]
    assert len(hybrids) == 6
    assert {blocks[name] for name in hybrids} == {(16, 248070)}
    ids = {name: (PAIRS[name].target, PAIRS[name].drafter) for name in hybrids}
    assert ids["qwen3.6-27b"] == ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash")
    assert ids["qwen3.5-35b-a3b"] == ("Qwen/Qwen3.5-35B-A3B", "z-lab/Qwen3.5-35B-A3B-DFlash")


def test_published_acceptance_lengths_are_found_beside_the_pair() -> None:
    found = {
        (name, p.dataset, p.method, p.budget, p.temperature): p.tau
        for name, row in PAIRS.items()
        for p in row.published
    }
    assert found["qwen3-4b", "mean", "dflash", None, 0.0] == 6.54
    assert found["qwen3-4b", "GSM8K", "ddtree", 128, 0.0] == 9.08
    assert found["qwen3-8b", "mean", "dflash", None, 1.0] == 5.48
    assert found["qwen3-8b", "MATH-500", "JetSpec", 256, 0.0] == 9.64
    assert found["qwen3-coder-30b-a3b", "code", "ddtree", 256, None] == 10.50
    assert len(found) == sum(len(row.published) for row in PAIRS.values())  # no figure twice
    for name, row in PAIRS.items():
        assert all(p.source and p.tau >= 1 for p in row.published), name
        # A chain commits at most the block, a tree at most the block as well.
        assert all(p.tau <= (row.block_size or 0) for p in row.published if p.method != "JetSpec"), name


@pytest.mark.parametrize("name", [DEFAULT_PAIR, "hybrid-4m"])
def test_the_rows_of_shipped_pairs_tell_what_their_drafters_tell(name: str) -> None:
    row = PAIRS[name]
    folder = data_dir() / row.drafter.removeprefix("data/")
    raw = json.loads((folder / "config.json").read_text())
    inner = raw["dflash_config"]
    assert (row.block_size, row.target_layers) == (raw["block_size"], raw["num_target_layers"])
    assert (row.mask_token_id, row.target_layer_ids) == (
        inner["mask_token_id"],
        tuple(inner["target_layer_ids"]),
    )
    weights = load_file(folder / "model.safetensors")
    body = sum(t.numel() for name, t in weights.items() if name not in ("d2t", "t2d"))
    # Rows of the target's head, kept once more by a drafter with a vocabulary of its own.
    rows = raw.get("draft_vocab_size", 0) * raw["hidden_size"]
    assert row.drafter_parameters == pytest.approx(body + rows, rel=0.02)
    assert row.draft_shape is not None
    assert row.draft_shape.parameters == body + rows


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


@pytest.mark.parametrize("dtype", ["float16", torch.float16, "int8", "no-such"])
@pytest.mark.parametrize("pair", ["tiny-llama", "qwen3-4b", ("target", "drafter")])
def test_other_dtypes_are_refused(pair: Any, dtype: Any) -> None:
    assert "expected float32 or bfloat16" in refusal(PairError, pair, dtype=dtype)


def test_unknown_pairs_are_refused() -> None:
    message = refusal(PairError, "smollm3")
    assert "unknown pair 'smollm3'" in message
    assert all(name in message for name in PAIRS)


@pytest.mark.parametrize("pair", ["tiny-llama", "folders"])
def test_devices_that_are_not_there_are_refused(
    pair: str, on_disk: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = on_disk["llama"].names if pair == "folders" else pair
    assert "device 'cuda' is not there" in refusal(PairError, names, device="cuda")
    assert "device 'cuda:3' is not there" in refusal(PairError, names, device="cuda:3")
    assert "unknown device 'gpu'" in refusal(PairError, names, device="gpu")
    assert load_pair(names, device="auto").model.device.type == "cpu"  # no GPU to split it over


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


def cut(file: str) -> Callable[[Folders], object]:
    """Leaves the first half of a file of the target."""

    def damage(folders: Folders) -> None:
        path = folders.target / file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Folders], object]:
    """Changes the target's tensors."""

    def damage(folders: Folders) -> None:
        path = folders.target / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return damage


def without_tokenizer(folders: Folders) -> None:
    for file in folders.target.glob("tokenizer*"):
        file.unlink()


def add_tokens(folders: Folders) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|more|>", "<|and more|>"])
    tokenizer.save_pretrained(folders.target)


NORM = "model.layers.1.input_layernorm.weight"
DAMAGE: dict[str, tuple[Callable[[Folders], object], type[ValueError], str]] = {
    "weights cut": (cut("model.safetensors"), CheckpointError, "truncated or damaged"),
    "weights of bytes": (
        lambda f: (f.target / "model.safetensors").write_bytes(b"\x00" * 999),
        CheckpointError,
        "truncated or damaged",
    ),
    "weights gone": (
        lambda f: (f.target / "model.safetensors").unlink(),
        PairError,
        "no file named model.safetensors",
    ),
    "a tensor gone": (rewrite(lambda t: t.pop(NORM)), CheckpointError, f"lack {NORM}"),
    "a tensor of another shape": (
        rewrite(lambda t: t.update({NORM: torch.zeros(3)})),
        CheckpointError,
        f"lack {NORM} in the shape that its config.json tells",
    ),
    "config cut": (cut("config.json"), PairError, "config.json' is not a valid JSON file"),
    "config of text": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "llama", "hidden_size": "big"}'),
        PairError,
        "hidden_size",
    ),
    "config of an unknown model": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "no-such"}'),
        PairError,
        "no-such",
    ),
    "config of no language model": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "vit"}'),
        PairError,
        "cannot load",
    ),
    "tokenizer cut": (cut("tokenizer.json"), PairError, "cannot load"),
    "tokenizer empty": (
        lambda f: (f.target / "tokenizer.json").write_text("{}"),
        PairError,
        "cannot load",
    ),
    "tokenizer gone": (without_tokenizer, PairError, "tokenizer"),
    "tokenizer too large": (add_tokens, PairError, "has 262 tokens, but target and drafter have 260"),
    "drafter gone": (lambda f: shutil.rmtree(f.drafter), PairError, "expected a local folder or a hub id"),
    "drafter without config": (
        lambda f: (f.drafter / "config.json").unlink(),
        CheckpointError,
        "holds no config.json",
    ),
    "drafter for a target": (
        lambda f: shutil.rmtree(f.drafter) or shutil.copytree(f.target, f.drafter),
        CheckpointError,
        "not a DFlash checkpoint",
    ),
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_folders_are_refused(
    what: str, kind: str, on_disk: dict[str, Folders], tmp_path: Path
) -> None:
    damage, error, words = DAMAGE[what]
    folders = on_disk[kind].copy(tmp_path)
    damage(folders)
    assert words in refusal(error, folders.names)


@pytest.mark.usefixtures("offline")
def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folders = write_pair(tmp_path, "qwen3", max_shard_size="200KB")
    shard = sorted(folders.target.glob("model-*-of-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(PairError, folders.names)


def test_a_target_and_a_drafter_the_wrong_way_round_are_refused(on_disk: dict[str, Folders]) -> None:
    target, drafter = on_disk["qwen3"].names
    assert "not a DFlash checkpoint" in refusal(CheckpointError, (drafter, target))


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> None:
        raise AssertionError("the target's weights were read")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", stop)


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
@pytest.mark.parametrize("name", SHAPES)
def test_a_known_pair_that_does_not_fit_is_refused_before_anything_is_fetched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 2e9)
    message = refusal(OutOfMemoryError, name, dtype="float32", device="cpu")
    assert f"{name} needs about" in message
    assert "2.0 GB are free on cpu; what would fit: smollm2-135m, hybrid-4m, tiny-llama" in message


@pytest.mark.usefixtures("no_weights")
def test_folders_that_do_not_fit_are_refused_before_weights_are_read(
    on_disk: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = sum(t.numel() for t in load_file(on_disk["llama"].target / "model.safetensors").values())
    # 8% are added to the weights: 4.32 bytes each in float32 and 2.16 in bfloat16.
    monkeypatch.setattr(memory, "available_bytes", lambda device: 3 * parameters)
    message = refusal(OutOfMemoryError, on_disk["llama"].names, device="cpu")
    assert "free on cpu; what would fit: target with dtype='bfloat16'" in message


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("pair", "named"),
    [
        (("no-such/target", "no-such/drafter"), "no-such/target"),
        (("no such/target!", "no-such/drafter"), "no such/target!"),
        ("no-such/target + no-such/drafter", "no-such/target"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_hub_ids_out_of_reach_are_told_at_once(
    pair: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1e12)
    start = time.perf_counter()
    message = refusal(PairError, pair)
    assert f"cannot load {named}" in message
    assert "a hub id that this machine can reach" in message
    assert time.perf_counter() - start < 5


@pytest.mark.usefixtures("offline")
def test_a_drafter_out_of_reach_is_named(on_disk: dict[str, Folders]) -> None:
    message = refusal(PairError, (on_disk["llama"].names[0], "no-such/drafter"))
    assert "cannot load no-such/drafter" in message


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
    assert PAIRS["qwen3-4b"].template == {"enable_thinking": False}
    assert PAIRS["qwen3.5-35b-a3b"].template == {"enable_thinking": True}
    assert load("tiny-llama", template={"enable_thinking": True}).template == {"enable_thinking": True}
