"""Every published DFlash layout loads as its rules say, and what does not fit is refused in one sentence.

The expected values are the published ones and formulas written out here; the checkpoints come from
`draft_files`, which shares no code with the loader.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ddtree_core.models import Target
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.draft_config import CheckpointError, default_layer_ids
from tests.models.draft_files import (
    BY_NAME,
    MASK,
    RELEASES,
    VOCAB,
    YARN,
    Release,
    body_tensors,
    speculators_config,
    stand_in,
    vocabulary_tensors,
    write_checkpoint,
    z_lab_config,
)

# One small release for the tests of single rules: one sliding layer below a full one, a target of 4 layers.
SMALL = Release("small", 2, 24, 40, (4, 2, 8), 6, (0, 2), 4, sliding=1, window=8, theta=1e7, positions=4096)
KEPT = torch.tensor([0, 1, 5, 6, 7, 20, 44, 45, 90, 95])  # token ids of a reduced draft vocabulary


def small_target() -> Any:
    return stand_in(SMALL.target_layers, SMALL.hidden)


def new_target() -> Any:
    """The small target once more, for tests that change it."""
    return stand_in.__wrapped__(SMALL.target_layers, SMALL.hidden)


def load_small(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Any:
    return load_drafter(write_checkpoint(folder, config, tensors or body_tensors(SMALL)), small_target())


def default_rope(theta: float, dim: int) -> Tensor:
    """Frequencies of plain rotary embeddings over the whole head: θ^(−2i/D)."""
    return torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)])


def yarn_rope(theta: float, dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): frequencies that turn rarely within the original length are divided by the
    factor.
    """

    def turning(times: float) -> float:
        # The dimension that turns so many times within the original length.
        length = YARN["original_max_position_embeddings"] / (times * 2 * math.pi)
        return dim * math.log(length) / (2 * math.log(theta))

    low, high = turning(YARN["beta_fast"]), turning(YARN["beta_slow"])
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(dim // 2)]
    plain = default_rope(theta, dim).tolist()
    return torch.tensor([f / YARN["factor"] * r + f * (1 - r) for f, r in zip(plain, ramp, strict=True)])


@pytest.mark.parametrize("style", ["older", "newer"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_every_published_release_loads(release: Release, style: str, tmp_path: Path) -> None:
    tensors = body_tensors(release)
    assert len(tensors) == 3 + 11 * release.layers
    target = stand_in(release.target_layers, release.hidden)
    model = load_drafter(write_checkpoint(tmp_path, z_lab_config(release, style), tensors), target)

    config, dim = model.config, release.heads[2]
    assert (config.block_size, config.mask_token_id, config.num_target_layers) == (
        release.block,
        MASK,
        release.target_layers,
    )
    assert (model.layer_ids, model.depth, model.vocabulary) == (release.ids, release.block - 1, None)
    assert (model.lm_head, model.embed_tokens) == (None, None)
    # Sliding means causal, unless the config says otherwise; full layers are bidirectional in the block.
    kinds = [(kind == "sliding_attention") for kind in release.layer_types]
    assert config.causal == tuple(s and release.causal is not False for s in kinds)
    assert config.windows == tuple(release.window if s else None for s in kinds)
    frequencies = (yarn_rope if release.yarn else default_rope)(release.theta, dim)
    torch.testing.assert_close(model.rotary_emb.inv_freq, frequencies, rtol=1e-6, atol=0)
    factor = 0.1 * math.log(YARN["factor"]) + 1 if release.yarn else 1.0
    assert model.rotary_emb.attention_scaling == pytest.approx(factor)
    loaded = model.state_dict()
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in tensors.items())

    opened = Target(target, model.layer_ids, model.device)
    features = opened.prefill(torch.arange(1, 8)).features
    logits = model.open(target, []).draft(features, torch.arange(2, 9))
    assert logits.shape == (release.block - 1, VOCAB)
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    "release", [BY_NAME["qwen3-8b"], BY_NAME["qwen3.6-27b"]], ids=lambda release: release.name
)
def test_the_speculators_layout_loads(release: Release, tmp_path: Path) -> None:
    release = replace(release, block=8)
    tensors = body_tensors(release) | vocabulary_tensors(release.hidden, KEPT)
    target = stand_in(release.target_layers, release.hidden)
    folder = write_checkpoint(tmp_path, speculators_config(release, len(KEPT)), tensors)
    model = load_drafter(folder, target)

    assert model.layer_ids == release.ids  # the file's ids, less one
    assert (model.config.block_size, model.config.mask_token_id, model.depth) == (8, MASK, 7)
    assert model.config.causal == (True,) * release.sliding + (False,) * (release.layers - release.sliding)
    assert model.vocabulary is not None
    assert model.vocabulary.tolist() == KEPT.tolist()
    loaded = model.state_dict()
    assert loaded.keys() == tensors.keys() - {"d2t", "t2d"}
    assert all(torch.equal(loaded[name], tensors[name].float()) for name in loaded)

    features = Target(target, model.layer_ids).prefill(torch.arange(1, 8)).features
    logits = model.open(target, []).draft(features, torch.arange(2, 9))
    assert logits.shape == (7, len(KEPT))


def test_an_older_name_of_the_speculators_architecture_is_read_alike(tmp_path: Path) -> None:
    config = speculators_config(SMALL) | {"architectures": ["DFlashDraftModel"]}
    assert load_small(tmp_path, config).layer_ids == SMALL.ids


@pytest.mark.parametrize(
    ("layers", "published"),
    [
        (36, (1, 9, 17, 25, 33)),
        (48, (1, 12, 23, 34, 45)),
        (32, (1, 8, 15, 22, 29)),
        (64, (1, 16, 31, 46, 61)),
        (40, (1, 10, 19, 28, 37)),
        (24, (1, 6, 11, 16, 21)),
    ],
)
def test_missing_layer_ids_are_those_of_the_first_releases(layers: int, published: tuple[int, ...]) -> None:
    assert default_layer_ids(layers) == published


@pytest.mark.parametrize("stated", [True, False], ids=["depth stated", "depth of the target"])
def test_a_config_without_layer_ids_falls_back(stated: bool, tmp_path: Path) -> None:
    release = BY_NAME["gpt-oss-20b"]
    config = z_lab_config(release)
    del config["dflash_config"]["target_layer_ids"]
    if not stated:
        del config["num_target_layers"]
    folder = write_checkpoint(tmp_path, config, body_tensors(release))
    assert load_drafter(folder, stand_in(24, release.hidden)).layer_ids == (1, 6, 11, 16, 21)


def test_a_layer_id_is_the_output_of_that_block(tmp_path: Path) -> None:
    release = BY_NAME["qwen3-4b"]
    target = stand_in(release.target_layers, release.hidden)
    model = load_drafter(write_checkpoint(tmp_path, z_lab_config(release), body_tensors(release)), target)
    ids = torch.arange(1, 12)
    # The embedding, then every block's output (the last one normed).
    states: Any = target.forward(ids[None], output_hidden_states=True).hidden_states  # pyright: ignore[reportCallIssue]
    features = Target(target, model.layer_ids).prefill(ids).features
    expected = torch.cat([states[k + 1][0] for k in (1, 9, 17, 25, 33)], dim=-1)
    torch.testing.assert_close(features, expected)


@pytest.mark.parametrize(
    ("top", "inner", "expected"),
    [
        ({}, {}, True),
        ({"is_causal": False}, {}, False),
        ({"is_causal": True}, {"is_causal": False, "causal": False}, True),
        ({"is_causal": False}, {"is_causal": True, "causal": True}, False),
        ({}, {"is_causal": False, "causal": True}, False),
        ({}, {"is_causal": True, "causal": False}, True),
        ({}, {"causal": False}, False),
        ({"is_causal": None}, {"is_causal": None, "causal": False}, False),
    ],
)
def test_causality_of_sliding_layers_is_resolved_in_order(
    top: dict[str, Any], inner: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    config = z_lab_config(SMALL) | top
    config["dflash_config"] |= inner
    assert load_small(tmp_path, config).config.causal == (expected, False)  # the full layer never is


def test_a_causal_head_makes_every_layer_causal(tmp_path: Path) -> None:
    config = z_lab_config(SMALL)
    config["dflash_config"]["causal_head"] = True
    assert load_small(tmp_path, config).config.causal == (True, True)


@pytest.mark.parametrize("non_causal", [True, False])
def test_speculators_say_whether_sliding_layers_are_causal(non_causal: bool, tmp_path: Path) -> None:
    config = speculators_config(SMALL) | {"sliding_window_non_causal": non_causal}
    model = load_small(tmp_path, config)
    assert model.config.causal == (not non_causal, False)
    assert model.config.windows == (8, None)


def test_layer_types_of_older_files_come_from_max_window_layers(tmp_path: Path) -> None:
    config = z_lab_config(SMALL, "older") | {"use_sliding_window": True, "max_window_layers": 1}
    del config["layer_types"]  # as in Qwen3 configs of old: the layers from that one on slide
    model = load_small(tmp_path, config)
    assert (model.config.causal, model.config.windows) == ((False, True), (None, 8))


@pytest.mark.parametrize("place", ["top level", "inside dflash_config", "null above"])
def test_block_size_is_found_in_either_place(place: str, tmp_path: Path) -> None:
    config = z_lab_config(SMALL, "older" if place == "top level" else "newer")
    assert ("block_size" in config) == (place == "top level")
    if place == "null above":
        config["block_size"] = None
    assert load_small(tmp_path, config).config.block_size == 6


MROPE = {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
ROPE_PLACES: dict[str, dict[str, Any]] = {
    "rope_theta": {"rope_theta": 1e7},
    "rope_theta, null scaling": {"rope_theta": 1e7, "rope_scaling": None},
    "rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7}},
    "rope_parameters without a type": {"rope_parameters": {"rope_theta": 1e7}},
    "partial, inside": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, **MROPE}},
    "partial, outside": {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "mrope as a scaling": {"rope_theta": 1e7, "rope_scaling": {"type": "mrope", **MROPE}},
    "both fields": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
        "rope_scaling": {"rope_type": "default", **MROPE},
    },
}


@pytest.mark.parametrize("place", ROPE_PLACES)
def test_rotary_is_plain_over_the_whole_head_wherever_theta_stands(place: str, tmp_path: Path) -> None:
    config = z_lab_config(SMALL)
    del config["rope_parameters"]
    model = load_small(tmp_path, config | ROPE_PLACES[place])
    torch.testing.assert_close(model.rotary_emb.inv_freq, default_rope(1e7, 8), rtol=1e-6, atol=0)
    assert model.rotary_emb.attention_scaling == 1.0


@pytest.mark.parametrize("style", ["older", "newer"])
def test_yarn_turns_the_whole_head_too(style: str, tmp_path: Path) -> None:
    config = z_lab_config(replace(SMALL, yarn=True, positions=131072), style)
    field = "rope_parameters" if style == "newer" else "rope_scaling"
    config[field] = config[field] | {"partial_rotary_factor": 0.5}
    model = load_small(tmp_path, config)
    torch.testing.assert_close(model.rotary_emb.inv_freq, yarn_rope(1e7, 8), rtol=1e-6, atol=0)


def test_a_reduced_vocabulary_reads_its_rows_from_the_targets_head(tmp_path: Path) -> None:
    maps = vocabulary_tensors(SMALL.hidden, KEPT)
    body = body_tensors(SMALL)
    reduced = load_small(
        tmp_path / "reduced",
        z_lab_config(SMALL) | {"draft_vocab_size": len(KEPT)},
        body | {"d2t": maps["d2t"], "t2d": maps["t2d"]},
    )
    whole = load_small(tmp_path / "whole", z_lab_config(SMALL), body)
    features, tokens = torch.randn(5, 2 * SMALL.hidden), torch.arange(5)
    few, all_of_them = (m.open(small_target(), []).draft(features, tokens) for m in (reduced, whole))
    assert reduced.vocabulary.tolist() == KEPT.tolist()
    torch.testing.assert_close(few, all_of_them[:, KEPT])


def test_own_tables_are_used_in_place_of_the_targets(tmp_path: Path) -> None:
    own = vocabulary_tensors(SMALL.hidden, torch.arange(VOCAB))
    tables = {name: own[name] for name in ("embed_tokens.weight", "lm_head.weight")}
    target = new_target()
    body = body_tensors(SMALL)
    owning = load_drafter(
        write_checkpoint(tmp_path / "own", speculators_config(SMALL), body | tables), small_target()
    )
    target.get_input_embeddings().weight.data.copy_(tables["embed_tokens.weight"])
    target.get_output_embeddings().weight.data.copy_(tables["lm_head.weight"])
    bare = load_drafter(write_checkpoint(tmp_path / "bare", z_lab_config(SMALL), body), target)
    features, tokens = torch.randn(5, 2 * SMALL.hidden), torch.arange(5)
    used = owning.open(small_target(), []).draft(features, tokens)
    torch.testing.assert_close(used, bare.open(target, []).draft(features, tokens))
    others = bare.open(small_target(), []).draft(features, tokens)
    assert not torch.allclose(used, others)


def test_sharded_weights_are_read_through_their_index(tmp_path: Path) -> None:
    tensors = body_tensors(SMALL)
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), tensors, shards=3)
    assert not (folder / "model.safetensors").exists()
    loaded = load_drafter(folder, small_target()).state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in tensors.items())


