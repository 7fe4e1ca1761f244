"""DDTree's best-first selection as plainly as it can be written: a heap of candidates, popped one by one.

The tests' oracle for `best_first`, and the baseline of benchmarks/tree_build.py. Written from the definition
alone and sharing no code with the package.
"""

import heapq
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class HeapTree:
    """Nodes in the order in which they left the heap, the root first."""

    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    log_probs: list[float]

    def __len__(self) -> int:
        return len(self.token_ids)

    def root_paths(self) -> dict[tuple[int, ...], float]:
        """Tokens from below the root down to each draft node → its cumulative log-probability."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.token_ids[1:], self.parents[1:], strict=True):
            paths.append((*paths[parent], token))
        return dict(zip(paths[1:], self.log_probs[1:], strict=True))


def scores(logits: torch.Tensor, budget: int) -> tuple[list[list[float]], list[list[int]]]:
    """Log-probabilities and ids of the `budget` most likely tokens of each position, best first."""
    top = logits.topk(min(budget, logits.shape[1]), dim=-1)
    log_probs = top.values - logits.logsumexp(-1, keepdim=True)
    return log_probs.tolist(), top.indices.tolist()


def select(root: int, log_probs: list[list[float]], ids: list[list[int]], budget: int) -> HeapTree:
    """Pop the most probable candidate, offer its next sibling and its first child, up to the budget."""
    depth, width = len(log_probs), len(log_probs[0]) if log_probs else 0
    tokens, parents, depths, totals = [root], [-1], [0], [0.0]
    # (minus log-probability, depth, parent, rank): equally probable candidates leave the shallower first.
    heap = [(-log_probs[0][0], 1, 0, 0)] if depth and width else []
    while heap and len(tokens) <= budget:
        cost, level, parent, rank = heap[0]
        row = log_probs[level - 1]
        node = len(tokens)
        tokens.append(ids[level - 1][rank])
        parents.append(parent)
        depths.append(level)
        totals.append(-cost)
        if rank + 1 < width:
            heapq.heapreplace(heap, (-totals[parent] - row[rank + 1], level, parent, rank + 1))
        else:
            heapq.heappop(heap)
        if level < depth:
            heapq.heappush(heap, (cost - log_probs[level][0], level + 1, node, 0))
    return HeapTree(tokens, parents, depths, totals)


def ancestor_mask(parents: list[int]) -> np.ndarray:
    """Row by row, (N, N) bool: what the parent sees, and the node itself."""
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents[1:], start=1):
        mask[node, :node] = mask[parent, :node]
    return mask


def tensors(tree: HeapTree) -> tuple[torch.Tensor, ...]:
    """What a verify pass needs: token ids, parents, depths, log-probabilities and the ancestor mask."""
    lists = (tree.token_ids, tree.parents, tree.depths)
    mask = torch.from_numpy(ancestor_mask(tree.parents))
    return (*(torch.tensor(values) for values in lists), torch.tensor(tree.log_probs), mask)


def build(root: int, logits: torch.Tensor, budget: int) -> HeapTree:
    """Scores and selection in one call."""
    if budget == 0:
        return HeapTree([root], [-1], [0], [0.0])
    return select(root, *scores(logits, budget), budget)
