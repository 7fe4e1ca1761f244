"""What vLLM's linear rule and a tree walk make of the same verified trees."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import torch

from ddtree_core.decoding.records import Round
from ddtree_core.trees import RULES, DraftTree, linear_chain, walk_batch

# The worked cases of the diagnosis: flat tokens, parents, the target's choice at every node. X is any token
# that no draft carries. In E4 the masks differ: under a tree mask the last choice was made after (R, B),
# under a causal one after (R, A, B).
NAMES = "RABCDEX"
R, A, B, C, D, E, X = range(7)
CASES: dict[str, tuple[list[int], list[int], list[int]]] = {
    "E1, siblings": ([R, A, B], [-1, 0, 0], [B, X, X]),
    "E2, breadth first": ([R, A, B, C, D], [-1, 0, 0, 1, 2], [A, C, X, E, X]),
    "E2, depth first": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [A, C, E, X, X]),
    "E3, path through B": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [B, X, X, D, E]),
    "E4, tree mask": ([R, A, B], [-1, 0, 0], [A, B, X]),
    "E4, causal mask": ([R, A, B], [-1, 0, 0], [A, B, C]),
}


def case_tree(name: str) -> DraftTree:
    """The tree of a worked case."""
    tokens, parents, _ = CASES[name]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    zeros = torch.zeros(len(tokens))
    return DraftTree(torch.tensor(tokens), torch.tensor(parents), torch.tensor(depths), zeros)


def spell(tokens: Sequence[int]) -> str:
    """Tokens of a worked case as letters."""
    return " ".join(NAMES[token] for token in tokens)


def emitted(rule: str, tree: DraftTree, target_tokens: Sequence[int]) -> list[int]:
    """Tokens that "linear" or "walk" commits: the accepted draft tokens, then the bonus token."""
    return RULES[rule](tree, torch.tensor(list(target_tokens))).tokens(tree)


def walk_cases() -> dict[str, list[int]]:
    """What the batched tree walk of `trees.batch_walk` commits on all worked cases, in one call."""
    sizes = [len(tokens) for tokens, _, _ in CASES.values()]
    tokens, parents, chosen = (
        torch.tensor([*chain.from_iterable(part)]) for part in zip(*CASES.values(), strict=True)
    )
    starts = torch.tensor([0, *accumulate(sizes)])
    accepted = walk_batch(tokens, parents, starts, chosen).to_list()
    return {name: one.tokens(case_tree(name)) for name, one in zip(CASES, accepted, strict=True)}


def reordered_round(made: Round, order: str) -> tuple[DraftTree, list[int]]:
    """A round's tree and the target's choice at every node, flattened "bfs" or "dfs"."""
    tree, nodes = made.tree.reordered(order)
    return tree, [made.target_tokens[node] for node in nodes]


def linear_path(made: Round, order: str) -> list[int]:
    """Nodes of the round's own tree that the linear rule accepts, root first, as far as they are a path of
    it.
    """
    tree, nodes = made.tree.reordered(order)
    accepted = linear_chain(tree, torch.tensor([made.target_tokens[node] for node in nodes])).path
    path = [0]
    for place in accepted[1:]:
        if int(tree.parents[place]) != place - 1:
            break  # accepted by order only: its parent is another node
        path.append(nodes[place])
    return path


def compare_rules(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Accepted draft tokens of every round under the walk, and under the linear rule on both flattenings.

    `lossless` tells whether the emitted tokens begin the walk's, which are the target's own.
    """
    rows = []
    for made in rounds:
        truth = emitted("walk", made.tree, made.target_tokens)
        rows.append({"round": made.index, "rule": "walk", "accepted": len(truth) - 1, "lossless": True})
        for order, name in (("bfs", "linear, breadth first"), ("dfs", "linear, depth first")):
            tokens = emitted("linear", *reordered_round(made, order))
            lossless = tokens == truth[: len(tokens)]
            rows.append(
                {"round": made.index, "rule": name, "accepted": len(tokens) - 1, "lossless": lossless}
            )
    return rows
