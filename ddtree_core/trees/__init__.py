"""Token trees: the data structure, its builders and the acceptance rules. Knows tensors, knows no model."""

from ddtree_core.trees.accept import RULES, Acceptance, linear_chain, tree_walk
from ddtree_core.trees.batch_walk import BatchAcceptance, compaction_index, walk_batch
from ddtree_core.trees.build import MAX_BUDGET, best_first, chain, token_ids
from ddtree_core.trees.draft_tree import DraftTree

__all__ = [
    "MAX_BUDGET",
    "RULES",
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
