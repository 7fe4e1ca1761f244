"""The tree walk for a server's call: many requests, trees of different sizes, no host round trip.

The trees lie one after the other. `cu_nodes` holds where each begins: it starts with 0, ends with the number
of all nodes, and counts every node, the root included (as vLLM's `cu_num_logits`; its `cu_num_draft_tokens`
leaves out both the roots and the leading 0). Node numbers, in `parents` as in the result, count from the root
of their own request. Siblings carry distinct tokens, as in every DraftTree; this is not checked here.

Two forms give the same result: a Triton kernel, one program per request, and torch operations on all nodes at
once. Triton is optional and slow to import, so it is imported when first used. On a CPU the kernel runs in
Triton's interpreter, if TRITON_INTERPRET=1 is set before triton is imported.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from ddtree_core.trees.accept import Acceptance
from ddtree_core.trees.draft_tree import require

INTEGERS = (torch.int32, torch.int64)
NATIVE = "JITFunction"  # Triton's class of functions that a GPU runs; it has another for its interpreter
OFFSETS = "cu_nodes must start at 0, end at the number of nodes, and grow by 1 or more (a root) per request"
PARENTS = "each request needs its root first (parent -1) and 0 <= parents[i] < i at every other node i"

tl: Any = None  # triton.language, a global because that is where Triton looks for it; see `_compiled`


@dataclass(frozen=True, eq=False)
class BatchAcceptance:
    """Accepted nodes of each request (root first, then padded with -1), their number, and the bonus tokens.

    As in an Acceptance, `lengths` is also the number of tokens committed: the root was committed before, the
    bonus token takes its place.
    """

    nodes: Int[Tensor, "requests max_length"]
    lengths: Int[Tensor, "requests"]
    bonus: Int[Tensor, "requests"]

    def to_list(self) -> list[Acceptance]:
        """One Acceptance per request; reading them is a host round trip."""
        rows = zip(self.nodes.tolist(), self.lengths.tolist(), self.bonus.tolist(), strict=True)
        return [Acceptance(path=nodes[:length], bonus=bonus) for nodes, length, bonus in rows]


@dataclass(frozen=True, eq=False)
class CompactionIndex:
    """Row `source[r, k]` of request r's keys and values goes to its row `destination[r, k]`."""

    source: Int[Tensor, "requests max_length"]
    destination: Int[Tensor, "requests max_length"]


def walk_batch(
    token_ids: Int[Tensor, "total"],
    parents: Int[Tensor, "total"],
    cu_nodes: Int[Tensor, "offsets"],
    target_tokens: Int[Tensor, "total"],
    max_length: int | None = None,
    backend: Literal["auto", "triton", "torch"] = "auto",
) -> BatchAcceptance:
    """`tree_walk` for every request: `target_tokens[i]` is what the target chose after node i of the batch.

    `max_length` is the width of the result, and a longer path is cut there; the deepest depth plus 1, or the
    size of the largest tree, cuts none (None: the size that one tree can have among so many nodes). "auto"
    takes the Triton kernel on a GPU that has triton, else the torch form. Raises ValueError on shapes, dtypes
    or devices that do not fit, on an unusable backend, and, as a device-side assertion off the CPU, on wrong
    offsets or parents. Source: DDTree.

    >>> accepted = walk_batch(
    ...     token_ids=torch.tensor([7, 3, 5, 8]),  # root 7 with the children 3 and 5; a root 8 alone
    ...     parents=torch.tensor([-1, 0, 0, -1]),
    ...     cu_nodes=torch.tensor([0, 3, 4]),
    ...     target_tokens=torch.tensor([5, 1, 2, 9]),
    ...     max_length=3,
    ... )
    >>> accepted.nodes.tolist(), accepted.lengths.tolist(), accepted.bonus.tolist()
    ([[0, 2, -1], [0, -1, -1]], [2, 1], [2, 9])
    """
    _check_layout(token_ids, parents, cu_nodes, target_tokens)
    total, requests = len(token_ids), len(cu_nodes) - 1
    max_length = max(total - requests + 1, 1) if max_length is None else max_length
    if max_length < 1:
        raise ValueError(f"max_length must be 1 or more, because every path holds its root: got {max_length}")
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f'unknown backend {backend!r}: expected "auto", "triton" or "torch"')
    if backend == "auto":
        backend = "triton" if token_ids.is_cuda and type(_compiled()).__name__ == NATIVE else "torch"
    walk = _walk_triton if backend == "triton" else _walk_torch
    return walk(token_ids, parents, cu_nodes, target_tokens, max_length)


