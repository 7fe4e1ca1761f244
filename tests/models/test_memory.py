"""What does not fit is refused before it is fetched, with what it needs by part and what would fit."""

import pytest
import torch

from ddtree_core.models import PAIRS, OutOfMemoryError, memory
from ddtree_core.models.footprint import GIB


def test_free_memory_is_a_plausible_number() -> None:
    assert 1e8 < memory.available_bytes("cpu") < 1e14
    assert 1e7 < memory.peak_rss_bytes() < 1e13


def refusal(monkeypatch: pytest.MonkeyPatch, free: float, name: str, dtype: torch.dtype) -> str:
    monkeypatch.setattr(memory, "available_bytes", lambda device: free)
    with pytest.raises(OutOfMemoryError) as caught:
        memory.check_fits(PAIRS[name], dtype, "cuda:1")
    return str(caught.value)


SMALL = "smollm2-135m, hybrid-4m"
TINY = ", ".join(row.name for row in PAIRS.values() if row.tiny)
# Qwen3-8B, 8.19e9 parameters, and its drafter of 1.05e9, four and two bytes each. 36 + 5 layers keep a key
# and a value of 8 heads of 128 for 4,096 tokens, twice; a node of 64 adds 36 such rows and 151,936 logits.
NEEDED = {
    torch.float32: "38.0 GiB (weights 30.5, drafter 3.9, caches 2.6, tree 0.1, reserve 1.0) in float32",
    torch.bfloat16: "19.5 GiB (weights 15.3, drafter 2.0, caches 1.3, tree 0.0, reserve 1.0) in bfloat16",
}
HALF = "qwen3-8b with dtype='bfloat16' (19.5 GiB), "


@pytest.mark.parametrize(
    ("free", "dtype", "fitting"),
    [
        # In GiB: Qwen3-4B takes 20.6 in float32 and 10.8 in bfloat16, Qwen3.5-4B 19.7 and 10.4, Llama-3.1-8B
        # 37.2 and 19.1, SmolLM2 1.9 in float32; the tiny ones little more than the reserve of 1.
        (22.0, torch.float32, f"{HALF}{SMALL}, {TINY}, qwen3-4b, qwen3.5-4b"),
        (20.0, torch.float32, f"{HALF}{SMALL}, {TINY}, qwen3.5-4b"),
        (19.4, torch.float32, f"{SMALL}, {TINY}"),
        (19.4, torch.bfloat16, f"{SMALL}, {TINY}, qwen3-4b, qwen3.5-4b, llama-3.1-8b"),
        (1.5, torch.float32, f"hybrid-4m, {TINY}"),
        (0.9, torch.float32, "nothing known, so use a device with more memory"),
    ],
)
def test_what_does_not_fit_is_told_what_would(
    free: float, dtype: torch.dtype, fitting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(monkeypatch, free * GIB, "qwen3-8b", dtype) == (
        f"qwen3-8b needs {NEEDED[dtype]} for 4096 tokens and trees of 64 nodes, but {free:.1f} GiB are free "
        f"on cuda:1; what would fit: {fitting}"
    )


@pytest.mark.parametrize("name", PAIRS)
def test_every_known_pair_fits_where_there_is_just_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = memory.required(name, torch.bfloat16, "cpu").total
    monkeypatch.setattr(memory, "available_bytes", lambda device: needed)
    memory.check_fits(PAIRS[name], torch.bfloat16, "cpu")
    assert refusal(monkeypatch, needed - 1, name, torch.bfloat16).startswith(f"{name} needs ")