def test_in_bfloat16_the_rotary_frequencies_stay_float32(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL))
    model = load_drafter(folder, small_target(), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.rotary_emb.inv_freq.dtype == torch.float32
    torch.testing.assert_close(model.rotary_emb.inv_freq, default_rope(1e7, 8), rtol=1e-6, atol=0)
    features = torch.randn(4, 2 * SMALL.hidden, dtype=torch.bfloat16)
    target = new_target().to(torch.bfloat16)
    assert model.open(target, []).draft(features, torch.arange(4)).dtype == torch.bfloat16


# What is done to a good checkpoint's config and tensors.
Break = Callable[[dict[str, Any], dict[str, Tensor]], object]


def put(**fields: Any) -> Break:
    return lambda config, tensors: config.update(fields)


def put_inside(**fields: Any) -> Break:
    return lambda config, tensors: config["dflash_config"].update(fields)


def drop(field: str) -> Break:
    return lambda config, tensors: config.pop(field)


def drop_inside(field: str) -> Break:
    return lambda config, tensors: config["dflash_config"].pop(field)


def tensor(name: str, value: Tensor) -> Break:
    return lambda config, tensors: tensors.update({name: value})


def convolutions(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors.update({f"layers.{i}.attention_conv.weight": torch.zeros(24, 4) for i in range(2)})


# The damage, and the words that the refusal must hold.
BROKEN: dict[str, tuple[Break, str]] = {
    "missing tensor": (
        lambda config, tensors: tensors.pop("layers.1.self_attn.k_norm.weight"),
        "missing layers.1.self_attn.k_norm.weight",
    ),
    "extra tensor": (
        tensor("layers.0.self_attn.q_proj.bias", torch.zeros(32)),
        "unknown layers.0.self_attn.q_proj.bias",
    ),
    "a layer too many": (put(num_hidden_layers=1, layer_types=["full_attention"]), "unknown layers.1"),
    "DFlash2": (convolutions, "unknown layers.0.attention_conv.weight, layers.1.attention_conv.weight"),
    "feature width": (
        put_inside(target_layer_ids=[0, 1, 2]),
        "reads 48 features, but 3 layer ids × hidden size 24 give 72",
    ),
    "wrong shape": (
        tensor("layers.0.mlp.up_proj.weight", torch.zeros(41, 24)),
        r"up_proj.weight has shape \(41, 24\), expected \(40, 24\)",
    ),
    "target's depth": (put(num_target_layers=36), "trained for 36 target layers, this target has 4"),
    "target's hidden size": (put(hidden_size=32), "trained for hidden size 32, this target has 24"),
    "target's vocabulary": (put(vocab_size=151936), "vocabulary of 151936, this target has 96"),
    "layer ids": (put_inside(target_layer_ids=[1, 4]), r"\[1, 4\] must lie in 0..3"),
    "mask id": (put_inside(mask_token_id=96), "mask token id 96 is outside the vocabulary of 96"),
    "float16 declared": (put(dtype="float16"), "float16 makes DFlash drafters useless"),
    "float16 in the file": (
        tensor("fc.weight", torch.zeros(24, 48, dtype=torch.float16)),
        "weights are float16, expected bfloat16 or float32",
    ),
    "block size": (put_inside(block_size=1), "block_size is 1, expected at least 2"),
    "no block size": (drop_inside("block_size"), "has no block_size"),
    "no mask id": (drop_inside("mask_token_id"), "has no dflash_config.mask_token_id"),
    "no dflash_config": (drop("dflash_config"), "not a DFlash checkpoint"),
    "no rope": (drop("rope_parameters"), "has no rope_theta"),
    "no window": (put(sliding_window=None), "has no sliding_window"),
    "text for a number": (
        put_inside(block_size="16"),
        "block_size in config.json is '16', expected a whole number",
    ),
    "text for a size": (put(hidden_size="big"), "cannot be used .*hidden_size"),
    "layer types too few": (put(layer_types=["full_attention"]), "cannot be used .*layer_types"),
    "layer types unknown": (
        put(layer_types=["linear_attention", "full_attention"]),
        "type linear_attention are not supported",
    ),
    "vocabulary without map": (put(draft_vocab_size=10), "draft_vocab_size is 10 of 96, but there is no d2t"),
}


def refusal(folder: Path, **options: Any) -> str:
    """The message with which a checkpoint is refused; one sentence."""
    with pytest.raises(CheckpointError) as caught:
        load_drafter(folder, small_target(), **options)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    change, words = BROKEN[what]
    config, tensors = z_lab_config(SMALL), body_tensors(SMALL)
    change(config, tensors)
    assert re.search(words, refusal(write_checkpoint(tmp_path, config, tensors)))


def float16_inside(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del config["dtype"]
    config["transformer_layer_config"]["dtype"] = "float16"


BROKEN_SPECULATORS: dict[str, tuple[Break, str]] = {
    "dspark": (put(speculators_model_type="dspark"), "'dspark' is not supported, expected 'dflash'"),
    "eagle3": (put(speculators_model_type="eagle3"), "'eagle3' is not supported, expected 'dflash'"),
    "anchor": (put(sample_from_anchor=True), "expected 'dflash' without sample_from_anchor"),
    "no layer ids": (drop("aux_hidden_state_layer_ids"), "has no aux_hidden_state_layer_ids"),
    "the embedding as a layer": (put(aux_hidden_state_layer_ids=[0, 3]), "must lie in 0..3"),
    "no mask id": (drop("mask_token_id"), "has no mask_token_id"),
    "no nested config": (drop("transformer_layer_config"), "has no transformer_layer_config"),
    "hidden size": (put(target_hidden_size=32), "trained for hidden size 32, this target has 24"),
    "float16 declared inside": (float16_inside, "float16 makes DFlash drafters useless"),
    "maps disagree": (lambda config, t: t["t2d"].logical_not_(), "t2d and d2t name different token ids"),
    "offsets beyond": (lambda config, t: t["d2t"].add_(1), "10 offsets to distinct token ids below 96"),
    "offsets collide": (tensor("d2t", -torch.arange(10)), "10 offsets to distinct token ids"),
    "too few offsets": (tensor("d2t", torch.zeros(9).long()), "10 offsets to distinct token ids"),
    "head rows": (
        tensor("lm_head.weight", torch.zeros(96, 24)),
        r"lm_head.weight has shape \(96, 24\), expected \(10, 24\)",
    ),
}


@pytest.mark.parametrize("what", BROKEN_SPECULATORS)
def test_what_does_not_fit_in_the_speculators_layout_is_refused(what: str, tmp_path: Path) -> None:
    change, words = BROKEN_SPECULATORS[what]
    config = speculators_config(SMALL, len(KEPT))
    tensors = body_tensors(SMALL) | vocabulary_tensors(SMALL.hidden, KEPT)
    change(config, tensors)
    assert re.search(words, refusal(write_checkpoint(tmp_path, config, tensors)))


def test_float16_is_refused_when_asked_for(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL))
    assert "use bfloat16 or float32" in refusal(folder, dtype=torch.float16)


def cut_in_half(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "holds no config.json"),
    "config cut": (lambda f: (f / "config.json").write_text('{"block_size": 16,'), "not valid JSON"),
    "config of bytes": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "not valid JSON"),
    "config of a list": (lambda f: (f / "config.json").write_text("[]"), "no JSON object"),
    "weights cut": (cut_in_half, "missing, truncated or damaged"),
    "weights empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "missing, truncated or damaged"),
    "weights gone": (
        lambda f: (f / "model.safetensors").unlink(),
        "holds no model.safetensors and no model.safetensors.index.json",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_are_refused(what: str, tmp_path: Path) -> None:
    damage, words = DAMAGE[what]
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL))
    damage(folder)
    assert re.search(words, refusal(folder))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": 3}'])
