"""What a pair needs, from configs alone, against models that are built and caches of real runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GptOssConfig, Lfm2Config, LlamaConfig, PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from ddtree_core.models import PAIRS, PairError, PairSpec, Target, UnsupportedModelError
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.footprint import GIB, Footprint, footprint, shape_of
from ddtree_core.models.memory import peak_rss_bytes
from ddtree_core.models.pair_spec import DraftShape
from ddtree_core.models.tiny import tiny_config, tiny_target
from ddtree_core.trees import DraftTree
from tests.models import draft_files, target_files

SHAPE: dict[str, Any] = dict(
    vocab_size=70,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    pad_token_id=None,
)
EXPERTS: dict[str, Any] = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(tie_word_embeddings=False, **SHAPE),
    "llama, tied": LlamaConfig(tie_word_embeddings=True, **SHAPE),
    "qwen3": Qwen3Config(tie_word_embeddings=False, **SHAPE),
    "qwen3, tied": Qwen3Config(tie_word_embeddings=True, **SHAPE),
    "qwen3-moe": Qwen3MoeConfig(**EXPERTS, **SHAPE),
    "gpt-oss": GptOssConfig(num_local_experts=4, num_experts_per_tok=2, **SHAPE),
}
DRAFT = DraftShape(2, 24, 40, 2, 1, 8, captured=3)


def of_config(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Footprint:
    """What a target of this config needs with a drafter of two small layers."""
    return footprint(PairSpec("mine", "", "", shape=config.to_dict(), draft_shape=DRAFT), dtype)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_that_of_the_model_when_it_is_built(name: str) -> None:
    model = tiny_target(CONFIGS[name])
    unique = {p.data_ptr(): p.numel() for p in model.parameters()}  # tied tensors lie in one place
    assert of_config(CONFIGS[name]).target_parameters == sum(unique.values())


def test_the_count_of_a_llama_is_that_of_its_shapes() -> None:
    attention = 2 * 24 * 32 + 2 * 24 * 16  # queries and output: 4 heads of 8; keys and values: 2
    layer = attention + 3 * 24 * 40 + 2 * 24
    tied = 70 * 24 + 3 * layer + 24
    assert of_config(CONFIGS["llama, tied"]).target_parameters == tied
    assert of_config(CONFIGS["llama"]).target_parameters == tied + 70 * 24


def test_counting_allocates_nothing() -> None:
    # 90 billion parameters, 360 GB in float32.
    config = LlamaConfig(
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=28,
        num_attention_heads=128,
        vocab_size=128,
    )
    before = peak_rss_bytes()
    count = of_config(config).target_parameters
    attention = 4 * 16384 * 16384
    layer = attention + 3 * 16384 * 53248 + 2 * 16384
    assert count == 28 * layer + 16384 + 2 * 128 * 16384
    assert peak_rss_bytes() - before < 1e9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_parts_of_the_memory_by_hand(dtype: torch.dtype) -> None:
    """A Llama of 3 layers with 2 key/value heads of 8, a drafter of 2 layers with 1; a vocabulary of 70."""
    size, needs = dtype.itemsize, of_config(CONFIGS["llama"], dtype)
    memory = needs.memory(context=100, budget=5, devices=2)
    row, draft_row = 2 * 2 * 8 * size, 2 * 1 * 8 * size  # a key and a value per head
    assert memory.weights == size * needs.target_parameters
    assert memory.drafter == size * DRAFT.parameters
    assert memory.caches == 2 * 100 * (3 * row + 2 * draft_row)  # buffers that grow hold up to twice the rows
    assert memory.tree == 5 * (3 * row + 4 * 70)  # keys and values of the nodes, logits in float32
    assert memory.reserve == 2 * 2**30
    assert memory.total == memory.weights + memory.drafter + memory.caches + memory.tree + memory.reserve
    assert str(memory) == "2.0 GiB (weights 0.0, drafter 0.0, caches 0.0, tree 0.0, reserve 2.0)"


TINY = [name for name, row in PAIRS.items() if row.tiny]


def star(n: int) -> DraftTree:
    """A root with n − 1 children."""
    depths = torch.tensor([0] + [1] * (n - 1))
    return DraftTree(torch.arange(1, n + 1), depths - 1, depths, torch.zeros(n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TINY)
def test_layers_keep_as_many_bytes_as_foretold(name: str, dtype: torch.dtype) -> None:
    """Against the caches of a real model, after a prompt of 40 tokens and a tree of 9 nodes."""
    model: Any = tiny_target(tiny_config(PAIRS[name].tiny or ""))
    model = model.to(dtype)
    needs, target = footprint(name, dtype), Target(model)
    assert needs.target_parameters == sum(p.numel() for p in model.parameters())
    target.prefill(torch.arange(1, 41))
    kept: Any
    for kept, layer in zip(target._cache.layers, needs.layers, strict=True):
        if layer.kind == "linear_attention":
            states = kept.recurrent_states[0].nbytes + kept.conv_states[0].nbytes
            assert layer.state == layer.cache(10**6) == states
        else:
            rows = 40 if layer.window is None else layer.window - 1
            assert rows * layer.per_token == kept.keys.nbytes + kept.values.nbytes
            assert layer.cache(40) == rows * layer.per_token * (2 if layer.window is None else 1)
    target.verify(star(9))
    for kept, layer in zip(target._cache.layers, needs.layers, strict=True):
        assert 9 * layer.per_node == (
            kept.stash.nbytes if layer.kind == "linear_attention" else 9 * kept.keys[:, :, 0].nbytes * 2
        )


def test_a_growing_cache_holds_at_most_twice_the_rows_in_use() -> None:
    layer: Any = Target(tiny_target(tiny_config("llama")))._cache.layers[0]
    for rows in range(1, 300):
        layer.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
        allocated = layer._buffers[0].shape[2]
        assert allocated <= max(64, 2 * rows)  # the few rows of the beginning do not count


RELEASES = [draft_files.BY_NAME[name] for name in ("qwen3-8b", "qwen3.5-9b-retrained", "qwen3.6-27b")]


KEPT = torch.tensor([0, 1, 5, 6, 7, 20, 44, 45, 90, 95])


@pytest.mark.parametrize("layout", ["z-lab", "speculators"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_drafters_shape_has_the_parameters_of_the_loaded_drafter(
    release: draft_files.Release, layout: str, tmp_path: Path
) -> None:
    config, tensors = draft_files.z_lab_config(release), draft_files.body_tensors(release)
    if layout == "speculators":
        config = draft_files.speculators_config(release, len(KEPT))
        tensors |= draft_files.vocabulary_tensors(release.hidden, KEPT)
    target = draft_files.stand_in(release.target_layers, release.hidden)
    model = load_drafter(draft_files.write_checkpoint(tmp_path, config, tensors), target)
    shape = shape_of(model.config, layout == "speculators")
    assert shape.parameters == sum(p.numel() for p in model.parameters())

    drafter = model.open(target, [])
    drafter.draft(torch.randn(7, len(release.ids) * release.hidden), torch.arange(7))
    kept: list[Any] = drafter._cache
    cached = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept)
    assert 7 * 4 * shape.context_values == cached


def test_a_pair_of_folders_is_sized_by_its_configs_alone(tmp_path: Path) -> None:
    """The weights are not there; the language model is counted, the vision tower told apart."""
    sizes = {"vocab_size": target_files.VOCAB, "hidden_size": target_files.HIDDEN, "num_target_layers": 8}
    drafter: dict[str, Any] = draft_files.z_lab_config(draft_files.BY_NAME["qwen3.6-27b"]) | sizes
    drafter["dflash_config"]["target_layer_ids"] = [0, 3, 7]
    for folder, config in (("target", target_files.wrapper_config()), ("drafter", drafter)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    needs = footprint((str(tmp_path / "target"), str(tmp_path / "drafter")))
    assert needs.target_parameters == sum(t.numel() for t in target_files.text_tensors().values())
    vision = [t.numel() for name, t in target_files.wrapper_tensors().items() if "visual" in name]
    assert needs.vision_parameters == sum(vision)
    assert needs.draft is not None
    assert (needs.draft.layers, needs.draft.captured, needs.draft.table_rows) == (5, 3, 0)


def test_layers_that_are_not_known_are_named(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    types = ["conv", "full_attention"]
    Lfm2Config(hidden_size=32, num_hidden_layers=2, layer_types=types).save_pretrained(tmp_path / "target")
    with pytest.raises(UnsupportedModelError, match="lfm2 has conv layers, whose caches are not known"):
        footprint((str(tmp_path / "target"), str(tmp_path / "drafter")))


def test_unknown_pairs_are_refused() -> None:
    with pytest.raises(PairError, match=r"unknown pair 'qwen3\.7'"):
        footprint("qwen3.7")


@pytest.mark.usefixtures("no_network")
def test_what_qwen36_27b_needs() -> None:
    """Qwen3.6-27B: 64 layers, every fourth of full attention, hidden size 5120 (the registry's shape).

    26,895,998,464 parameters at two bytes are 50.1 GiB; with vision tower and multi-token prediction, which
    are not loaded, the checkpoint is 51.7 GiB, the investigation's "about 52 GB".
    """
    needs = footprint("qwen3.6-27b")
    assert needs.target_parameters == 26_895_998_464
    assert needs.vision_parameters == 460_730_096
    assert 2 * needs.target_parameters / GIB == pytest.approx(50.1, abs=0.05)
    kinds = [layer.kind for layer in needs.layers]
    assert kinds == (["linear_attention"] * 3 + ["full_attention"]) * 16
    assert needs.per_token == 16 * 2 * 4 * 256 * 2  # layers, keys and values, heads, dimension, bytes
    # 48 layers with 48 value heads of 128 × 128 numbers in float32; 4 rows of 2·2048 + 6144 channels.
    assert needs.state_bytes == 48 * (48 * 128 * 128 * 4 + 4 * 10240 * 2)
    assert needs.draft_per_token == 5 * 2 * 8 * 128 * 2
    stash = 4 * (16 * 128 + 48 * 128 + 48) + 2 * 10240  # k per key head, u, g; raw row
    assert needs.tree_bytes(64) == 64 * (48 * stash + needs.per_token + 4 * 248320)
