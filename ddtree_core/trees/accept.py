"""From a tree and the target's choice at every node to the accepted path and the bonus token."""

from dataclasses import dataclass

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

    def tokens(self, tree: DraftTree) -> list[int]:
        """The tokens committed: those of the accepted draft nodes, then the bonus token."""
        return [*tree.token_ids[self.path[1:]].tolist(), self.bonus]


def tree_walk(tree: DraftTree, target_tokens: Int[Tensor, "N"]) -> Acceptance:
    """From the root, follow the child whose token is the target's choice at the current node, to the end.

    `target_tokens[i]` is the token that the target chose after node i, greedily or by sampling; they are
    brought to the host in one transfer. Raises ValueError unless there is one per node. Source: DDTree.

    >>> import torch
    >>> tree = DraftTree(  # root 7 with the children 3 and 5
    ...     token_ids=torch.tensor([7, 3, 5]),
    ...     parents=torch.tensor([-1, 0, 0]),
    ...     depths=torch.tensor([0, 1, 1]),
    ...     log_probs=torch.tensor([0.0, -0.5, -1.0]),
    ... )
    >>> tree_walk(tree, torch.tensor([5, 1, 2]))
    Acceptance(path=[0, 2], bonus=2)
    """
    chosen = _one_per_node(tree, target_tokens)
    path = [0]
    # Parents come before children, so one pass over the nodes meets the whole path in order.
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
        if parent == path[-1] and token == chosen[parent]:
            path.append(node)
    return Acceptance(path, bonus=chosen[path[-1]])


def linear_chain(tree: DraftTree, target_tokens: Int[Tensor, "N"]) -> Acceptance:
    """Compare the flattened tree with the target's choices as if it were a chain, up to the first mismatch.

    This is how vLLM's rejection samplers read draft tokens, whatever the tree's shape: `target_tokens[i]` is
    compared with the token of node i + 1, parent or not. On a chain it equals `tree_walk`; on a branching
    tree it may accept less, or a path that does not exist. Raises ValueError unless there is one target token
    per node. Source: vLLM's `rejection_greedy_sample_kernel`.

    >>> import torch
    >>> tree = DraftTree(  # root 7 with the children 3 and 5
    ...     token_ids=torch.tensor([7, 3, 5]),
    ...     parents=torch.tensor([-1, 0, 0]),
    ...     depths=torch.tensor([0, 1, 1]),
    ...     log_probs=torch.tensor([0.0, -0.5, -1.0]),
    ... )
    >>> linear_chain(tree, torch.tensor([5, 1, 2]))
    Acceptance(path=[0], bonus=5)
    """
    chosen = _one_per_node(tree, target_tokens)
    path = [0]
    for node, token in enumerate(tree.token_ids.tolist()[1:], start=1):
        if token != chosen[node - 1]:
            break
        path.append(node)
    return Acceptance(path, bonus=chosen[path[-1]])


RULES = {"linear": linear_chain, "walk": tree_walk}


def _one_per_node(tree: DraftTree, target_tokens: Tensor) -> list[int]:
    if target_tokens.shape != (len(tree),):
        raise ValueError(
            f"expected one target token for each of the tree's {len(tree)} nodes, "
            f"got a tensor of shape {tuple(target_tokens.shape)}"
        )
    return target_tokens.tolist()
