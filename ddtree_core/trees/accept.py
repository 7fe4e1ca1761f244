"""From a tree and the target's choice at every node to the accepted path and the bonus token."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from ddtree_core.trees.draft_tree import DraftTree


@dataclass(frozen=True)
class Acceptance:
    """Accepted nodes (root first) and the bonus token: the target's choice after the last of them."""

    path: list[int]
    bonus: int

    @property
    def length(self) -> int:
        """Tokens committed this round: the accepted draft tokens and the bonus token."""
        return len(self.path)


def tree_walk(tree: DraftTree, target_tokens: Int[Tensor, "N"]) -> Acceptance:
    """From the root, follow the child whose token is the target's choice at the current node, to the end.

    `target_tokens[i]` is the token that the target chose after node i, greedily or by sampling. Needs one
    host round trip. Raises ValueError unless there is one target token per node. Source: DDTree.

    >>> tree = DraftTree(  # root 7 with the children 3 and 5
    ...     token_ids=torch.tensor([7, 3, 5]),
    ...     parents=torch.tensor([-1, 0, 0]),
    ...     depths=torch.tensor([0, 1, 1]),
    ...     log_probs=torch.tensor([0.0, -0.5, -1.0]),
    ... )
    >>> tree_walk(tree, torch.tensor([5, 1, 2]))
    Acceptance(path=[0, 2], bonus=2)
    """
    target = _one_per_node(tree, target_tokens)
    above = tree.parents.clamp(min=0)  # (N,), the root its own parent
    accepted = tree.token_ids == target[above]  # (N,) bool: is each node what the target chose at its parent?
    accepted[0] = True
    # Pointer doubling: a node counts only if all of its ancestors do.
    for _ in range(tree.doubling_rounds):
        accepted &= accepted[above]
        above = above[above]
    # Siblings carry distinct tokens, so one path is left, and in ascending order it runs from the root down.
    flags, choices = torch.stack((accepted.to(target.dtype), target)).tolist()
    path = [node for node, flag in enumerate(flags) if flag]
    return Acceptance(path=path, bonus=choices[path[-1]])


def linear_chain(tree: DraftTree, target_tokens: Int[Tensor, "N"]) -> Acceptance:
    """Compare the flattened tree with the target's choices as if it were a chain, up to the first mismatch.

    This is how vLLM's rejection samplers read draft tokens, whatever the tree's shape: `target_tokens[i]` is
    compared with the token of node i + 1, parent or not. On a chain it equals `tree_walk`; on a branching
    tree it may accept less, or a path that does not exist. Needs one host round trip. Raises ValueError
    unless there is one target token per node. Source: vLLM's `rejection_greedy_sample_kernel`.

    >>> tree = DraftTree(  # root 7 with the children 3 and 5
    ...     token_ids=torch.tensor([7, 3, 5]),
    ...     parents=torch.tensor([-1, 0, 0]),
    ...     depths=torch.tensor([0, 1, 1]),
    ...     log_probs=torch.tensor([0.0, -0.5, -1.0]),
    ... )
    >>> linear_chain(tree, torch.tensor([5, 1, 2]))
    Acceptance(path=[0], bonus=5)
    """
    target = _one_per_node(tree, target_tokens)
    matches = (target[:-1] == tree.token_ids[1:]).cumprod(0)  # (N - 1,): 1 up to the first mismatch
    count, *choices = torch.cat((matches.sum().reshape(1), target)).tolist()
    return Acceptance(path=list(range(count + 1)), bonus=choices[count])


def _one_per_node(tree: DraftTree, target_tokens: Tensor) -> Tensor:
    """The target's tokens as int64 on the tree's device (target and drafter may live on different ones)."""
    if target_tokens.shape != (len(tree),):
        raise ValueError(
            f"expected one target token for each of the tree's {len(tree)} nodes, "
            f"got a tensor of shape {tuple(target_tokens.shape)}"
        )
    return target_tokens.to(tree.device, torch.int64)
