"""From draft logits to a DraftTree: the greedy chain, and DDTree's best-first selection within a node budget.

A block drafter predicts every position of its block independently, so the log-probability of a prefix is the
sum of its tokens' log-probabilities, and the tree that maximises the expected acceptance under the drafter
holds the `budget` most probable prefixes. The textbook pops them off a heap, one by one. Here the few tokens
that can occur in them are found first, in all positions at once, on the drafter's device; they come to the
host in one transfer, where prefixes then grow level by level.

A logit of -inf marks an impossible token: a tree holds no prefix with one in it. Scores are float64 sums of
log-probabilities that start at -1, not 0, at the root: see `_leading`.

Ties: of equally probable prefixes the shallower goes first (so a parent precedes its child even where the
child's token has probability 1), then the one whose parent goes first, then the lower column of the logits.
Only among tokens that tie for the last place of a budget may a lower column be passed over.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.trees.draft_tree import DraftTree

MAX_BUDGET = 4096  # an ancestor mask of 16 MiB; the literature stops at 1,024 nodes
# Stands for log 0: finite, so that sums keep an order, and -inf as soon as it is rounded to float32.
IMPOSSIBLE = -1e250


def chain(
    root: int,
    draft_logits: Float[Tensor, "depth vocab"],
    vocabulary: Int[Tensor, "vocab"] | None = None,
) -> DraftTree:
    """The greedy chain: the most likely token of every position below the root, as DFlash verifies it.

    `vocabulary[c]` is the token id of logits column c (identity if None). Of equal logits the lowest column
    is taken. The chain ends before the first position where every logit is -inf. Raises ValueError on NaN or
    +inf logits and on shapes, dtypes or devices that do not fit.

    >>> chain(7, torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])).token_ids
    tensor([7, 1, 0])
    """
    _check_inputs(draft_logits, vocabulary)
    logits = draft_logits.detach()
    greedy, ids = _greedy_log_probs(logits, logits.amax(1)), token_ids(logits.argmax(1), vocabulary)
    greedy, ids = torch.cat((greedy, ids)).cpu().numpy().reshape(2, len(logits))  # float64, exact for ids
    _check_numbers(greedy)
    totals = np.concatenate(([0.0], greedy.cumsum()))
    totals = totals[totals > IMPOSSIBLE]
    depths = np.arange(len(totals))
    return _tree(root, ids[: len(totals) - 1], depths - 1, depths, totals)


def best_first(
    root: int,
    draft_logits: Float[Tensor, "depth vocab"],
    budget: int,
    vocabulary: Int[Tensor, "vocab"] | None = None,
) -> DraftTree:
    """The root and the `budget` prefixes of highest summed log-probability, in descending order of it.

    `vocabulary[c]` is the token id of logits column c (identity if None). If fewer than `budget` prefixes are
    possible (small vocabulary, logits of -inf), the tree holds all of them. Raises ValueError on a budget
    below 0 or above MAX_BUDGET, on NaN or +inf logits, and on shapes, dtypes or devices that do not fit.
    Source: DDTree, best-first tree construction.

    >>> logits = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0]]).log()
    >>> print(best_first(7, logits, budget=4))
    0: 7 (0.00)
      1: 0 (-0.69)
        2: 0 (-0.80)
      3: 1 (-1.20)
        4: 0 (-1.31)
    """
    _check_inputs(draft_logits, vocabulary)
    if not 0 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget must be from 0 to {MAX_BUDGET} draft nodes, got {budget}")
    logits = draft_logits.detach()[:budget]  # a prefix of d tokens needs the d - 1 shorter ones in the tree
    if len(logits) == 0:
        return DraftTree.root_only(root)
    return _select(root, _top_tokens(logits, vocabulary, budget), budget)


@dataclass(frozen=True)
class _DraftTokens:
    """Draft tokens: ids, positions (0 = the first), log-probabilities, and scores behind the greedy prefix.

    In descending order of their scores, hence those of one position in descending order of probability.
    """

    ids: Float[np.ndarray, "tokens"]  # float64 too
    positions: Int[np.ndarray, "tokens"]
    log_probs: Float[np.ndarray, "tokens"]  # float64
    scores: Float[np.ndarray, "tokens"]  # float64


def _top_tokens(logits: Tensor, vocabulary: Tensor | None, budget: int) -> _DraftTokens:
    """The tokens that can occur in the tree: the `budget` best behind a greedy prefix, all positions alike.

    The greedy prefix followed by a token is the best of all prefixes that hold this token at this position,
    so where `budget` other tokens do better, none of those prefixes can be kept.
    """
    depth, vocab = logits.shape
    count = min(budget, depth * vocab)
    # Columns are put into groups: the best `count` tokens lie in the `count` groups of best maximum, and only
    # those are looked at one by one. This size balances the two rankings. Members of a group are `stride`
    # columns apart because a maximum over a middle dimension is vectorised. The left-over columns all go on.
    size = min(vocab, max(1, isqrt(depth * vocab // count)))
    stride = vocab // size
    groups = _groups(depth, vocab, size, logits.device)
    maxima = logits[:, : size * stride].unflatten(1, (size, stride)).amax(1)  # (depth, stride)
    peak = torch.cat((maxima, logits[:, size * stride :]), dim=1).amax(1)
    greedy = _greedy_log_probs(logits, peak)
    before = torch.cat((greedy.new_full((1,), -1.0), greedy[:-1])).cumsum(0)  # (depth,), of greedy prefixes
    peak = peak.double().clamp_(min=IMPOSSIBLE)

    scores = _log_probs(maxima, peak[:, None], greedy[:, None]).add_(before[:, None]).flatten()
    best = _leading(scores, min(count, depth * stride))
    members = groups.first.index_select(0, best)[:, None] + groups.offsets  # (groups, size)
    rows = groups.row.index_select(0, best)[:, None].expand_as(members)
    cells = torch.cat((members.flatten(), groups.left_over))  # (candidates,), counted through all rows
    rows = torch.cat((rows.flatten(), groups.left_over_row))

    log_probs = _log_probs(logits.take(cells), peak.index_select(0, rows), greedy.index_select(0, rows))
    scores = before.index_select(0, rows).add_(log_probs)
    best = _leading(scores, count, places=cells)
    rows, cells = rows.index_select(0, best), cells.index_select(0, best)
    ids = token_ids(cells - rows * vocab, vocabulary)
    found = (ids, rows, log_probs.index_select(0, best), scores.index_select(0, best))
    host = torch.cat((greedy, *found)).cpu().numpy()  # one transfer: float64, exact for ids and rows
    _check_numbers(host[:depth])
    ids, positions, log_probs, scores = host[depth:].reshape(len(found), count)
    return _DraftTokens(ids, positions.astype(np.int64), log_probs, scores)


class _Groups(NamedTuple):
    """Row and first member of each group, offsets of its members, and the left-over cells with their rows."""

    row: Tensor
    first: Tensor
    offsets: Tensor
    left_over: Tensor
    left_over_row: Tensor


@lru_cache(maxsize=64)  # depends on sizes only, and a decoding loop asks for the same few in every round
def _groups(depth: int, vocab: int, size: int, device: torch.device) -> _Groups:
    stride = vocab // size
    rows = torch.arange(depth, device=device)[:, None]
    first = rows * vocab + torch.arange(stride, device=device)  # (depth, stride)
    left_over = rows * vocab + torch.arange(size * stride, vocab, device=device)
    return _Groups(
        row=rows.expand_as(first).flatten(),
        first=first.flatten(),
        offsets=torch.arange(0, size * stride, stride, device=device),
        left_over=left_over.flatten(),
        left_over_row=rows.expand_as(left_over).flatten(),
    )


def _greedy_log_probs(logits: Tensor, peak: Tensor) -> Tensor:
    """Log-probability (float64) of the most likely token, of logit `peak`, at every position."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    greedy = logits.log_softmax(-1, dtype=wide).amax(-1)
    greedy = greedy.masked_fill(peak == -torch.inf, -torch.inf)  # else NaN where no token is possible
    return _summable(greedy.double())