def compaction_index(acceptance: BatchAcceptance, histories: Int[Tensor, "requests"]) -> CompactionIndex:
    """Which rows of keys and values a commit moves where: `history + node` to `history + k` for path node k.

    `histories` holds the positions committed before the tree, whose rows follow them. Rows count positions
    within a request; in a paged cache, map both through its block table. Read all sources before writing, or
    move in ascending k. The padding repeats a request's last move, so the whole index can be applied without
    a look at the lengths. Raises ValueError unless there is one history per request, none negative.

    >>> accepted = BatchAcceptance(torch.tensor([[0, 2, -1]]), torch.tensor([2]), torch.tensor([9]))
    >>> index = compaction_index(accepted, torch.tensor([10]))
    >>> index.source.tolist(), index.destination.tolist()
    ([[10, 12, 12]], [[10, 11, 11]])
    """
    requests, device = acceptance.lengths.shape, acceptance.lengths.device
    if histories.shape != requests or histories.dtype not in INTEGERS or histories.device != device:
        raise ValueError(
            f"expected one int32 or int64 history on {device} for each of {requests[0]} requests, "
            f"got {histories.dtype} of shape {tuple(histories.shape)} on {histories.device}"
        )
    require((histories >= 0).all(), "histories must not be negative: they count committed positions")
    places = torch.arange(acceptance.nodes.shape[1], device=device)
    places = torch.minimum(places, acceptance.lengths[:, None] - 1)  # (requests, max_length)
    rows = histories[:, None].long()
    return CompactionIndex(rows + acceptance.nodes.gather(1, places), rows + places)


def _walk_torch(
    token_ids: Tensor, parents: Tensor, cu_nodes: Tensor, target_tokens: Tensor, max_length: int
) -> BatchAcceptance:
    total, requests, device = len(token_ids), len(cu_nodes) - 1, token_ids.device
    starts, ends = cu_nodes[:-1].long(), cu_nodes[1:].long()
    require((cu_nodes[0] == 0) & (cu_nodes[-1] == total) & (starts < ends).all(), OFFSETS)
    places = torch.arange(total, device=device)
    request = torch.searchsorted(ends, places, right=True)  # (total,)
    start = starts[request]
    nodes, is_root = places - start, places == start
    require(((parents < nodes) & (parents >= -1) & ((parents < 0) == is_root)).all(), PARENTS)

    above = start + parents.clamp(min=0)  # (total,), roots their own parents
    accepted = (token_ids == target_tokens[above]) | is_root
    # Pointer doubling, as in `tree_walk`. A path is cut at max_length, so no node below matters; those whose
    # root the jumps have not reached by then are dropped, because not all of their ancestors were looked at.
    for _ in range((min(max_length, total) - 1).bit_length()):
        accepted &= accepted[above]
        above = above[above]
    accepted &= above == start

    # Siblings carry distinct tokens, so the accepted nodes of a request form one path, in order.
    counts = torch.nn.functional.pad(accepted.cumsum(0), (1, 0))  # (total + 1,), accepted before each node
    rank = counts[:-1] - counts[start]
    slots = torch.where(accepted & (rank < max_length), request * max_length + rank, requests * max_length)
    padded = nodes.new_full((requests * max_length + 1,), -1)  # the last slot takes what is not accepted
    paths = padded.scatter_(0, slots, nodes)[:-1].view(requests, max_length)
    lengths = (counts[ends] - counts[starts]).clamp(max=max_length)
    last = starts + paths.gather(1, lengths[:, None] - 1).squeeze(1)
    return BatchAcceptance(paths, lengths, target_tokens[last].long())


def _walk_triton(
    token_ids: Tensor, parents: Tensor, cu_nodes: Tensor, target_tokens: Tensor, max_length: int
) -> BatchAcceptance:
    kernel = _compiled()
    if kernel is None:
        raise ValueError(
            'backend "triton" needs triton, which is not installed: take backend "torch", or install it '
            'with: pip install "ddtree-core[vllm-diagnosis]"'
        )
    if type(kernel).__name__ == NATIVE and not token_ids.is_cuda:
        raise ValueError(
            f'backend "triton" needs tensors on a GPU, got {token_ids.device}: move them with .to(), take '
            'backend "torch", or set TRITON_INTERPRET=1 before triton is first imported'
        )
    requests = len(cu_nodes) - 1
    if requests == 0:  # nothing to launch
        return _walk_torch(token_ids, parents, cu_nodes, target_tokens, max_length)
    inputs = (tensor.contiguous() for tensor in (token_ids, parents, cu_nodes, target_tokens))
    nodes = torch.empty((requests, max_length), dtype=torch.int64, device=token_ids.device)
    lengths, bonus = nodes.new_empty(requests), nodes.new_empty(requests)
    with torch.cuda.device_of(token_ids):
        kernel[requests,](*inputs, nodes, lengths, bonus, len(token_ids), max_length, num_warps=1)
    # The kernel checks what it reads anyway and reports a fault as a length.
    shortest = lengths.min()
    require(shortest >= 0, OFFSETS)
    require(shortest > 0, PARENTS)
    return BatchAcceptance(nodes, lengths, bonus)


