"""Is a text the target's own? Where two generations part, and how close the target's choice was there."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ddtree_core.decoding.records import Generation
from ddtree_core.models.pair import ModelPair


@dataclass(frozen=True)
class Divergence:
    """The first place where a generation leaves the reference."""

    position: int  # index among the new tokens
    expected: int | None  # the reference's token there, None where the reference has ended
    found: int | None
    gap: float  # target's logit of the expected token minus that of the found one, after the shared text


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Index of the first token that differs, where the shorter one ends if all before agree, or None.

    >>> first_difference([5, 6, 7], [5, 8, 7]), first_difference([5, 6], [5]), first_difference([5], [5])
    (1, 1, None)
    """
    for i, (one, two) in enumerate(zip(expected, found, strict=False)):
        if one != two:
            return i
    return None if len(expected) == len(found) else min(len(expected), len(found))


def first_divergence(pair: ModelPair, reference: Generation, other: Generation) -> Divergence | None:
    """Compare new tokens one by one; None where they are the same.

    In float32 there should be none. In bfloat16 sums depend on how many rows a pass has, and texts part where
    two tokens are nearly tied: the gap tells. It comes from one plain forward pass of the target.
    """
    shared = first_difference(reference.ids, other.ids)
    if shared is None:
        return None
    expected, found = (ids[shared] if shared < len(ids) else None for ids in (reference.ids, other.ids))
    gap = float("nan")
    if expected is not None and found is not None:
        ids = torch.tensor([reference.prompt_ids + reference.ids[:shared]], device=pair.model.device)
        with torch.inference_mode():
            logits = pair.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        gap = float(logits[expected] - logits[found])
    return Divergence(shared, expected, found, gap)
