"""Registry rows of the published pairs on the hub, with the acceptance lengths published for them.

Where a drafter was retrained under the same hub id, what differs between its releases is left out (None).
"""

from typing import Any

from ddtree_core.models import target_shapes as shapes
from ddtree_core.models.pair_spec import DraftShape, PairSpec
from ddtree_core.models.published_tau import PUBLISHED_TAU

_NO_THINKING = "the drafter was trained without thinking"
_DENSE_4B = DraftShape(5, 2560, 9728, 32, 8, 128)
_DENSE_8B = DraftShape(5, 4096, 12288, 32, 8, 128)
_DENSE_27B = DraftShape(5, 5120, 17408, 32, 8, 128)
_SPARSE = DraftShape(8, 2048, 6144, 32, 4, 128)


def _published(
    name: str,
    target: str,
    drafter: str,
    parameters: float,
    shape: shapes.Shape,
    draft: DraftShape,
    **known: Any,
) -> PairSpec:
    return PairSpec(
        name=name,
        target=target,
        drafter=drafter,
        target_parameters=parameters,
        drafter_parameters=draft.parameters,
        target_layers=shape.get("text_config", shape)["num_hidden_layers"],
        shape=shape,
        draft_shape=draft,
        published=PUBLISHED_TAU.get(name, ()),
        **known,
    )


def _hybrid(size: str, parameters: float, shape: shapes.Shape, draft: DraftShape, **known: Any) -> PairSpec:
    """A Qwen3.5 or 3.6 row: names and drafter conventions are those of the family."""
    names = f"qwen{size.lower()}", f"Qwen/Qwen{size}", f"z-lab/Qwen{size}-DFlash"
    return _published(*names, parameters, shape, draft, block_size=16, mask_token_id=248070, **known)


PUBLISHED_PAIRS = (
    _published(
        "qwen3-4b",
        "Qwen/Qwen3-4B",
        "z-lab/Qwen3-4B-DFlash-b16",
        4.02e9,
        shapes.QWEN3_4B,
        _DENSE_4B,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes=_NO_THINKING,
        template={"enable_thinking": False},
    ),
    _published(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        "z-lab/Qwen3-8B-DFlash-b16",
        8.19e9,
        shapes.QWEN3_8B,
        _DENSE_8B,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes=_NO_THINKING,
        template={"enable_thinking": False},
    ),
    _published(
        "qwen3-coder-30b-a3b",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        "z-lab/Qwen3-Coder-30B-A3B-DFlash",
        30.53e9,
        shapes.QWEN3_CODER_30B_A3B,
        _SPARSE,
        target_layer_ids=(1, 12, 23, 34, 45),
        block_size=16,
        notes="mixture of experts",
    ),
    _hybrid(
        "3.5-4B",
        4.206e9,
        shapes.QWEN35_4B,
        _DENSE_4B,
        target_layer_ids=(1, 8, 15, 22, 29),
        notes="hybrid",
    ),
    _hybrid(
        "3.5-9B",
        8.954e9,
        shapes.QWEN35_9B,
        DraftShape(6, 4096, 12288, 32, 8, 128, captured=8),
        notes="hybrid; sizes of the retrained drafter (the first release has 5 layers)",
    ),
    _hybrid(
        "3.5-27B",
        26.896e9,
        shapes.QWEN35_27B,
        DraftShape(6, 5120, 17408, 32, 8, 128),
        notes="hybrid; drafter's size is approximate: six layers as retrained, widths of the first release",
    ),
    _hybrid(
        "3.5-35B-A3B",
        34.661e9,
        shapes.QWEN35_35B_A3B,
        _SPARSE,
        target_layer_ids=(1, 10, 19, 28, 37),
        notes="hybrid mixture of experts; the drafter was trained with thinking",
        template={"enable_thinking": True},
    ),
    _hybrid(
        "3.6-27B",
        26.896e9,
        shapes.QWEN35_27B,
        _DENSE_27B,
        target_layer_ids=(1, 16, 31, 46, 61),
        notes="hybrid; four causal sliding draft layers (window 2048) and a full one",
    ),
    _hybrid(
        "3.6-35B-A3B",
        34.661e9,
        shapes.QWEN35_35B_A3B,
        _SPARSE,
        target_layer_ids=(1, 10, 19, 28, 37),
        notes="hybrid mixture of experts; sliding draft layers, the last one full",
    ),
    _published(
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B-Instruct",
        "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        8.03e9,
        shapes.LLAMA31_8B,
        _DENSE_8B,
        target_layer_ids=(1, 8, 15, 22, 29),
        block_size=10,
        notes="gated: accept the licence on the hub first",
    ),
    _published(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        "z-lab/gpt-oss-20b-DFlash",
        20.91e9,
        shapes.GPT_OSS_20B,
        DraftShape(8, 2880, 7680, 64, 8, 64),
        target_layer_ids=(1, 6, 11, 16, 21),
        block_size=8,
        mask_token_id=200000,
        notes="mixture of experts with sliding layers; eager attention",
    ),
)
