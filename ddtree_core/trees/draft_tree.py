"""A tree of draft tokens, stored flat so that one forward pass can verify all of it.

Node 0 is the root: the last committed token. Parents come before children, so a node's index is larger than
the index of each of its ancestors, and any sorted list of the nodes of one path runs from the root down.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class DraftTree:
    """Tokens, parents, depths and cumulative log-probabilities (natural log, root 0) of N nodes.

    The invariants are checked at construction. On a CPU a violation raises ValueError; on any other device it
    is a device-side assertion, because reading the verdict would cost a host round trip.

    Raises:
        ValueError: the tensors differ in length, dtype or device from what is declared here; node 0 is not a
            root (parent -1, depth 0); a parent does not come before its child; a depth is not the parent's
            plus one; a token id is negative; two siblings carry the same token; a log-probability is NaN.

    >>> tree = DraftTree(
    ...     token_ids=torch.tensor([7, 3, 5, 9]),
    ...     parents=torch.tensor([-1, 0, 0, 1]),
    ...     depths=torch.tensor([0, 1, 1, 2]),
    ...     log_probs=torch.tensor([0.0, -0.5, -1.0, -0.75]),
    ... )
    >>> print(tree)
    0: 7 (0.00)
      1: 3 (-0.50)
        3: 9 (-0.75)
      2: 5 (-1.00)
    >>> tree.path(3), tree.children(0)
    ([0, 1, 3], [1, 2])
    >>> tree.ancestor_mask.int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
    """

    token_ids: Int[Tensor, "N"]
    parents: Int[Tensor, "N"]
    depths: Int[Tensor, "N"]
    log_probs: Float[Tensor, "N"]

    def __post_init__(self) -> None:
        _check_layout(self)
        totals = self.log_probs.detach().float()  # NumPy has no bfloat16
        tensors = (self.token_ids, self.parents, self.depths, totals)
        # On few nodes, NumPy's operations cost a third of torch's.
        arrays = [tensor.numpy() for tensor in tensors] if self.device.type == "cpu" else tensors
        for holds, sentence in _invariants(*arrays):
            require(holds, sentence)

    @classmethod
    def root_only(cls, token: int, device: torch.device | str | None = None) -> "DraftTree":
        """The tree of one node: what autoregressive decoding verifies, and what a budget of 0 yields.

        >>> len(DraftTree.root_only(7))
        1
        """
        return cls(
            token_ids=torch.full((1,), token, device=device),
            parents=torch.full((1,), -1, device=device),
            depths=torch.zeros(1, dtype=torch.int64, device=device),
            log_probs=torch.zeros(1, dtype=torch.float32, device=device),
        )

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self)

    @property
    def device(self) -> torch.device:
        """The device that holds all four tensors."""
        return self.token_ids.device

    def to(self, device: torch.device | str) -> "DraftTree":
        """The same tree on `device` (this very object if it is there already)."""
        tensors = (self.token_ids, self.parents, self.depths, self.log_probs)
        moved = [tensor.to(device) for tensor in tensors]
        return self if moved[0] is self.token_ids else DraftTree(*moved)

    @cached_property
    def ancestor_mask(self) -> Bool[Tensor, "N N"]:
        """mask[i, j] is true where node j is node i or an ancestor of it: what node i may attend to."""
        if self.device.type == "cpu":
            return torch.from_numpy(_mask_on_host(self.parents.numpy(), self.doubling_rounds))
        return _mask_on_device(self.parents, self.doubling_rounds)

    @cached_property
    def doubling_rounds(self) -> int:
        """Rounds of pointer doubling that lead from every node to the root: bits of the deepest depth."""
        # Off the CPU the deepest depth would cost a host round trip; N - 1 bounds it.
        deepest = int(self.depths.numpy().max()) if self.device.type == "cpu" else len(self) - 1
        return deepest.bit_length()

    def children(self, node: int) -> list[int]:
        """Indices of the children of `node`, in ascending order; ValueError if there is no such node."""
        self._check_node(node)
        return list(self._children_of[node])

    def path(self, node: int) -> list[int]:
        """Indices from the root down to `node`, both included; ValueError if there is no such node."""
        self._check_node(node)
        path = [node]
        while path[-1] != 0:
            path.append(self._parent_list[path[-1]])
        return path[::-1]

    def to_text(self, label: Callable[[int], str] = str) -> str:
        """One line per node, `index: token (log-probability)`, depth first and indented by depth.

        `label` turns a token id into text, for instance `lambda t: repr(tokenizer.decode(t))`.
        """
        tokens, log_probs = self.token_ids.tolist(), self.log_probs.tolist()
        lines, stack = [], [(0, 0)]  # (node, depth)
        while stack:
            node, depth = stack.pop()
            lines.append(f"{'  ' * depth}{node}: {label(tokens[node])} ({log_probs[node]:.2f})")
            stack.extend((child, depth + 1) for child in reversed(self._children_of[node]))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"DraftTree(num_nodes={len(self)}, device='{self.device}')"

    @cached_property
    def _parent_list(self) -> list[int]:
        return self.parents.tolist()

    @cached_property
    def _children_of(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self._parent_list[1:], start=1):
            children[parent].append(node)
        return children

    def _check_node(self, node: int) -> None:
        if not 0 <= node < len(self):
            raise ValueError(f"node {node} is not in this tree: expected an index from 0 to {len(self) - 1}")


def require(holds: Bool[Tensor, ""] | np.bool_, sentence: str) -> None:
    """Raise ValueError(sentence) unless `holds`; off the CPU, assert it on the device without waiting."""
    if isinstance(holds, Tensor) and holds.device.type != "cpu":
        torch._assert_async(holds, sentence)  # pyright: ignore[reportPrivateImportUsage]
    elif not holds:
        raise ValueError(sentence)


# Both masks come from pointer doubling: `jump` leads 1, 2, 4, ... levels up (the root to itself), so that
# log2(depth) gathers reach the root, where a matrix product would cost N^3.


def _mask_on_device(parents: Tensor, rounds: int) -> Tensor:
    """The ancestor mask (N, N) by doubling its rows, whose length is known without a look at the depths."""
    mask = torch.eye(len(parents), dtype=torch.bool, device=parents.device)
    jump = parents.clamp(min=0)  # (N,)
    for _ in range(rounds):
        mask |= mask[jump]
        jump = jump[jump]
    return mask


def _mask_on_host(parents: np.ndarray, rounds: int) -> np.ndarray:
    """The same by doubling lists of ancestors, which on shallow trees moves a tenth of the bytes."""
    nodes, jump = np.arange(len(parents)), np.maximum(parents, 0)
    ancestors = nodes[None]  # (levels up, N)
    for _ in range(rounds):
        ancestors = np.concatenate((ancestors, jump[ancestors]))
        jump = jump[jump]
    mask = np.zeros((len(parents), len(parents)), dtype=bool)
    mask[nodes, ancestors] = True
    return mask


def _check_layout(tree: DraftTree) -> None:
    """Everything that can be told from shapes, dtypes and devices, without reading an element."""
    integers = (tree.token_ids, tree.parents, tree.depths)
    tensors = (*integers, tree.log_probs)
    shape = tree.token_ids.shape
    if len(shape) != 1 or shape[0] == 0 or any(tensor.shape != shape for tensor in tensors):
        shapes = [tuple(tensor.shape) for tensor in tensors]
        raise ValueError(f"a draft tree needs four tensors of one shape (N,) with N >= 1, got {shapes}")
    if any(tensor.dtype != torch.int64 for tensor in integers) or not tree.log_probs.is_floating_point():
        dtypes = [tensor.dtype for tensor in tensors]
        raise ValueError(f"expected int64 token_ids, parents, depths and floating log_probs, got {dtypes}")
    if any(tensor.device != tree.device for tensor in tensors):
        devices = [str(tensor.device) for tensor in tensors]
        raise ValueError(f"a draft tree lives on one device, got {devices}: move its tensors with .to()")


def _invariants(tokens: Any, parents: Any, depths: Any, log_probs: Any) -> Iterator[tuple[Any, str]]:
    """Each invariant as a truth value, NumPy's or torch's; a later one may rely on the earlier ones."""
    host, size = isinstance(parents, np.ndarray), len(parents)
    yield (parents[0] == -1) & (depths[0] == 0), "node 0 of a draft tree must be its root: parent -1, depth 0"
    above = parents[1:]
    nodes = np.arange(1, size) if host else torch.arange(1, size, device=parents.device)
    in_order = (above >= 0) & (above < nodes)
    yield in_order.all(), "parents must come before children: expected 0 <= parents[i] < i for every i > 0"
    one_deeper = depths[1:] == depths[above] + 1
    yield one_deeper.all(), "depths must grow by one from parent to child: expected depths[parents[i]] + 1"
    yield tokens.min() >= 0, "token ids of a draft tree must not be negative"
    edges: Any = above * (tokens.max() + 1) + tokens[1:]  # one number for each (parent, token)
    edges = np.sort(edges) if host else torch.sort(edges).values
    yield (edges[1:] != edges[:-1]).all(), "siblings must carry distinct tokens: merge nodes that repeat one"
    yield (log_probs == log_probs).all(), "log_probs of a draft tree must not be NaN"
