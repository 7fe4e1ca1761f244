"""The drafting side of a pair, with everything that an integration can get wrong laid open as a value.

`DFlashModel` runs a checkpoint in the one right way. Here the same weights run as a `Wiring` says, right or
wrong: as the drafter of a generation, with a cache of context rows, and from scratch at many places of a
known text at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.pair import ModelPair


@dataclass(frozen=True, eq=False)
class Wiring:
    """How an integration runs a drafter: what holds for every pass, then what concerns its context cache."""

    layer_ids: tuple[int, ...]  # target blocks (0-based) whose outputs are the features, in this order
    causal: tuple[bool, ...]  # per draft layer: a slot sees only the block's earlier slots
    windows: tuple[int | None, ...]  # per draft layer
    rope: Mapping[str, Any]  # as the library's `rope_parameters`
    mask_token_id: int
    embed: Callable[[Tensor], Tensor]  # token ids → rows of the embedding
    head: Callable[[Tensor], Tensor]  # hidden states → logits
    dtype: torch.dtype  # of activations
    basis: Int[Tensor, "hidden"] | None = None  # order of a feature's channels; None: the target's own
    normed: bool = False  # the last captured block's output has passed the target's final norm
    anchor: bool = True  # slot 0 of the block is the last committed token; False: a mask like the others
    block_shift: int = 0  # added to the positions of the block
    context_shift: int = 0  # added to the positions of the context
    rotated: float = 1.0  # share of each head that rotates
    interleaved: bool = False  # rotary pairs are neighbours; False: they lie half a head apart

    cropped: bool = True  # the block's own rows leave the cache after each pass
    prompt: str = "whole"  # what the cache holds of it: "whole", "cut" to its end, "empty", "stale"
    mask_added: bool = False  # the mask of a preallocated cache is boolean and added to the scores


def wiring_of(pair: ModelPair) -> Wiring:
    """How a pair's drafter is run. Raises `ValueError` for a drafter that is none of DFlash's."""
    draft = pair.draft
    if isinstance(wiring := getattr(draft, "wiring", None), Wiring):
        return wiring
    if not isinstance(draft, DFlashModel):
        raise ValueError(
            f"the drafter of {pair.name} is a {type(draft).__name__}, expected a DFlash drafter; load a pair "
            f"that has one"
        )
    config, borrowed = draft.config, draft.borrow(pair.model)
    return Wiring(
        layer_ids=config.target_layer_ids,
        causal=config.causal,
        windows=config.windows,
        rope={**(config.body.rope_parameters or {})},
        mask_token_id=config.mask_token_id,
        embed=borrowed.embed,
        head=borrowed.logits,
        dtype=draft.norm.weight.dtype,
    )
