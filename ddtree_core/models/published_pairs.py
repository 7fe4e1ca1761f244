"""Registry rows of the published pairs on the hub, with the acceptance lengths published for them.

Where a drafter was retrained under the same hub id, what differs between its releases is left out (None).
Acceptance lengths over several data sets carry "mean" as their data set; other drafters for the same target
are named as the method.
"""

from typing import Any

from ddtree_core.models import target_shapes as shapes
from ddtree_core.models.pair_spec import DraftShape, PairSpec, PublishedTau

_DFLASH = "DFlash, arXiv 2602.06036"
_JETSPEC = "JetSpec, arXiv 2606.18394"
_SPARK = "independent, bfloat16 on a DGX Spark"
_USER = "user's report z-lab/dflash#60, 4-bit target"
_NO_THINKING = "the drafter was trained without thinking"
_DENSE_4B = DraftShape(5, 2560, 9728, 32, 8, 128)
_DENSE_8B = DraftShape(5, 4096, 12288, 32, 8, 128)
_DENSE_27B = DraftShape(5, 5120, 17408, 32, 8, 128)
_SPARSE = DraftShape(8, 2048, 6144, 32, 4, 128)


def _hybrid(size: str, shape: shapes.Shape, draft: DraftShape, **known: Any) -> PairSpec:
    """A Qwen3.5 or 3.6 row: names and drafter conventions are those of the family."""
    names = f"qwen{size.lower()}", f"Qwen/Qwen{size}", f"z-lab/Qwen{size}-DFlash"
    return PairSpec(*names, shape=shape, draft_shape=draft, block_size=16, mask_token_id=248070, **known)


def _chains(dflash: tuple[float, float], eagle: tuple[float, float]) -> tuple[PublishedTau, ...]:
    """DFlash and EAGLE-3 (a tree of 60 nodes) at temperatures 0 and 1, means over the paper's data sets."""
    return tuple(
        PublishedTau("mean", method, tau, _DFLASH, budget, temperature)
        for method, budget, taus in (("dflash", None, dflash), ("EAGLE-3", 60, eagle))
        for temperature, tau in zip((0.0, 1.0), taus, strict=True)
    )


PUBLISHED_PAIRS = (
    PairSpec(
        "qwen3-4b",
        "Qwen/Qwen3-4B",
        "z-lab/Qwen3-4B-DFlash-b16",
        shape=shapes.QWEN3_4B,
        draft_shape=_DENSE_4B,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes=_NO_THINKING,
        template={"enable_thinking": False},
        published=(
            *_chains((6.54, 5.69), (3.48, 3.36)),
            PublishedTau("GSM8K", "ddtree", 9.08, "independent, hxri/ddtreeplus, RTX 6000 Pro", 128),
        ),
    ),
    PairSpec(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        "z-lab/Qwen3-8B-DFlash-b16",
        shape=shapes.QWEN3_8B,
        draft_shape=_DENSE_8B,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes=_NO_THINKING,
        template={"enable_thinking": False},
        published=(
            *_chains((6.49, 5.48), (3.40, 3.26)),
            PublishedTau("MATH-500", "JetSpec", 9.64, _JETSPEC, 256),
            PublishedTau("GSM8K", "JetSpec", 7.82, _JETSPEC, 256),
            PublishedTau("AIME25", "JetSpec", 8.78, _JETSPEC, 256),
            PublishedTau("HumanEval", "JetSpec", 7.12, _JETSPEC, 256),
            PublishedTau("MBPP", "JetSpec", 6.73, _JETSPEC, 256),
            PublishedTau("LCB", "JetSpec", 7.67, _JETSPEC, 256),
            PublishedTau("MT-Bench", "JetSpec", 4.58, _JETSPEC, 256),
        ),
    ),
    PairSpec(
        "qwen3-coder-30b-a3b",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "z-lab/Qwen3-Coder-30B-A3B-DFlash",
        shape=shapes.QWEN3_CODER_30B_A3B,
        draft_shape=_SPARSE,
        target_layer_ids=(1, 12, 23, 34, 45),
        block_size=16,
        notes="mixture of experts",
        published=(
            PublishedTau("code", "dflash", 7.96, _SPARK, None, None),
            PublishedTau("code", "ddtree", 9.74, _SPARK, 64, None),
            PublishedTau("code", "ddtree", 10.50, _SPARK, 256, None),
            PublishedTau("chat", "dflash", 2.25, _SPARK, None, None),
            PublishedTau("chat", "ddtree", 3.22, _SPARK, 64, None),
            PublishedTau("chat", "ddtree", 3.69, _SPARK, 256, None),
        ),
    ),
    _hybrid(
        "3.5-4B",
        shapes.QWEN35_4B,
        _DENSE_4B,
        target_layer_ids=(1, 8, 15, 22, 29),
        notes="hybrid",
    ),
    _hybrid(
        "3.5-9B",
        shapes.QWEN35_9B,
        DraftShape(6, 4096, 12288, 32, 8, 128, captured=8),
        notes="hybrid; sizes of the retrained drafter (the first release has 5 layers)",
    ),
    _hybrid(
        "3.5-27B",
        shapes.QWEN35_27B,
        DraftShape(6, 5120, 17408, 32, 8, 128),
        notes="hybrid; drafter's size is approximate: six layers as retrained, widths of the first release",
    ),
    _hybrid(
        "3.5-35B-A3B",
        shapes.QWEN35_35B_A3B,
        _SPARSE,
        target_layer_ids=(1, 10, 19, 28, 37),
        notes="hybrid mixture of experts; the drafter was trained with thinking",
        template={"enable_thinking": True},
        published=(PublishedTau("math, thinking", "dflash", 9.49, _USER, None, None),),
    ),
    _hybrid(
        "3.6-27B",
        shapes.QWEN35_27B,
        _DENSE_27B,
        target_layer_ids=(1, 16, 31, 46, 61),
        notes="hybrid; four causal sliding draft layers (window 2048) and a full one",
    ),
    _hybrid(
        "3.6-35B-A3B",
        shapes.QWEN35_35B_A3B,
        _SPARSE,
        target_layer_ids=(1, 10, 19, 28, 37),
        notes="hybrid mixture of experts; sliding draft layers, the last one full",
    ),
    PairSpec(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        shape=shapes.LLAMA31_8B,
        draft_shape=_DENSE_8B,
        target_layer_ids=(1, 8, 15, 22, 29),
        block_size=10,
        notes="gated: accept the licence on the hub first",
    ),
    PairSpec(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        "z-lab/gpt-oss-20b-DFlash",
        shape=shapes.GPT_OSS_20B,
        draft_shape=DraftShape(8, 2880, 7680, 64, 8, 64),
        target_layer_ids=(1, 6, 11, 16, 21),
        block_size=8,
        mask_token_id=200000,
        notes="mixture of experts with sliding layers; eager attention",
    ),
)
