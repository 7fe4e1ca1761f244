"""What a drawing of a draft tree says: state, label and tooltip of each node, and one line of facts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ddtree_core.decoding.records import Round
from ddtree_core.reporting.tables.plain_text import printable
from ddtree_core.reporting.tree.labels import visible
from ddtree_core.trees.draft_tree import DraftTree

TokenText = Callable[[int], str]

_TOOLTIP_CHARS = 200


@dataclass(frozen=True)
class TreePicture:
    """A draft tree and what became of it; lists run over its nodes, then the bonus token if there is one.

    `path` holds the accepted nodes from the root (None: nothing was verified), `bonus` the token after them.
    """

    tree: DraftTree
    path: list[int] | None
    bonus: int | None
    token_text: TokenText
    title: str

    @cached_property
    def states(self) -> list[str]:
        """`root`, `accepted`, `rejected` (`drafted` where nothing was verified) or `bonus`."""
        kept = set(self.path or ())
        other = "drafted" if self.path is None else "rejected"
        states = ["accepted" if node in kept else other for node in range(len(self.tree))]
        states[0] = "root"
        return states if self.bonus is None else [*states, "bonus"]

    @cached_property
    def parents(self) -> list[int]:
        """Parent of each node, -1 for the root."""
        parents = self.tree.parents.tolist()
        return parents if self.bonus_parent is None else [*parents, self.bonus_parent]

    @property
    def bonus_parent(self) -> int | None:
        """The last accepted node, if a bonus token follows it."""
        return self.path[-1] if self.path and self.bonus is not None else None

    @cached_property
    def labels(self) -> list[str]:
        """Token texts with visible whitespace; `#id` where the text has nothing to show."""
        tokens = self.tree.token_ids.tolist()
        if self.bonus is not None:
            tokens.append(self.bonus)
        return [visible(self.token_text(token)) or f"#{token}" for token in tokens]

    @cached_property
    def tags(self) -> list[str]:
        """The drafter's probability of each token at its place; `root` and `bonus` have none."""
        tags = [_percent(probability) for probability in self._conditional]
        tags[0] = "root"
        return tags if self.bonus is None else [*tags, "bonus"]

    @cached_property
    def tooltips(self) -> list[str]:
        """Whole token text, token id, state and both probabilities, a few short lines."""
        tokens, log_probs = self.tree.token_ids.tolist(), self.tree.log_probs.tolist()
        lines = []
        for node, probability in enumerate(self._conditional):
            chance = f"drafter: {probability:.3g} here, {math.exp(log_probs[node]):.3g} along the path"
            state = "last committed token" if node == 0 else f"{self.states[node]}\n{chance}"
            lines.append(f"{self._whole(node)} (token {tokens[node]})\n{state}")
        if self.bonus is not None:
            reason = f"bonus: the target's own choice, {self.ending}"
            lines.append(f"{self._whole(-1)} (token {self.bonus})\n{reason}")
        return lines

    @property
    def ending(self) -> str:
        """Why the accepted path ends where it does."""
        children = self.tree.children(self.path[-1]) if self.path else []
        if self.bonus in [int(self.tree.token_ids[child]) for child in children]:
            return "drafted, but not accepted by this rule"  # a path other than the walk's
        return "not among the drafted tokens" if children else "after the last drafted token"

    @property
    def summary(self) -> str:
        """One line: size of the tree, acceptance length, and why the path ends."""
        count, depth = len(self.tree) - 1, int(self.tree.depths.max())
        drafted = "no draft nodes"
        if count:
            drafted = f"{count} draft node{'s' * (count > 1)}, depth {depth}"
        if self.path is None:
            return drafted
        accepted = len(self.path) - 1
        if self.bonus is None:
            return f"{drafted} · {accepted} accepted"
        length = f"acceptance length {accepted + 1} = {accepted} accepted + 1 bonus"
        return f"{drafted} · {length}" + (f" ({self.ending})" if count else "")

    @property
    def description(self) -> str:
        """The same in words for readers who do not see the picture."""
        if self.path is None:
            return f"{self.summary}."
        accepted = " ".join(self.labels[node] for node in self.path[1:]) or "none"
        bonus = f" Bonus token: {self.labels[-1]}." if self.bonus is not None else ""
        return f"{self.summary}. Accepted: {accepted}.{bonus}"

    @cached_property
    def _conditional(self) -> list[float]:
        log_probs, parents = self.tree.log_probs.tolist(), self.tree.parents.tolist()
        steps = [(own, log_probs[parent]) for own, parent in zip(log_probs, parents, strict=True)]
        # Below a node of probability 0 the difference would be inf - inf.
        return [math.exp(own - above) if above > -math.inf else 0.0 for own, above in steps]

    def _whole(self, node: int) -> str:
        text = self.labels[node]
        return text if len(text) <= _TOOLTIP_CHARS else f"{text[:_TOOLTIP_CHARS]}… ({len(text)} characters)"


def picture_of(
    round_or_tree: Round | DraftTree,
    token_text: TokenText | None = None,
    path: Sequence[int] | None = None,
    title: str | None = None,
) -> TreePicture:
    """The picture of a round, or of a bare tree; a given `path` replaces the round's own and its bonus token.

    Raises ValueError if `path` is not a path of the tree from its root.
    """
    each = None if isinstance(round_or_tree, DraftTree) else round_or_tree
    tree = round_or_tree if isinstance(round_or_tree, DraftTree) else round_or_tree.tree
    if path is None and each is not None:
        path = each.path
    nodes = None if path is None else _checked(tree, path)
    bonus = int(each.target_tokens[nodes[-1]]) if each is not None and nodes is not None else None
    if title is None:
        title = "Draft tree" if each is None else round_name(each)
    return TreePicture(tree, nodes, bonus, token_text or str, printable(title))


def _checked(tree: DraftTree, path: Sequence[int]) -> list[int]:
    nodes = [int(node) for node in path]
    if not nodes or not 0 <= nodes[-1] < len(tree) or tree.path(nodes[-1]) != nodes:
        raise ValueError(f"{nodes} is not a path of this tree: expected node indices from the root 0 down")
    return nodes


def round_name(each: Round) -> str:
    """What to call a round: round 0 of a decoding loop is its prefill."""
    return f"Round {each.index}" if each.index else "Prefill"


def _percent(probability: float) -> str:
    if probability < 0.01:
        return "<1%"
    return ">99%" if 0.995 <= probability < 0.9999995 else f"{probability:.0%}"
