"""From draft logits to a DraftTree: the greedy chain, and DDTree's best-first selection within a node budget.

A block drafter predicts every position of its block independently, so the log-probability of a prefix is the
sum of its tokens' log-probabilities, and the tree that maximises the expected acceptance under the drafter
holds the `budget` most probable prefixes. The textbook pops them off a heap, one by one. Here the few tokens
that can occur in them are found first, in all positions at once; prefixes then grow level by level.

Ties: of equally probable prefixes the shallower goes first (so a parent precedes its child even where the
child's token has probability 1), then the one whose parent goes first, then the lower column of the logits.
Only among tokens that tie for the last place of a budget may a lower column be passed over.
"""

from functools import lru_cache
from math import isqrt
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.trees.draft_tree import DraftTree, require
from ddtree_core.trees.selection import IMPOSSIBLE, DraftTokens, leading, select_on_device, select_on_host

MAX_BUDGET = 4096  # an ancestor mask of 16 MiB; the literature stops at 1,024 nodes


def chain(
    root: int,
    draft_logits: Float[Tensor, "depth vocab"],
    vocabulary: Int[Tensor, "vocab"] | None = None,
) -> DraftTree:
    """The greedy chain: the most likely token of every position below the root, as DFlash verifies it.

    `vocabulary[c]` is the token id of logits column c (identity if None). Of equal logits the lowest column
    is taken. On a CPU the chain ends before the first position where every logit is -inf; elsewhere such a
    position keeps a node of log-probability -inf, because the length may not depend on the data there.
    Raises ValueError on NaN or +inf logits and on shapes, dtypes or devices that do not fit.

    >>> chain(7, torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])).token_ids
    tensor([7, 1, 0])
    """
    _check_inputs(draft_logits, vocabulary)
    logits = draft_logits.detach()
    scores = _running_sums(_greedy_log_probs(logits, logits.amax(1)), start=0.0)
    depths = torch.arange(len(scores), device=logits.device)
    tokens = torch.cat((depths.new_full((1,), root), token_ids(logits.argmax(1), vocabulary)))
    size = int((scores > IMPOSSIBLE).sum()) if scores.device.type == "cpu" else len(scores)
    return DraftTree(tokens[:size], depths[:size] - 1, depths[:size], scores[:size].float())


def best_first(
    root: int,
    draft_logits: Float[Tensor, "depth vocab"],
    budget: int,
    vocabulary: Int[Tensor, "vocab"] | None = None,
) -> DraftTree:
    """The root and the `budget` prefixes of highest summed log-probability, in descending order of it.

    `vocabulary[c]` is the token id of logits column c (identity if None). If fewer than `budget` prefixes
    exist (small vocabulary), the tree holds all of them. A logit of -inf marks an impossible token: a CPU
    build leaves out every prefix that holds one; elsewhere the size may not depend on the data, so where
    fewer than `budget` prefixes are possible the remaining nodes are impossible ones, last in the tree, with
    log-probability -inf. Raises ValueError on a budget below 0 or above MAX_BUDGET, on NaN or +inf logits,
    and on shapes, dtypes or devices that do not fit. Source: DDTree, best-first tree construction.

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
        return DraftTree.root_only(root, logits.device)
    tokens = _top_tokens(logits, vocabulary, budget)
    select = select_on_host if logits.device.type == "cpu" else select_on_device
    return select(root, tokens, budget)


def _top_tokens(logits: Tensor, vocabulary: Tensor | None, budget: int) -> DraftTokens:
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
    before = _running_sums(greedy[:-1], start=-1.0)  # (depth,), scores of the greedy prefixes
    peak = peak.double().clamp_(min=IMPOSSIBLE)

    scores = _log_probs(maxima, peak[:, None], greedy[:, None]).add_(before[:, None]).flatten()
    best = leading(scores, min(count, depth * stride))
    members = groups.first.index_select(0, best)[:, None] + groups.offsets  # (groups, size)
    rows = groups.row.index_select(0, best)[:, None].expand_as(members)
    cells = torch.cat((members.flatten(), groups.left_over))  # (candidates,), counted through all rows
    rows = torch.cat((rows.flatten(), groups.left_over_row))

    log_probs = _log_probs(logits.take(cells), peak.index_select(0, rows), greedy.index_select(0, rows))
    scores = before.index_select(0, rows).add_(log_probs)
    best = leading(scores, count, places=cells)
    rows, cells = rows.index_select(0, best), cells.index_select(0, best)
    return DraftTokens(
        ids=token_ids(cells - rows * vocab, vocabulary),
        positions=rows,
        log_probs=log_probs.index_select(0, best),
        scores=scores.index_select(0, best),
        depth=depth,
        vocab=vocab,
    )


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
    sentence = "draft logits must not be NaN or +inf: check the drafter's weights and the dtype it runs in"
    require((greedy == greedy).all(), sentence)
    return _summable(greedy.double())


def _log_probs(values: Tensor, peak: Tensor, greedy: Tensor) -> Tensor:
    """Of tokens with these logits, where the most likely one has `peak` and the log-probability `greedy`."""
    return _summable((values - peak).add_(greedy))


def _summable(log_probs: Tensor) -> Tensor:
    """Made finite, in place, and multiples of 2^-36, whose float64 sums are exact above -10^5: equals tie."""
    return log_probs.mul_(2.0**36).round_().mul_(2.0**-36).clamp_(min=IMPOSSIBLE)


def _running_sums(values: Tensor, start: float) -> Tensor:
    return torch.cat((values.new_full((1,), start), values)).cumsum(0)


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
