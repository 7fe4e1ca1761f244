"""Draft-tree speculative decoding: DFlash drafters, draft trees, targets that verify a tree in one pass."""

from ddtree_core.decoding import Generation, Round, Sampler, decode, encode_prompt, generate, load_prompts
from ddtree_core.models import PAIRS, ModelPair, load_pair
from ddtree_core.trees import Acceptance, DraftTree, best_first, chain, linear_chain, tree_walk

__all__ = [
    "PAIRS",
    "Acceptance",
    "DraftTree",
    "Generation",
    "ModelPair",
    "Round",
    "Sampler",
    "best_first",
    "chain",
    "decode",
    "encode_prompt",
    "generate",
    "linear_chain",
    "load_pair",
    "load_prompts",
    "tree_walk",
]
