"""The target's choice at every node: greedy, or one sample of its (warped) distribution.

Sampling the target once per node and walking the tree along the samples is exact by construction: whatever
was drafted, each committed token is a sample of the target's distribution after the tokens before it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


@dataclass(frozen=True)
class Sampler:
    """Temperature, then top-k, then top-p over the target's logits, as in transformers; 0 is greedy.

    Raises `ValueError` for a negative temperature, top_k < 1, or top_p outside (0, 1].

    >>> Sampler()(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature is {self.temperature}, expected a finite number ≥ 0 (0 is greedy)")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, expected at least 1, or None for all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected a number in (0, 1], or None for all tokens")

    def __call__(
        self, logits: Float[Tensor, "N vocab"], generator: torch.Generator | None = None
    ) -> Int[Tensor, "N"]:
        """One token per row."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        probabilities = self.probabilities(logits)
        if generator is not None:
            probabilities = probabilities.to(generator.device)
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0]

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
