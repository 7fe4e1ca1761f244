"""What a drafter borrows from its target: embedding, output head, and what the target does around them."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from ddtree_core.models.scales import scales_of


class Borrowed:
    """Token ids in, logits out: the target's frozen tables as its drafter uses them, across devices.

    `embedding` and `head` are tables of the drafter's own, where it has them; `device` is the drafter's.
    `tokens` bounds the ids that are drafted, where the head has more rows than there are tokens.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        device: torch.device,
        *,
        embedding: nn.Module | None = None,
        head: nn.Module | None = None,
        tokens: int | None = None,
    ):
        self._device = device
        self._embedding: Any = embedding or target.get_input_embeddings()
        self._head: Any = head or target.get_output_embeddings()
        self._scales, self._tokens = scales_of(target), tokens
        self._factor = self._scales.embedding if embedding is None else self._scales.table

    def embed(self, ids: Int[Tensor, "*places"]) -> Float[Tensor, "*places hidden"]:
        """Rows of the embedding as the target's blocks get them; no gradient reaches them."""
        rows = self._embedding(ids.to(_input_device(self._embedding, self._device))).detach().to(self._device)
        return rows if self._factor == 1 else rows * self._factor

    def logits(self, hidden: Float[Tensor, "*places hidden"]) -> Float[Tensor, "*places vocab"]:
        """Logits of the output head, scaled and capped as the target's are."""
        bare = self._head(hidden.to(_input_device(self._head, self._device))).to(self._device)
        return self._scales.logits(bare)[..., : self._tokens]


def head_rows(target: PreTrainedModel, vocabulary: Int[Tensor, "vocab"]) -> nn.Linear:
    """A frozen copy of the rows of the target's output head that belong to these token ids."""
    head: Any = target.get_output_embeddings()
    rows = head.weight.detach()[vocabulary.to(head.weight.device)]
    linear = nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")
    linear.weight = nn.Parameter(rows, requires_grad=False)
    return linear


def _input_device(module: nn.Module, default: torch.device) -> torch.device:
    """Where a module of the target wants its input; offloaded and packed ones take it from anywhere."""
    device = next((p.device for p in module.parameters()), default)
    return default if device.type == "meta" else device
