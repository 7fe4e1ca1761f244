"""What a drafter is trained towards: the target's own distribution at every drafted position."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def position_weights(slots: int, decay: float) -> Float[Tensor, "slots"]:
    """exp(−(k − 1) / decay) for k = 1 … slots, summing to one: an early miss costs all that follows."""
    weights = torch.exp(-torch.arange(slots) / decay)
    return weights / weights.sum()


def drafting_loss(
    logits: Float[Tensor, "blocks slots vocab"],
    target: Float[Tensor, "blocks slots vocab"],
    labels: Int[Tensor, "blocks slots"],
    weights: Float[Tensor, "slots"],
    soft: float,
) -> Float[Tensor, ""]:
    """Cross-entropy against `soft` of the target's probabilities and 1 − `soft` of the token it chose.

    Labels are columns of the logits; −1 where the chosen token is outside the drafter's vocabulary (then the
    target's probabilities alone count) and −2 behind the text's end (then the slot does not count).
    """
    known = labels >= 0
    chosen = logits.gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    share = torch.where(known, logits.new_tensor(soft), logits.new_tensor(1.0))
    expected = share * (target * logits).sum(-1) + (1 - share) * chosen
    loss = torch.logsumexp(logits, dim=-1) - expected  # (blocks, slots)
    weights = weights * (labels > -2)
    return (loss * weights).sum() / weights.sum()
