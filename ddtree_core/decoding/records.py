"""What a run leaves behind: one record per round, and one per generated text."""

from dataclasses import dataclass

from ddtree_core.trees import DraftTree


@dataclass(frozen=True)
class Round:
    """One round: a tree was drafted, verified in one pass, and a path of it committed.

    Round 0 is the prefill: its tree is the prompt's last token alone, and it commits the first token.
    """

    index: int
    tree: DraftTree
    target_tokens: list[int]  # the target's choice after every node, length N
    path: list[int]  # accepted nodes, root first
    tokens: list[int]  # the accepted draft tokens, then the bonus token; cut at a stop or at the token limit
    seconds: dict[str, float]  # by stage: draft, tree, verify, accept, commit (prefill for round 0)

    @property
    def acceptance_length(self) -> int:
        """τ: tokens that this round committed before any cut, the bonus token included."""
        return len(self.path)

    @property
    def drafted_depth(self) -> int:
        """Depth of the deepest node of the tree."""
        return int(self.tree.depths.max())

    @property
    def bonus(self) -> int:
        """The target's choice after the last accepted node."""
        return self.target_tokens[self.path[-1]]


@dataclass(frozen=True)
class Generation:
    """One generated text with the rounds that made it."""

    pair: str
    method: str  # "ddtree", "dflash" or "autoregressive"
    budget: int | None  # draft nodes per tree, for "ddtree"
    prompt_ids: list[int]
    ids: list[int]  # new tokens, a final stop token included
    text: str  # without the stop token or stop string that ended it
    rounds: tuple[Round, ...]  # the verify rounds; the first token came from the prefill
    seconds: dict[str, float]  # by stage, "prefill" and "total" (wall clock) included
    finish_reason: str  # "stop" or "length"
    temperature: float

    @property
    def acceptance_lengths(self) -> list[int]:
        """τ of every round."""
        return [r.acceptance_length for r in self.rounds]

    @property
    def tokens_per_round(self) -> float:
        """Mean τ over the rounds; nan without any."""
        return sum(self.acceptance_lengths) / len(self.rounds) if self.rounds else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """New tokens over wall-clock seconds, prefill included."""
        return len(self.ids) / self.seconds["total"]
