"""The `budget` most probable prefixes of a few ranked tokens per position: one algorithm, in two forms.

Both extend the best prefixes of one length by one token, keep the best of these, and so on, with a handful
of array operations per level; in the end they take the best of all levels. On the host, where looking at a
number is free, sizes follow the data, and NumPy is used for its small overhead. On a device, looking at a
number stalls the queue: there, sizes follow from budget, depth and vocabulary, and nothing is read back.

Scores are float64 sums of log-probabilities that start at -1, not 0, at the root: see `leading`.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.trees.draft_tree import DraftTree

# Stands for log 0: finite, so that sums keep an order, and -inf as soon as it is rounded to float32.
IMPOSSIBLE = -1e250
_ABSENT = -1e255  # a token that is no candidate: below every sum of impossible ones


@dataclass(frozen=True)
class DraftTokens:
    """Draft tokens: ids, positions (0 = the first), log-probabilities, and scores behind the greedy prefix.

    In descending order of their scores, hence those of one position in descending order of probability.
    """

    ids: Int[Tensor, "tokens"]
    positions: Int[Tensor, "tokens"]
    log_probs: Float[Tensor, "tokens"]  # float64
    scores: Float[Tensor, "tokens"]  # float64
    depth: int  # positions in the draft block
    vocab: int  # tokens that exist at each position


def select_on_host(root: int, tokens: DraftTokens, budget: int) -> DraftTree:
    """Best-first selection on a CPU, without the prefixes that hold an impossible token."""
    positions = tokens.positions.numpy()
    by_position = positions.argsort(kind="stable")
    sizes = np.bincount(positions)
    ends = sizes.cumsum()
    starts = ends - sizes
    log_probs = tokens.log_probs.numpy()[by_position]
    floor = _floor(tokens.scores.numpy(), positions, by_position[starts], log_probs[starts], budget)

    scores = np.full(1, -1.0)
    levels, picks = [scores], []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        joined = (scores[:, None] + log_probs[start:end]).ravel()
        pick = (joined >= floor).nonzero()[0]
        if len(scores) > 1 and end - start > 1:  # else in order already
            pick = pick[(-joined[pick]).argsort(kind="stable")][:budget]
        scores = joined[pick]
        levels.append(scores)
        picks.append(pick)

    all_scores = np.concatenate(levels)  # the root, then level after level
    widths = [len(level) for level in levels]
    kept = (-all_scores).argsort(kind="stable")[: budget + 1]
    depths = np.arange(len(levels)).repeat(widths)[kept]
    node_at = np.empty_like(all_scores, dtype=np.int64)
    node_at[kept] = np.arange(len(kept))
    position = depths[1:] - 1  # (N - 1,), as all that follows: the root is set apart
    above, rank = np.divmod(np.concatenate(picks)[kept[1:] - 1], sizes[position])
    level_start = np.array([0, *accumulate(widths)])[position]
    parents = np.full_like(kept, -1)
    parents[1:] = node_at[level_start + above]
    token_ids = np.full_like(kept, root)
    token_ids[1:] = tokens.ids.numpy()[by_position[starts[position] + rank]]
    totals = (all_scores[kept] + 1).astype(np.float32)
    return DraftTree(*map(torch.from_numpy, (token_ids, parents, depths, totals)))


def _floor(
    scores: np.ndarray, positions: np.ndarray, greedy: np.ndarray, greedy_log_probs: np.ndarray, budget: int
) -> float:
    """A score that `budget` prefixes are known to reach, so that lower ones need not be looked at.

    `greedy` holds the index of the best token of each position.
    """
    lowest = IMPOSSIBLE / 10  # of what is possible
    if len(scores) < budget:
        return lowest
    floor = scores.min()  # each token behind the greedy prefix is one prefix
    if budget > 256:
        # Where there is much to leave out, it pays to let the best of these run on greedily.
        few = budget // 4
        reach = greedy_log_probs.cumsum()
        reached = scores[:few, None] + (reach - reach[positions[:few], None])  # (few, depth)
        reached[np.arange(len(reach)) < positions[:few, None]] = -np.inf
        on_chain = greedy[greedy < few]  # they run on into one another: each counts once, as it stands
        reached[on_chain] = -np.inf
        reached = np.concatenate((reached.ravel(), scores[few:], scores[on_chain]))
        slack = 1 + 1e-12  # for sums so large that the order of adding shows
        floor = max(floor, np.partition(reached, -budget)[-budget] * slack)
    return max(floor, lowest)


def select_on_device(root: int, tokens: DraftTokens, budget: int) -> DraftTree:
    """Best-first selection on any device, with sizes that do not depend on the data and nothing read back."""
    device, ranks = tokens.ids.device, min(budget, tokens.vocab)
    by_position = tokens.positions.argsort(stable=True)
    position = tokens.positions[by_position]
    starts = torch.searchsorted(position, torch.arange(tokens.depth, device=device))
    cell = position * ranks + torch.arange(len(position), device=device) - starts[position]
    ids = tokens.ids.new_zeros(tokens.depth * ranks).scatter(0, cell, tokens.ids[by_position])
    absent = tokens.log_probs.new_full((tokens.depth * ranks,), _ABSENT)
    log_probs = absent.scatter(0, cell, tokens.log_probs[by_position]).view(tokens.depth, ranks)

    scores = log_probs.new_full((1,), -1.0)
    levels, cells_above, cells = [scores], [], []
    for depth, row in enumerate(log_probs):
        above, rank = _pairs(len(scores), ranks, budget, device)
        joined = scores[above] + row[rank]
        best = leading(joined, min(budget, len(scores) * ranks))
        scores = joined[best]
        cells_above.append(above[best] + sum(map(len, levels[:-1])))
        cells.append(rank[best] + depth * ranks)
        levels.append(scores)

    all_scores = torch.cat(levels)  # the root, then level after level
    kept = leading(all_scores, min(budget + 1, len(all_scores)))  # the root leads: best score, lowest place
    nodes = torch.arange(len(kept), device=device)
    node_at = torch.empty_like(all_scores, dtype=torch.int64).scatter(0, kept, nodes)
    draft = kept[1:] - 1
    parents = node_at[torch.cat(cells_above)[draft]]
    cell = torch.cat(cells)[draft]
    return DraftTree(
        token_ids=torch.cat((ids.new_full((1,), root), ids[cell])),
        parents=torch.cat((parents.new_full((1,), -1), parents)),
        depths=torch.cat((cell.new_zeros(1), cell // ranks + 1)),
        log_probs=(all_scores[kept] + 1).float(),
    )


def leading(scores: Tensor, count: int, places: Tensor | None = None) -> Tensor:
    """Indices of the `count` highest scores (float64, at most -1), best first; ties go to the lower place."""
    # topk breaks ties as it likes and a stable sort costs ten times as much, so keys are made unique: places
    # move them apart by 2^-50, relatively, far below the float32 resolution of the log-probabilities. This is
    # why scores start at -1: zeros, the log-probabilities of certain tokens, would not move.
    places = _places(len(scores), scores.device) if places is None else places.double()
    return torch.addcmul(scores, scores, places, value=2.0**-50).topk(count).indices


# Both depend on sizes only, and a decoding loop asks for the same few in every round.


@lru_cache(maxsize=64)
def _places(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.float64, device=device)


@lru_cache(maxsize=64)
def _pairs(prefixes: int, tokens: int, budget: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ranks (i, j) of a prefix and a next token that may be kept together, in lexicographic order."""
    # Joining a prefix ranked no worse than i with a token ranked no worse than j never scores lower, so
    # (i + 1)(j + 1) - 1 pairs go before (i, j): it is within the budget only if (i + 1)(j + 1) <= budget.
    above = torch.arange(min(prefixes, budget))
    children = (budget // (above + 1)).clamp(max=tokens)
    first = children.cumsum(0) - children
    rank = torch.arange(int(children.sum())) - first.repeat_interleave(children)
    return above.repeat_interleave(children).to(device), rank.to(device)
