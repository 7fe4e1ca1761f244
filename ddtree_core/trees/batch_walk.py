"""The tree walk for a server's call: many requests, trees of different sizes, no host round trip.

The trees lie one after the other. `cu_nodes` holds where each begins: it starts with 0, ends with the number
of all nodes, and counts every node, the root included (as vLLM's `cu_num_logits`; its `cu_num_draft_tokens`
leaves out both the roots and the leading 0). Node numbers, in `parents` as in the result, count from the root
of their own request. Siblings carry distinct tokens, as in every DraftTree; this is not checked here.

Two forms give the same result: torch operations on all nodes at once, and the Triton kernel of `triton_walk`,
which is imported when first used.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ddtree_core.trees.accept import Acceptance

INTEGERS = (torch.int32, torch.int64)
OFFSETS = "cu_nodes must start at 0, end at the number of nodes, and grow by 1 or more (a root) per request"
PARENTS = "each request needs its root first (parent -1) and 0 <= parents[i] < i at every other node i"


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
        kernel = _triton_walk() if token_ids.is_cuda else None
        backend = "torch" if kernel is None or kernel.INTERPRETED else "triton"
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
    _require((histories >= 0).all(), "histories must not be negative: they count committed positions")
    places = torch.arange(acceptance.nodes.shape[1], device=device)
    places = torch.minimum(places, acceptance.lengths[:, None] - 1)  # (requests, max_length)
    rows = histories[:, None].long()
    return CompactionIndex(rows + acceptance.nodes.gather(1, places), rows + places)


def _walk_torch(
    token_ids: Tensor, parents: Tensor, cu_nodes: Tensor, target_tokens: Tensor, max_length: int
) -> BatchAcceptance:
    total, requests, device = len(token_ids), len(cu_nodes) - 1, token_ids.device
    starts, ends = cu_nodes[:-1].long(), cu_nodes[1:].long()
    _require((cu_nodes[0] == 0) & (cu_nodes[-1] == total) & (starts < ends).all(), OFFSETS)
    places = torch.arange(total, device=device)
    request = torch.searchsorted(ends, places, right=True)  # (total,)
    start = starts[request]
    nodes, is_root = places - start, places == start
    _require(((parents < nodes) & (parents >= -1) & ((parents < 0) == is_root)).all(), PARENTS)

    above = start + parents.clamp(min=0)  # (total,), roots their own parents
    accepted = (token_ids == target_tokens[above]) | is_root
    # Pointer doubling: `above` leads 1, 2, 4, ... levels up (a root to itself), and a node counts only if all
    # of its ancestors do. A path is cut at max_length, so no node below matters; those whose root the jumps
    # have not reached by then are dropped, because not all of their ancestors were looked at.
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
    kernel = _triton_walk()
    if kernel is None:
        raise ValueError(
            'backend "triton" needs triton, which is not installed: take backend "torch", or install it '
            'with: pip install "ddtree-core[vllm-diagnosis]"'
        )
    if not (kernel.INTERPRETED or token_ids.is_cuda):
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
        walk = kernel.walk_kernel[requests,]
        walk(*inputs, nodes, lengths, bonus, len(token_ids), max_length, num_warps=1)
    # The kernel checks what it reads anyway and reports a fault as a length.
    shortest = lengths.min()
    _require(shortest >= 0, OFFSETS)
    _require(shortest > 0, PARENTS)
    return BatchAcceptance(nodes, lengths, bonus)


def _triton_walk() -> ModuleType | None:
    """The module of the kernel; None where triton is not installed."""
    try:
        import ddtree_core.trees.triton_walk as module
    except ImportError:
        return None
    return module


def _require(holds: Bool[Tensor, ""], sentence: str) -> None:
    """Raise ValueError(sentence) unless `holds`; off the CPU, assert it on the device without waiting."""
    if holds.device.type != "cpu":
        torch._assert_async(holds, sentence)  # pyright: ignore[reportPrivateImportUsage]
    elif not holds:
        raise ValueError(sentence)


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
