"""What is known of a pair before anything is loaded: the form of a registry row."""

from dataclasses import dataclass, field
from typing import Any

Revisions = tuple[str | None, str | None]  # hub revisions of target and drafter


@dataclass(frozen=True)
class PublishedTau:
    """A published mean acceptance length τ: tokens per round, accepted draft tokens and the bonus token."""

    dataset: str
    method: str  # "dflash", "ddtree", or the name of another drafter for the same target
    tau: float
    source: str
    budget: int | None = None  # draft-tree nodes; None for a chain
    temperature: float | None = 0.0  # None where the source does not tell


@dataclass(frozen=True)
class DraftShape:
    """Shape of a DFlash draft body: enough to count its parameters and its context cache."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    captured: int = 5  # target blocks whose outputs it reads
    table_rows: int = 0  # rows of an embedding and an output head of its own; otherwise it reads the target's

    @property
    def parameters(self) -> int:
        """Parameters of the body (`fc`, two norms, the blocks) and of its own tables."""
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.mlp + 2 * self.hidden
        outside = (self.captured * self.hidden + 2 + self.table_rows) * self.hidden
        return self.layers * layer + outside

    @property
    def context_values(self) -> int:
        """Numbers that its cache keeps per committed token: a key and a value per layer and head."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class PairSpec:
    """One row: where target and drafter come from, and what is known about them without loading."""

    name: str
    target: str  # hub id, or what it is for pairs that need no hub
    drafter: str
    target_layer_ids: tuple[int, ...] | None = None  # k: output of the target's block k (0-based)
    block_size: int | None = None  # root and block_size − 1 drafted tokens
    mask_token_id: int | None = None
    notes: str = ""
    template: dict[str, Any] = field(default_factory=dict)  # chat template, as in the drafter's training
    tiny: str | None = None  # kind of a tiny random target
    shape: dict[str, Any] | None = None  # the target's config.json, as far as sizes depend on it
    draft_shape: DraftShape | None = None
    published: tuple[PublishedTau, ...] = ()
