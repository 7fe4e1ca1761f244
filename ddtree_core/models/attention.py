"""Masks and positions with which a decoder reads a draft tree in one pass.

A node attends to the history and to its ancestors, itself included, and sits at position history + depth, so
its logits are those of the sequence history + root path. Masks are additive in the model's dtype: a boolean
mask is silently *added* by eager attention.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.trees import DraftTree


def tree_positions(tree: DraftTree, history: int) -> Int[Tensor, "1 N"]:
    """Position of every node: `history` tokens lie before the root."""
    return (tree.depths + history)[None]


def multimodal_positions(
    positions: Int[Tensor, "1 N"], rope_delta: Int[Tensor, "1 1"]
) -> Int[Tensor, "4 1 N"]:
    """Positions in the text, then the rotary ones for time, height and width: the same, moved by the delta
    that images before them have caused.
    """
    rotary = positions + rope_delta.to(positions.device)
    return torch.stack([positions, rotary, rotary, rotary])


def full_mask(tree: DraftTree, history: int, dtype: torch.dtype) -> Float[Tensor, "1 1 N keys"]:
    """Additive mask over `history` cached rows and the N nodes: everything cached, and the node's ancestors
    and itself.
    """
    before = tree.ancestor_mask.new_ones(len(tree), history)
    return _additive(torch.cat([before, tree.ancestor_mask], dim=1), dtype)


def sliding_mask(
    tree: DraftTree, history: int, window: int, dtype: torch.dtype
) -> Float[Tensor, "1 1 N keys"]:
    """Additive mask of a sliding layer, whose cache holds the last min(history, window − 1) rows in front of
    the N nodes.

    A query sees the `window` positions that end at its own: history at positions > history + depth − window,
    and ancestors less than `window` levels above.
    """
    rows = min(history, window - 1)
    depths = tree.depths
    positions = torch.arange(history - rows, history, device=depths.device)
    before = positions[None] > (history + depths - window)[:, None]  # (N, rows)
    between = tree.ancestor_mask & (depths[:, None] - depths[None] < window)  # (N, N)
    return _additive(torch.cat([before, between], dim=1), dtype)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[None, None]
