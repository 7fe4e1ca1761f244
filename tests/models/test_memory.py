"""What a model needs is counted from its config alone, and a model that does not fit is told what would."""

from typing import Any

import pytest
import torch
from transformers import GptOssConfig, LlamaConfig, PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from ddtree_core.models import PAIRS, OutOfMemoryError, memory
from ddtree_core.models.tiny import tiny_target

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


@pytest.mark.parametrize("name", CONFIGS)
def test_the_count_is_that_of_the_model_when_it_is_built(name: str) -> None:
    model = tiny_target(CONFIGS[name])
    held = {p.data_ptr(): p.numel() for p in model.parameters()}  # tied tensors lie in one place
    assert memory.parameter_count(CONFIGS[name]) == sum(held.values())


def test_the_count_of_a_llama_is_that_of_its_shapes() -> None:
    attention = 2 * 24 * 32 + 2 * 24 * 16  # queries and output: 4 heads of 8; keys and values: 2
    layer = attention + 3 * 24 * 40 + 2 * 24
    tied = 70 * 24 + 3 * layer + 24
    assert memory.parameter_count(CONFIGS["llama, tied"]) == tied
    assert memory.parameter_count(CONFIGS["llama"]) == tied + 70 * 24


def test_counting_allocates_nothing() -> None:
    # 90 billion parameters, 360 GB in float32.
    config = LlamaConfig(
        hidden_size=16384,
        intermediate_size=53248,
        num_hidden_layers=28,
        num_attention_heads=128,
        vocab_size=128,
    )
    before = memory.peak_rss_bytes()
    count = memory.parameter_count(config)
    attention = 4 * 16384 * 16384
    layer = attention + 3 * 16384 * 53248 + 2 * 16384
    assert count == 28 * layer + 16384 + 2 * 128 * 16384
    assert memory.peak_rss_bytes() - before < 1e9


def test_bytes_are_the_weights_and_eight_percent() -> None:
    assert memory.required_bytes(1e9, torch.float32) == pytest.approx(4.32e9)
    assert memory.required_bytes(1e9, torch.bfloat16) == pytest.approx(2.16e9)


def test_free_memory_is_a_plausible_number() -> None:
    assert 1e8 < memory.available_bytes("cpu") < 1e14
    assert 1e7 < memory.peak_rss_bytes() < 1e13


def refusal(
    monkeypatch: pytest.MonkeyPatch, free: float, name: str, parameters: float, dtype: torch.dtype
) -> str:
    monkeypatch.setattr(memory, "available_bytes", lambda device: free)
    with pytest.raises(OutOfMemoryError) as caught:
        memory.check_fits(name, parameters, dtype, "cuda:1")
    return str(caught.value)


def test_what_fits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 4.33e9)
    memory.check_fits("mine", 1e9, torch.float32, "cpu")


SMALL = "smollm2-135m, hybrid-4m"
TINY = ", ".join(row.name for row in PAIRS.values() if row.tiny)


@pytest.mark.parametrize(
    ("free", "dtype", "told"),
    [
        # 10e9 parameters take 43.2 GB in float32 and 21.6 GB in bfloat16; Qwen3-4B and its drafter, 4.56e9
        # parameters, 19.7 GB and 9.8 GB; Qwen3.5-4B and its drafter, 4.74e9, 20.5 GB and 10.2 GB; Qwen3.5-9B
        # and its drafter, 10.2e9, 22.1 GB in bfloat16; SmolLM2 and its drafter, 0.148e9, 0.6 GB.
        (22e9, torch.float32, f"mine with dtype='bfloat16' (21.6 GB), {SMALL}, {TINY}, qwen3-4b, "
         "qwen3.5-4b"),
        (21e9, torch.float32, f"{SMALL}, {TINY}, qwen3-4b, qwen3.5-4b"),
        (20e9, torch.float32, f"{SMALL}, {TINY}, qwen3-4b"),
        (21e9, torch.bfloat16, f"{SMALL}, {TINY}, qwen3-4b, qwen3-8b, qwen3.5-4b, llama-3.1-8b"),
        (1e9, torch.float32, f"{SMALL}, {TINY}"),
        (1e8, torch.float32, f"hybrid-4m, {TINY}"),
        (1e5, torch.float32, "nothing known, so use a device with more memory"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_what_would(
    free: float, dtype: torch.dtype, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = "43.2 GB in float32" if dtype == torch.float32 else "21.6 GB in bfloat16"
    expected = (
        f"mine needs about {needed}, but {free / 1e9:.1f} GB are free on cuda:1; what would fit: {told}"
    )
    assert refusal(monkeypatch, free, "mine", 10e9, dtype) == expected


@pytest.mark.parametrize("name", PAIRS)
def test_every_known_pair_fits_where_there_is_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = memory.required_bytes(PAIRS[name].parameters, torch.bfloat16)
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed)
    memory.check_fits(name, PAIRS[name].parameters, torch.bfloat16, "auto")
    assert "qwen3-4b needs about" in refusal(monkeypatch, 1e9, "qwen3-4b", 4.56e9, torch.bfloat16)
