"""The target's choice at every node: greedy, or one sample of its (warped) distribution.

Sampling the target once per node and walking the tree along the samples is exact by construction: whatever
was drafted, each committed token is a sample of the target's distribution after the tokens before it.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from ddtree_core.decoding.arguments import real_number, shown, whole_number

UNDEFINED = -1  # in place of a token where the target's logits say nothing; no draft equals it
COLDEST = 1e-30  # below, logits divided by the temperature leave the range of float32


def check_defined(token: int) -> None:
    """Raise `ValueError` where the target's logits named no token."""
    if token == UNDEFINED:
        raise ValueError(
            "the target's logits are NaN or infinite, so that they name no token; its weights are damaged or "
            "overflow in its dtype: fetch them again, or load it in float32"
        )


@dataclass(frozen=True)
class Sampler:
    """Temperature, then top-k, then top-p over the target's logits, as in transformers; 0 is greedy.

    Numbers may be Python's, numpy's or torch's. Raises `ValueError` for a temperature that is negative, not
    finite or above 0 and below COLDEST, for top_k < 1, for top_p outside (0, 1], and for what is no number.

    >>> Sampler()(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature = real_number(self.temperature)
        if not 0 <= temperature < inf:
            raise ValueError(
                f"temperature is {shown(self.temperature)}, expected a finite number ≥ 0 (0 is greedy)"
            )
        if 0 < temperature < COLDEST:
            raise ValueError(
                f"temperature is {temperature}, too small for float32; expected 0 (greedy) or ≥ {COLDEST}"
            )
        top_k = None if self.top_k is None else whole_number(self.top_k) or 0
        if top_k is not None and top_k < 1:
            raise ValueError(
                f"top_k is {shown(self.top_k)}, expected a whole number of at least 1, or None for all tokens"
            )
        top_p = None if self.top_p is None else real_number(self.top_p)
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(
                f"top_p is {shown(self.top_p)}, expected a number in (0, 1], or None for all tokens"
            )
        for name, value in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p)):
            object.__setattr__(self, name, value)

    def __call__(
        self, logits: Float[Tensor, "N vocab"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "N"]:
        """One token per row; UNDEFINED for a row that has NaN or +inf, or nothing above -inf."""
        if self.temperature == 0:
            largest, tokens = logits.max(dim=-1)  # as fast as argmax; NaN counts as the largest
            undefined = ~largest.isfinite()
        else:
            probabilities = self.probabilities(logits)
            undefined = probabilities[:, 0].isnan()  # then so is the whole row
            if generator is not None:
                probabilities = probabilities.to(generator.device)
            tokens = torch.multinomial(probabilities.nan_to_num_(1.0), 1, generator=generator)[:, 0]
        return tokens.masked_fill(undefined.to(tokens.device), UNDEFINED)

    def probabilities(self, logits: Float[Tensor, "N vocab"]) -> Float[Tensor, "N vocab"]:
        """The distributions that are sampled; for temperature 0, one-hot."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
        scores = logits.float()
        ids: Any = torch.empty(len(logits), 0, dtype=torch.long)  # the warpers ignore them
        if self.temperature != 1:
            scores = TemperatureLogitsWarper(self.temperature)(ids, scores)  # pyright: ignore[reportArgumentType]
        if self.top_k is not None:
            scores = TopKLogitsWarper(self.top_k)(ids, scores)  # pyright: ignore[reportArgumentType]
        if self.top_p is not None:
            scores = TopPLogitsWarper(self.top_p)(ids, scores)  # pyright: ignore[reportArgumentType]
        return scores.softmax(dim=-1)
