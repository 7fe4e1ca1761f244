"""Draft configs with fields that could change the drafts are refused by name; harmless ones load."""

from typing import Any

import pytest
from transformers import PreTrainedConfig

from ddtree_core.models import CheckpointError
from ddtree_core.models.draft_config import parse_config
from tests.models.draft_files import BY_NAME, speculators_config, stand_in, z_lab_config

RELEASE = BY_NAME["qwen3-4b"]


def target() -> PreTrainedConfig:
    return stand_in(RELEASE.target_layers, RELEASE.hidden).config


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("top", "is_neox_style", False),  # interleaved rotation
        ("top", "rope_is_neox_style", False),
        ("rope_parameters", "rope_interleave", True),
        ("top", "mlp_bias", True),
        ("top", "logits_scaling", 16.0),
        ("top", "residual_multiplier", 0.22),
        ("top", "query_pre_attn_scalar", 256),
        ("dflash_config", "projector_type", "dspark"),
        ("dflash_config", "markov_rank", 256),
        ("dflash_config", "output_multiplier", 0.196),
        ("dflash_config", "selector_top_k", 16),
        ("top", "causal_head", True),  # read in `dflash_config` alone
        ("dflash_config", "draft_vocab_size", 32),
        ("top", "a_field_of_next_year", 1),
    ],
)
def test_a_field_that_may_change_the_drafts_is_refused_by_name(place: str, name: str, value: Any) -> None:
    raw = z_lab_config(RELEASE)
    (raw if place == "top" else raw[place])[name] = value
    with pytest.raises(CheckpointError, match=f"config.json says {name} = .*does not understand"):
        parse_config(raw, target())


@pytest.mark.parametrize(
    ("name", "value"),
    [("norm_before_residual", True), ("sample_from_anchor", True), ("shared_head_scale", 2.0)],
)
def test_the_other_layout_is_read_as_strictly(name: str, value: Any) -> None:
    raw = speculators_config(RELEASE) | {name: value}
    with pytest.raises(CheckpointError, match=name):
        parse_config(raw, target())
    nested = speculators_config(RELEASE)
    nested["transformer_layer_config"]["is_neox_style"] = False
    with pytest.raises(CheckpointError, match="is_neox_style = False"):
        parse_config(nested, target())


@pytest.mark.parametrize(
    "fields",
    [
        {"is_neox_style": True, "use_qk_norm": True, "logits_scaling": 1.0, "markov_rank": 0},
        {"final_logit_softcapping": None, "a_field_of_next_year": None},  # said to be absent
        {"attention_dropout": 0.1, "num_anchors": 512, "auto_map": {"AutoModel": "x.Y"}, "use_cache": False},
        {"num_beams": 1, "pruned_heads": {}, "is_decoder": False, "torch_dtype": "bfloat16"},
    ],
)
def test_fields_that_do_nothing_load(fields: dict[str, Any]) -> None:
    plain = parse_config(z_lab_config(RELEASE), target())
    read = parse_config(z_lab_config(RELEASE) | fields, target())
    assert (read.block_size, read.causal, read.windows) == (plain.block_size, plain.causal, plain.windows)


def test_layer_ids_beside_the_body_are_read() -> None:
    raw = z_lab_config(RELEASE)
    raw["target_layer_ids"] = raw["dflash_config"].pop("target_layer_ids")[:3]
    assert parse_config(raw, target()).target_layer_ids == (1, 9, 17)
