"""Token trees: the data structure, its builders and the acceptance rules. Knows tensors, knows no model."""

from ddtree_core.trees.accept import Acceptance, linear_chain, tree_walk
from ddtree_core.trees.build import MAX_BUDGET, best_first, chain, token_ids
from ddtree_core.trees.draft_tree import DraftTree
from ddtree_core.trees.kernels import BatchAcceptance, compaction_index, walk_batch

__all__ = [
    "MAX_BUDGET",
    "Acceptance",
    "BatchAcceptance",
    "DraftTree",
    "best_first",
    "chain",
    "compaction_index",
    "linear_chain",
    "token_ids",
    "tree_walk",
    "walk_batch",
]
