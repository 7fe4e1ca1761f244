"""Which parts does a correct tree verification need? Every combination of them, decoded and compared.

A server that verifies drafts makes five choices: the attention mask over the nodes, their positions, the rule
of acceptance, which key/value rows it keeps, and the order in which the tree is flattened. The lab swaps one
choice at a time into the workbook's own loop and asks whether the text is still the target's own.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ddtree_core.decoding import Sampler, generate
from ddtree_core.decoding.compare import first_difference
from ddtree_core.decoding.loop import rounds
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models import ModelPair, Target
from ddtree_core.trees import RULES, DraftTree, best_first, chain


@dataclass(frozen=True)
class Design:
    """One way to verify a draft tree. `draft` "chain" replaces the tree by the drafter's greedy chain."""

    mask: str = "tree"  # "causal": a node sees all nodes before it; "tree": its ancestors
    positions: str = "depth"  # "arange": one position per node in order; "depth": one per level
    acceptance: str = "walk"  # "linear": compare with the next node in order; "walk": follow children
    cache: str = "path"  # "first": keep as many first rows as were accepted; "path": the rows of the path
    order: str = "dfs"  # flattening: "bfs" or "dfs"
    draft: str = "tree"

    def __str__(self) -> str:
        keep = {"first": "first slots", "path": "compaction"}[self.cache]
        shape = "chain" if self.draft == "chain" else f"{self.order.upper()} tree"
        return f"{shape}: {self.mask} mask, {self.positions}, {self.acceptance}, {keep}"


CHAIN = Design("causal", "arange", "linear", "first", "dfs", "chain")
# vLLM's V1 runner with its TREE_ATTN backend.
SERVER = Design("tree", "arange", "linear", "first", "bfs")
CORRECT = Design()
KEY_DESIGNS = (
    CHAIN,
    Design("causal", "arange", "linear", "first", "bfs"),
    SERVER,
    Design("causal", "arange", "walk", "first", "bfs"),
    Design("tree", "arange", "walk", "first", "bfs"),
    Design("tree", "depth", "walk", "first", "bfs"),
    CORRECT,
)


def all_designs() -> list[Design]:
    """The chain, then all 32 combinations."""
    parts = product(
        ("causal", "tree"), ("arange", "depth"), ("linear", "walk"), ("first", "path"), ("bfs", "dfs")
    )
    return [CHAIN, *(Design(*choice) for choice in parts)]


class ServerTarget(Target):
    """A target that verifies and commits as a design says, right or wrong."""

    def __init__(self, pair: ModelPair, design: Design):
        super().__init__(pair.model, pair.draft.layer_ids, pair.draft.device)
        self._design = design

    def commit(self, path: list[int]) -> Float[Tensor, "m width"]:
        if self._design.cache == "path" or self._pending is None:
            return super().commit(path)
        features = self._pending.features[torch.tensor(path, device=self._pending.features.device)]
        super().commit(list(range(len(path))))
        return features

    def _tree_layers(self, tree: DraftTree) -> AbstractContextManager[None]:
        # Recurrent layers have no mask: without one, they read the nodes in order.
        return super()._tree_layers(_as_chain(tree) if self._design.mask == "causal" else tree)

    def _positions(self, tree: DraftTree) -> Tensor:
        return super()._positions(_as_chain(tree) if self._design.positions == "arange" else tree)

    def _masks(self, tree: DraftTree) -> Tensor | dict[str, Tensor]:
        return super()._masks(_as_chain(tree) if self._design.mask == "causal" else tree)


def _as_chain(tree: DraftTree) -> DraftTree:
    """The nodes as one chain: its mask is the causal one, its positions are counted one by one."""
    order = torch.arange(len(tree))
    return DraftTree(tree.token_ids.cpu(), order - 1, order, tree.log_probs.cpu()).to(tree.device)


@dataclass(frozen=True)
class Trial:
    """One design on one prompt, against the autoregressive text."""

    design: Design
    equal: bool
    first_divergence: int | None  # index among the new tokens, None where the texts are equal
    tokens: int
    rounds: int


def try_design(
    pair: ModelPair, prompt_ids: list[int], reference: Sequence[int], design: Design, budget: int
) -> Trial:
    """Decode as many tokens as `reference` has (the autoregressive text) with a design, and compare."""

    def grow(root: int, logits: Tensor, vocabulary: Tensor | None = None) -> DraftTree:
        build = chain if design.draft == "chain" else partial(best_first, budget=budget)
        return build(root, logits, vocabulary=vocabulary).reordered(design.order)[0]

    stopper = Stopper(pair.tokenizer, pair.stop_ids, (), len(reference))
    _, *made = rounds(
        ServerTarget(pair, design),
        pair.open_drafter(prompt_ids),
        prompt_ids,
        grow,
        Sampler(),
        stopper,
        accept=RULES[design.acceptance],
    )
    place = first_difference(reference, stopper.ids)
    return Trial(design, place is None, place, sum(r.acceptance_length for r in made), len(made))


def compare_designs(
    pair: ModelPair,
    prompts: Sequence[list[int]],
    designs: Iterable[Design] | None = None,
    *,
    budget: int = 15,
    max_new_tokens: int = 48,
) -> list[dict[str, Any]]:
    """One row per design over all prompts (token ids): texts that are the target's own, tokens per round.

    Tokens per round of a design that writes another text say nothing about speed: that text is wrong.
    """
    references = [generate(pair, ids, "autoregressive", max_new_tokens=max_new_tokens).ids for ids in prompts]
    rows = []
    for design in designs or all_designs():
        trials = [
            try_design(pair, ids, reference, design, budget)
            for ids, reference in zip(prompts, references, strict=True)
        ]
        divergences = [t.first_divergence for t in trials if t.first_divergence is not None]
        rows.append(
            {
                "draft": design.draft,
                "mask": design.mask,
                "positions": design.positions,
                "acceptance": design.acceptance,
                "cache": design.cache,
                "order": design.order if design.draft == "tree" else "",
                "equal": sum(t.equal for t in trials),
                "prompts": len(trials),
                "tokens_per_round": sum(t.tokens for t in trials) / sum(t.rounds for t in trials),
                "first_divergence": min(divergences, default=None),
            }
        )
    return rows