def _log_probs(values: Tensor, peak: Tensor, greedy: Tensor) -> Tensor:
    """Of tokens with these logits, where the most likely one has `peak` and the log-probability `greedy`."""
    return _summable((values - peak).add_(greedy))


def _summable(log_probs: Tensor) -> Tensor:
    """Made finite, in place, and multiples of 2^-36, whose float64 sums are exact above -10^5: equals tie."""
    return log_probs.mul_(2.0**36).round_().mul_(2.0**-36).clamp_(min=IMPOSSIBLE)


def _leading(scores: Tensor, count: int, places: Tensor | None = None) -> Tensor:
    """Indices of the `count` highest scores (float64, at most -1), best first; ties go to the lower place."""
    # topk breaks ties as it likes and a stable sort costs ten times as much, so keys are made unique: places
    # move them apart by 2^-50, relatively, far below the float32 resolution of the log-probabilities. This is
    # why scores start at -1: zeros, the log-probabilities of certain tokens, would not move.
    places = _places(len(scores), scores.device) if places is None else places.double()
    return torch.addcmul(scores, scores, places, value=2.0**-50).topk(count).indices


@lru_cache(maxsize=64)
def _places(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.float64, device=device)


def _check_numbers(greedy: np.ndarray) -> None:
    """One NaN or +inf makes the greedy log-probability of its position NaN."""
    if np.isnan(greedy).any():
        raise ValueError(
            "draft logits must not be NaN or +inf: check the drafter's weights and the dtype it runs in"
        )


