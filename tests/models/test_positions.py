"""How far positions reach with rotary scaling, and texts that would cross a change of the rotation."""

from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig, Phi3Config, PreTrainedConfig, Qwen3Config

from ddtree_core.models.positions import Positions, positions_of

SHAPE: dict[str, Any] = dict(
    vocab_size=260, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2
)


def llama(positions: int, **rope: Any) -> PreTrainedConfig:
    return LlamaConfig(
        **SHAPE, max_position_embeddings=positions, rope_parameters={"rope_theta": 1e4, **rope}
    )


def longrope() -> PreTrainedConfig:
    return Phi3Config(
        **SHAPE,
        pad_token_id=258,
        max_position_embeddings=256,
        original_max_position_embeddings=48,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [4.0 + i for i in range(8)],
            "original_max_position_embeddings": 48,
            "partial_rotary_factor": 1.0,
        },
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (llama(48, rope_type="default"), Positions(48)),
        # 32 trained positions stretched four times, whatever the config counts as its maximum.
        (llama(48, rope_type="yarn", factor=4.0, original_max_position_embeddings=32), Positions(128)),
        (llama(128, rope_type="yarn", factor=4.0, original_max_position_embeddings=32), Positions(128)),
        (llama(64, rope_type="linear", factor=2.0), Positions(128)),
        # Counted by the config already.
        (
            llama(
                64,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
            Positions(64),
        ),
        (longrope(), Positions(256, switch=48, second=True)),
        (llama(64, rope_type="dynamic", factor=2.0), Positions(128, switch=64)),
        (Gemma3TextConfig(**SHAPE, max_position_embeddings=96), Positions(96)),
    ],
    ids=["default", "yarn", "yarn counted", "linear", "llama3", "longrope", "dynamic", "by layer type"],
)
def test_positions_of_a_config(config: PreTrainedConfig, expected: Positions) -> None:
    assert positions_of(config) == expected


def test_old_spelling_of_scaling_counts_too() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    shape = SHAPE | {"max_position_embeddings": 48, "rope_scaling": yarn}
    assert positions_of(Qwen3Config(**shape)).limit == 128


@pytest.mark.parametrize("prompt", [128, 200])
def test_a_prompt_that_fills_the_positions_is_refused(prompt: int) -> None:
    with pytest.raises(ValueError, match=f"the prompt has {prompt} tokens, but it has 128 positions"):
        Positions(128).check("it", prompt, 1, 7)


def test_the_limit_counts_prompt_and_answer_not_drafts() -> None:
    Positions(128).check("it", 100, 28, 15)
    with pytest.raises(ValueError, match="at most 28 new tokens fit"):
        Positions(128).check("it", 100, 29, 0)


def test_a_text_stays_on_one_side_of_the_switch() -> None:
    """30 tokens of prompt and 12 new ones put the last root at 41; trees of depth 7 reach the 48th token."""
    both = Positions(256, switch=48, second=True)
    both.check("it", 30, 12, 7)
    with pytest.raises(
        ValueError, match=r"longer than 48, .* max_new_tokens of 12 or less, or a prompt of more"
    ):
        both.check("it", 30, 13, 7)
    with pytest.raises(ValueError, match="longer than 48"):
        both.check("it", 48, 40, 7)  # at the switch itself `generate` reads the whole text anew
    both.check("it", 49, 40, 7)
    with pytest.raises(ValueError, match="longer than 48"):  # its frequencies change with every further token
        Positions(256, switch=48).check("it", 49, 40, 7)
