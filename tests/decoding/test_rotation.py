"""Rotary scaling that follows the length of the text, or stretches what the config counts."""

from typing import Any

import pytest
from transformers import LlamaConfig, PreTrainedConfig

from ddtree_core.decoding import generate
from ddtree_core.decoding.baselines import library_generate
from ddtree_core.models import ModelPair
from ddtree_core.models.tiny import BlurredLookahead, byte_tokenizer, tiny_target
from tests.models.shapes import SHAPE

SHORT: dict[str, Any] = SHAPE | {"max_position_embeddings": 48}
DYNAMIC = LlamaConfig(**SHORT, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0})
METHODS = [("autoregressive", None), ("dflash", None), ("ddtree", 12)]


def pair_of(config: PreTrainedConfig) -> ModelPair:
    return ModelPair("it", tiny_target(config), byte_tokenizer(), BlurredLookahead())


def prompt(n: int) -> list[int]:
    return [(13 * i * i + 7 * i) % 250 for i in range(n)]


@pytest.mark.parametrize(("method", "budget"), METHODS)
def test_below_the_change_texts_are_the_librarys(method: str, budget: int | None) -> None:
    """The deepest draft of the last round is the 48th token."""
    pair = pair_of(DYNAMIC)
    expected = library_generate(pair, prompt(30), 12)
    assert generate(pair, prompt(30), method, budget=budget, max_new_tokens=12).ids == expected


@pytest.mark.parametrize(("method", "budget"), METHODS)
def test_a_text_that_would_cross_it_is_refused(method: str, budget: int | None) -> None:
    with pytest.raises(ValueError, match=r"it rotates all tokens in another way .* longer than 48"):
        generate(pair_of(DYNAMIC), prompt(30), method, budget=budget, max_new_tokens=40)


def test_beyond_it_frequencies_that_follow_the_length_are_refused() -> None:
    with pytest.raises(ValueError, match="longer than 48"):
        generate(pair_of(DYNAMIC), prompt(60), max_new_tokens=8)


@pytest.mark.parametrize(("method", "budget"), METHODS)
def test_a_scaled_rotation_reaches_further_than_the_config_counts(method: str, budget: int | None) -> None:
    """32 trained positions times 4: 60 tokens of prompt fit, although the config says 48."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    pair = pair_of(LlamaConfig(**SHORT, rope_parameters=yarn))
    expected = library_generate(pair, prompt(60), 30)
    assert generate(pair, prompt(60), method, budget=budget, max_new_tokens=30).ids == expected
    with pytest.raises(ValueError, match="it has 128 positions"):
        generate(pair, prompt(128), method, budget=budget, max_new_tokens=1)
