"""A target and its drafter, loaded: what decoding, training and the diagnosis are given."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.models.drafter import Drafter, DraftModel
from ddtree_core.models.loading import stop_ids
from ddtree_core.models.positions import Positions, positions_of
from ddtree_core.models.target import Target


@dataclass(frozen=True, eq=False)
class ModelPair:
    """A loaded target and drafter that belong together, with their tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft: DraftModel
    packed: bool = False  # linears run through oneDNN-packed weights
    revisions: dict[str, str | None] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)  # arguments for the chat template

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def positions(self) -> Positions:
        """How many positions the target has, and where its rotation changes."""
        return positions_of(self.model.config)

    @property
    def vocab_size(self) -> int:
        """Rows of the target's embedding: what bounds token ids, whatever the tokenizer counts."""
        table: Any = self.model.get_input_embeddings()
        return table.weight.shape[0]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text; see `stop_ids`."""
        return stop_ids(self.model, self.tokenizer)

    def open_target(self, features: bool = True) -> Target:
        """The target for one generation; without `features` nothing is captured (autoregressive decoding)."""
        return Target(self.model, self.draft.layer_ids if features else (), self.draft.device)

    def open_drafter(self, prompt_ids: list[int]) -> Drafter:
        """The drafter for one generation."""
        return self.draft.open(self.model, prompt_ids)
