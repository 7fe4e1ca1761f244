"""Is a draft tree really verified? Asked of the model itself, with a handful of tokens.

Caches and attention layers tell which models cannot verify a tree; that a forward takes positions and a mask
does not tell that it obeys them. The probe lets the model read a tree in which six tokens of another branch
stand in front of a path, and then the path alone: a model that counts positions in order, or sees the other
branch, gives the path other scores.
"""

from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor

from ddtree_core.trees import DraftTree

HISTORY, DECOYS, PATH = (
    8,
    6,
    4,
)  # tokens in front of the root, of the other branch, of the path below the root


class Verifies(Protocol):
    """A target that has read nothing yet."""

    def verify(self, tree: DraftTree) -> Any: ...
    def commit(self, path: list[int]) -> Any: ...


def tolerance(dtype: torch.dtype) -> float:
    """Distance of a path's scores in a tree and alone, relative to their spread, that rounding may cause."""
    return 1e-2 if dtype == torch.float32 else 0.15


@torch.inference_mode()
def tree_distance(target: Verifies, vocab_size: int) -> float:
    """How far a path's logits in a branched tree are from those of the path alone, relative to their spread.

    Costs two passes, over 13 and 11 tokens. Of the path's nodes the median counts: a wrong position or mask
    shows at every node, while rounding may tip the choice of an expert at one.
    """
    ids = torch.arange(1, HISTORY + 1 + DECOYS + PATH + 1) * 7919 % vocab_size
    history, root, decoys, path = ids.split([HISTORY, 1, DECOYS, PATH])
    path[0] = (decoys[0] + 1) % vocab_size  # siblings differ, also in a vocabulary of a few tokens
    below = torch.arange(DECOYS + 1, DECOYS + 1 + PATH)  # the path's nodes
    # Without branches, and from the beginning: what stands behind the root is the path alone.
    chain = torch.cat([history, root, path])
    alone = target.verify(_tree(chain, [*range(-1, len(chain) - 1)])).logits[-PATH:].float()
    target.commit(list(range(HISTORY)))
    branched = _tree(torch.cat([root, decoys, path]), [-1, *range(DECOYS), 0, *below[:-1].tolist()])
    inside = target.verify(branched).logits[below].float()
    target.commit([])
    return float(((inside - alone).std(-1) / alone.std(-1)).nan_to_num(torch.inf).median())


def _tree(token_ids: Int[Tensor, "N"], parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return DraftTree(token_ids, torch.tensor(parents), torch.tensor(depths), torch.zeros(len(parents)))