@cache
def _compiled() -> Any:
    """The kernel as a Triton function; None where triton is not installed."""
    global tl
    try:
        tl = import_module("triton.language")
    except ImportError:
        return None
    # Of the class of Triton's own functions, which TRITON_INTERPRET decided when triton was imported.
    return type(tl.min)(_walk_kernel, do_not_specialize=["total", "max_length"])


def _walk_kernel(tokens, parents, cu_nodes, targets, nodes, lengths, bonus, total, max_length):
    """One program walks one request; its length is -1 if the offsets are wrong, 0 if the parents are."""
    block: tl.constexpr = 128  # pyright: ignore[reportInvalidTypeForm]  # nodes compared at once
    request, last_request = tl.program_id(0).to(tl.int64), tl.num_programs(0) - 1
    start = tl.load(cu_nodes + request).to(tl.int64)
    end = tl.load(cu_nodes + request + 1).to(tl.int64)
    fits = (start >= 0) & (start < end) & (end <= total)
    fits = fits & ((request > 0) | (start == 0)) & ((request < last_request) | (end == total))
    size = tl.where(fits, end - start, 0).to(tl.int32)
    path = nodes + request * max_length
    tl.store(path, 0)
    node, length, faults = 0, 1, 0
    # A child comes after its parent, so the walk never turns back to an earlier block: each is read once.
    for first in range(0, size, block):
        index = first + tl.arange(0, block)
        inside = index < size
        parent = tl.load(parents + start + index, mask=inside, other=-1)
        is_child = inside & (parent >= 0) & (parent < index)
        is_root = (index == 0) & (parent == -1)
        faults += tl.sum((inside != (is_child | is_root)).to(tl.int32))
        token = tl.load(tokens + start + index, mask=is_child, other=-1)
        choice = tl.load(targets + start + parent, mask=is_child, other=-1)
        chosen_at = tl.where(is_child & (token == choice), parent, -1).to(tl.int32)
        child = tl.min(tl.where(chosen_at == node, index, size))  # `size` means that there is none
        while (child < size) & (length < max_length):
            tl.store(path + length, child)
            node = child
            length += 1
            child = tl.min(tl.where(chosen_at == node, index, size))
    for first in range(0, max_length, block):
        place = first + tl.arange(0, block)
        tl.store(path + place, -1, mask=(place >= length) & (place < max_length))
    tl.store(bonus + request, tl.load(targets + start + node, mask=fits, other=-1))
    tl.store(lengths + request, tl.where(fits, tl.where(faults > 0, 0, length), -1))


def _check_layout(token_ids: Tensor, parents: Tensor, cu_nodes: Tensor, target_tokens: Tensor) -> None:
    """Everything that can be told from shapes, dtypes and devices, without reading an element."""
    flat, tensors = (token_ids, parents, target_tokens), (token_ids, parents, cu_nodes, target_tokens)
    shape = token_ids.shape
    if len(shape) != 1 or any(tensor.shape != shape for tensor in flat):
        raise ValueError(
            "token_ids, parents and target_tokens must have one shape (total nodes,), "
            f"got {[tuple(tensor.shape) for tensor in flat]}"
        )
    if cu_nodes.dim() != 1 or not 1 <= len(cu_nodes) <= len(token_ids) + 1:
        raise ValueError(
            "cu_nodes must have the shape (requests + 1,), with a root for each request among the "
            f"{len(token_ids)} nodes: got {tuple(cu_nodes.shape)}"
        )
    if any(tensor.dtype not in INTEGERS for tensor in tensors):
        raise ValueError(f"expected int32 or int64 tensors, got {[tensor.dtype for tensor in tensors]}")
    if any(tensor.device != token_ids.device for tensor in tensors):
        raise ValueError(f"a batch lives on one device, got {[str(tensor.device) for tensor in tensors]}")