def _select(root: int, tokens: _DraftTokens, budget: int) -> DraftTree:
    """The `budget` best prefixes of these tokens, level by level, without those that are impossible."""
    positions = tokens.positions
    by_position = positions.argsort(kind="stable")
    sizes = np.bincount(positions)
    ends = sizes.cumsum()
    starts = ends - sizes
    log_probs = tokens.log_probs[by_position]
    # Each token behind the greedy prefix is one prefix: if there are `budget` tokens, as many prefixes reach
    # the lowest of their scores, and none below that needs a look. Impossible ones stay out in any case.
    floor = IMPOSSIBLE / 10
    if len(tokens.scores) == budget:
        floor = max(floor, tokens.scores.min())

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
    ids = tokens.ids[by_position[starts[position] + rank]]
    return _tree(root, ids, parents, depths, all_scores[kept] + 1)


def _tree(
    root: int, ids: np.ndarray, parents: np.ndarray, depths: np.ndarray, totals: np.ndarray
) -> DraftTree:
    """Of the draft nodes' ids (N - 1,); the other columns (N,) hold the root too."""
    tokens = np.concatenate(([root], ids)).astype(np.int64)
    return DraftTree(*map(torch.from_numpy, (tokens, parents, depths, totals.astype(np.float32))))


def token_ids(columns: Int[Tensor, "*n"], vocabulary: Int[Tensor, "vocab"] | None) -> Int[Tensor, "*n"]:
    """Token ids of columns of draft logits; `vocabulary` names the id of each, None: column k is token k."""
    return columns if vocabulary is None else vocabulary.long()[columns]


def _check_inputs(draft_logits: Tensor, vocabulary: Tensor | None) -> None:
    if draft_logits.dim() != 2 or draft_logits.shape[1] == 0 or not draft_logits.is_floating_point():
        raise ValueError(
            "draft logits must be a floating-point tensor of shape (depth, vocab), "
            f"got {draft_logits.dtype} of shape {tuple(draft_logits.shape)}"
        )
    if vocabulary is None:
        return
    if vocabulary.shape != draft_logits.shape[1:] or vocabulary.is_floating_point():
        raise ValueError(
            f"vocabulary must hold one integer token id for each of the {draft_logits.shape[1]} columns of "
            f"the draft logits, got {vocabulary.dtype} of shape {tuple(vocabulary.shape)}"
        )
    if vocabulary.device != draft_logits.device:
        raise ValueError(
            f"vocabulary is on {vocabulary.device} and the draft logits are on {draft_logits.device}: "
            "move one of them with .to()"
        )
