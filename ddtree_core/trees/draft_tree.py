"""A tree of draft tokens, stored flat so that one forward pass can verify all of it.

Node 0 is the root: the last committed token. Parents come before children, so a node's index is larger than
the index of each of its ancestors, and any sorted list of the nodes of one path runs from the root down.
"""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class DraftTree:
    """Tokens, parents, depths and cumulative log-probabilities (natural log, root 0) of N nodes.

    A tree is built on the host, where its invariants are checked once; `to` brings it to a device.

    Raises:
        ValueError: the tensors differ in length or dtype from what is declared here, or are not on the CPU;
            node 0 is not a root (parent -1, depth 0); a parent does not come before its child; a depth is not
            the parent's plus one; a token id is negative; two siblings carry the same token; a
            log-probability is NaN.

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
        for holds, sentence in _invariants(self):
            if not holds:
                raise ValueError(sentence)

    @classmethod
    def root_only(cls, token: int) -> "DraftTree":
        """The tree of one node: what autoregressive decoding verifies, and what a budget of 0 yields.

        >>> len(DraftTree.root_only(7))
        1
        """
        return cls(torch.tensor([token]), torch.tensor([-1]), torch.tensor([0]), torch.zeros(1))

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self)

    @property
    def device(self) -> torch.device:
        """The host, or where `to` has brought the tensors."""
        return self.token_ids.device

    def to(self, device: torch.device | str) -> "DraftTree":
        """The same tree and its ancestor mask on `device` (this very object if it is there already)."""
        if self.device == torch.device(device):
            return self
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        tensors["ancestor_mask"] = self.ancestor_mask
        moved = copy(self)  # its invariants hold: nothing is checked again
        vars(moved).update({name: tensor.to(device) for name, tensor in tensors.items()})
        return moved

    def reordered(self, order: str) -> tuple["DraftTree", list[int]]:
        """The same tree with its nodes breadth or depth first, siblings as they were, and their old indices.

        Raises ValueError for an order other than "bfs" and "dfs".

        >>> tree = DraftTree(  # a leaf, its sibling, and a node below the leaf
        ...     token_ids=torch.tensor([7, 3, 5, 9]),
        ...     parents=torch.tensor([-1, 0, 0, 1]),
        ...     depths=torch.tensor([0, 1, 1, 2]),
        ...     log_probs=torch.tensor([0.0, -0.5, -1.0, -0.75]),
        ... )
        >>> tree.reordered("dfs")[1]
        [0, 1, 3, 2]
        """
        if order not in ("bfs", "dfs"):
            raise ValueError(f"unknown order {order!r}: expected 'bfs' or 'dfs'")
        nodes, waiting = [], [0]
        while waiting:
            node = waiting.pop(0)
            nodes.append(node)
            children = self._children_of[node]
            waiting = waiting + children if order == "bfs" else children + waiting
        old = torch.tensor(nodes)
        parents = old.argsort()[self.parents[old]]  # argsort of a permutation is its inverse
        parents[0] = -1
        return DraftTree(self.token_ids[old], parents, self.depths[old], self.log_probs[old]), nodes

    @cached_property
    def ancestor_mask(self) -> Bool[Tensor, "N N"]:
        """mask[i, j] is true where node j is node i or an ancestor of it: what node i may attend to."""
        mask = np.zeros((len(self), len(self)), dtype=bool)
        mask[:, 0] = True
        nodes, up = np.arange(len(self)), np.maximum(self.parents.numpy(), 0)
        ancestors = (
            nodes  # all nodes walk up together, a level at a time, until the last has reached the root
        )
        while ancestors.any():
            mask[nodes, ancestors] = True
            ancestors = up[ancestors]
        return torch.from_numpy(mask)

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
    if any(tensor.device.type != "cpu" for tensor in tensors):
        devices = [str(tensor.device) for tensor in tensors]
        raise ValueError(f"a draft tree is built on the CPU, got {devices}: build it there, then call .to()")


def _invariants(tree: DraftTree) -> Iterator[tuple[np.bool_, str]]:
    """Each invariant as a truth value; a later one may rely on the earlier ones."""
    # On few nodes, NumPy's operations cost a third of torch's.
    tokens, parents, depths = (tensor.numpy() for tensor in (tree.token_ids, tree.parents, tree.depths))
    yield (parents[0] == -1) & (depths[0] == 0), "node 0 of a draft tree must be its root: parent -1, depth 0"
    above = parents[1:]
    in_order = (above >= 0) & (above < np.arange(1, len(parents)))
    yield in_order.all(), "parents must come before children: expected 0 <= parents[i] < i for every i > 0"
    one_deeper = depths[1:] == depths[above] + 1
    yield one_deeper.all(), "depths must grow by one from parent to child: expected depths[parents[i]] + 1"
    yield tokens.min() >= 0, "token ids of a draft tree must not be negative"
    edges = np.sort(above * (tokens.max() + 1) + tokens[1:])  # one number for each (parent, token)
    yield (edges[1:] != edges[:-1]).all(), "siblings must carry distinct tokens: merge nodes that repeat one"
    totals = tree.log_probs.detach().float().numpy()  # NumPy has no bfloat16
    yield (totals == totals).all(), "log_probs of a draft tree must not be NaN"
