"""The registry: rows against published configs, names, sizes and acceptance lengths."""

import copy
import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel

from ddtree_core.models import DEFAULT_PAIR, PAIRS, PairError, PairSpec
from ddtree_core.models.draft_config import default_layer_ids
from ddtree_core.models.footprint import footprint
from ddtree_core.models.published_pairs import PUBLISHED_PAIRS
from ddtree_core.models.registry import find_pair
from ddtree_core.models.tiny import BlurredLookahead
from ddtree_core.paths import data_dir
from tests.models.draft_files import BY_NAME

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
    "qwen3.5-4b": 4.206e9,
    "qwen3.5-9b": 8.954e9,
    "qwen3.5-27b": 26.896e9,
    "qwen3.5-35b-a3b": 34.661e9,
    "qwen3.6-27b": 26.896e9,
    "qwen3.6-35b-a3b": 34.661e9,
    "llama-3.1-8b": 8.03e9,
    "gpt-oss-20b": 20.9e9,
}


def layers_of(row: PairSpec) -> int:
    """Layers of the target, as the row's shape tells."""
    shape: dict[str, Any] = row.shape or {}
    return shape.get("text_config", shape)["num_hidden_layers"]


@pytest.mark.parametrize("name", PAIRS)
def test_every_row_of_the_registry_is_well_formed(name: str) -> None:
    row = PAIRS[name]
    assert isinstance(row, PairSpec)
    assert row.name == name
    assert row.block_size is not None
    assert row.block_size >= 2
    if row.tiny:
        assert BlurredLookahead().depth + 1 == row.block_size
        return
    depth, ids = layers_of(row), row.target_layer_ids or ()
    assert all(0 <= k < depth for k in ids)
    if row not in PUBLISHED_PAIRS:
        return
    assert ids == () or ids == default_layer_ids(depth)  # all of them are of the first releases
    assert [source.count("/") for source in (row.target, row.drafter)] == [1, 1]
    assert row.drafter.startswith("z-lab/")
    layers, hidden, mlp, query, key_value, dim, captured = SHAPES[name]
    attention = 2 * hidden * query * dim + 2 * hidden * key_value * dim + 2 * dim
    layer = attention + 3 * hidden * mlp + 2 * hidden
    assert row.draft_shape is not None
    assert row.draft_shape.parameters == layers * layer + captured * hidden * hidden + 2 * hidden


@pytest.mark.parametrize("name", [name for name, row in PAIRS.items() if row.shape])
def test_a_rows_shape_has_as_many_parameters_as_the_target(name: str) -> None:
    assert footprint(name).target_parameters == pytest.approx(TARGETS[name], rel=2e-3)


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
    assert 2 * (footprint("qwen3.6-27b").target_parameters + vision + prediction) == 55_562_855_904


@pytest.mark.parametrize("name", sorted(SHAPES.keys() & BY_NAME.keys()))
def test_rows_tell_what_the_published_configs_tell(name: str) -> None:
    row, release = PAIRS[name], BY_NAME[name]
    assert (layers_of(row), row.block_size) == (release.target_layers, release.block)
    retrained = BY_NAME.get(f"{name}-retrained")
    # Two releases under one hub id: what differs is not told.
    assert row.target_layer_ids == (None if retrained else release.ids)
    assert row.draft_shape is not None
    assert row.draft_shape.layers == (retrained or release).layers


def test_the_registry_holds_the_default_and_the_published_pairs() -> None:
    assert DEFAULT_PAIR == "smollm2-135m"
    assert {row.name for row in PUBLISHED_PAIRS} == SHAPES.keys()
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
    assert (row.block_size, layers_of(row)) == (raw["block_size"], raw["num_target_layers"])
    assert (row.mask_token_id, row.target_layer_ids) == (
        inner["mask_token_id"],
        tuple(inner["target_layer_ids"]),
    )
    weights = load_file(folder / "model.safetensors")
    body = sum(t.numel() for name, t in weights.items() if name not in ("d2t", "t2d"))
    # Rows of the target's head, kept once more by a drafter with a vocabulary of its own.
    rows = raw.get("draft_vocab_size", 0) * raw["hidden_size"]
    assert row.draft_shape is not None
    assert row.draft_shape.parameters == body + rows


def test_unknown_pairs_are_refused() -> None:
    with pytest.raises(PairError, match="unknown pair 'smollm3'") as caught:
        find_pair("smollm3")
    assert all(name in str(caught.value) for name in PAIRS)
    assert "\n" not in str(caught.value)


def test_rows_carry_the_chat_template_arguments_of_their_drafters() -> None:
    assert PAIRS["qwen3-4b"].template == {"enable_thinking": False}
    assert PAIRS["qwen3.5-35b-a3b"].template == {"enable_thinking": True}
