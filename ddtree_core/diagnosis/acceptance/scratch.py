"""Drafts from scratch, without a context cache: how well a drafter tells what its target wrote."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.diagnosis.acceptance.symptoms import DEPTH, likelihood
from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.diagnosis.acceptance.wired_draft import Rows, WiredDraft

SAMPLED = 5  # places per transcript where a few are enough
# Fields of a wiring that concern the block alone: the context stays as it was.
BLOCK_FIELDS = {"anchor", "causal", "windows", "block_shift", "mask_token_id", "embed", "head"}


class Scratch:
    """A drafter along transcripts, each draft from scratch. All is computed once, when it is asked for."""

    def __init__(self, draft: WiredDraft, transcripts: Sequence[Transcript]):
        self.draft, self.transcripts = draft, transcripts

    def rewired(self, changes: dict[str, Any]) -> "Scratch":
        """The same with some fields of the wiring changed."""
        other = Scratch(self.draft.rewired(**changes), self.transcripts)
        if changes.keys() <= BLOCK_FIELDS:
            other.contexts = self.contexts
        return other

    @cached_property
    def contexts(self) -> list[list[Rows]]:
        """The context of every transcript."""
        return [self.draft.context(t.features(self.draft.layer_ids), 0) for t in self.transcripts]

    @cached_property
    def logits(self) -> list[Float[Tensor, "places few vocab"]]:
        """Drafts at every place of every transcript."""
        return [self._drafts(i, t.anchors) for i, t in enumerate(self.transcripts)]

    @cached_property
    def scores(self) -> Float[Tensor, "places"]:
        """Likelihood of what the target wrote at every place, in nats per token."""
        return torch.cat(
            [self.likelihood(i, logits, self.transcripts[i].anchors) for i, logits in enumerate(self.logits)]
        )

    @cached_property
    def sampled_scores(self) -> Float[Tensor, "places"]:
        """The same at a few places of every transcript, evenly spread."""
        parts = []
        for i, transcript in enumerate(self.transcripts):
            places = _spread(transcript.anchors, SAMPLED)
            parts.append(self.likelihood(i, self._drafts(i, places), places))
        return torch.cat(parts)

    def likelihood(
        self, number: int, logits: Float[Tensor, "places few vocab"], places: Int[Tensor, "places"]
    ) -> Float[Tensor, "places"]:
        """Of the tokens behind places of one transcript, by drafts of this drafter, in nats per token."""
        return likelihood(logits, self.transcripts[number], places, self.draft.model.vocabulary)

    def standard_error(self, scores: Float[Tensor, "places"]) -> float:
        """Of a mean of scores, or of differences of scores, at places of the transcripts.

        Scores of neighbouring places share tokens, so every place counts for no more than 1 / DEPTH.
        """
        independent = min(len(scores), sum(len(t.anchors) for t in self.transcripts) / DEPTH)
        return float(scores.std() / independent**0.5)

    def _drafts(self, number: int, places: Int[Tensor, "places"]) -> Float[Tensor, "places few vocab"]:
        return self.draft.at(self.contexts[number], self.transcripts[number].ids, places, DEPTH)


def _spread(places: Int[Tensor, "places"], count: int) -> Int[Tensor, "few"]:
    """At most `count` of some places, evenly spread."""
    at = torch.linspace(0, len(places) - 1, min(count, len(places)), device=places.device)
    return places[at.long()]