def test_a_damaged_index_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL), shards=2)
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json is damaged" in refusal(folder)


def test_an_index_that_names_other_tensors_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL), shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    second = "model-00002-of-00002.safetensors"
    index["weight_map"] = {k: f for k, f in index["weight_map"].items() if f != second}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "missing" in refusal(folder)


def test_the_single_file_counts_before_shards_that_an_index_names(tmp_path: Path) -> None:
    """As in transformers: a newer `model.safetensors` beside old shards and their index is what is read."""
    old, new = body_tensors(SMALL), body_tensors(SMALL, seed=5)
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), old, shards=3)
    write_checkpoint(tmp_path, z_lab_config(SMALL), new)
    assert torch.equal(load_drafter(folder, small_target()).fc.weight, new["fc.weight"].float())


def test_other_files_in_the_folder_do_not_count(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL), body_tensors(SMALL))
    save_file({"fc.weight": torch.zeros(3)}, folder / "optimizer.safetensors")
    load_drafter(folder, small_target())
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"holds no model\.safetensors and no .*index"):
        load_drafter(folder, small_target())


@pytest.mark.parametrize(("draft", "own"), [(92, 96), (100, 96), (95, 96)])
def test_differently_padded_vocabularies_load(draft: int, own: int, tmp_path: Path) -> None:
    """The tokenizer gives 92 ids; the target's tables are used, and no id beyond 91 is drafted."""
    config = z_lab_config(SMALL) | {"vocab_size": draft}
    folder = write_checkpoint(tmp_path, config, body_tensors(SMALL))
    plain = load_drafter(
        write_checkpoint(tmp_path / "equal", z_lab_config(SMALL), body_tensors(SMALL)), small_target()
    )
    target, features = small_target(), torch.randn(4, 2 * SMALL.hidden)
    assert target.config.vocab_size == own
    padded = load_drafter(folder, target, tokens=92)
    drafts = [model.open(target, []).draft(features, torch.arange(4)) for model in (padded, plain)]
    assert [len(logits[0]) for logits in drafts] == [92, 96]
    assert torch.equal(drafts[0], drafts[1][:, :92])


@pytest.mark.parametrize("tokens", [93, None])
def test_vocabularies_that_lack_tokens_are_refused(tokens: int | None, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, z_lab_config(SMALL) | {"vocab_size": 92}, body_tensors(SMALL))
    with pytest.raises(CheckpointError, match="vocabulary of 92, this target has 96"):
        load_drafter(folder, small_target(), tokens=tokens)
