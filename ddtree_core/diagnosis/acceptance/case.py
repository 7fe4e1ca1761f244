"""A pair under examination, and how well its drafter tells what the target wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ddtree_core.decoding.prompts import Prompt
from ddtree_core.diagnosis.acceptance.symptoms import DEPTH, Text, likelihood
from ddtree_core.diagnosis.acceptance.wired_draft import Rows, WiredDraft
from ddtree_core.models.pair import ModelPair

Places = Sequence[Tensor]  # per text, places of its answer


@dataclass(frozen=True, eq=False)
class Case:
    """A pair with texts of its target: on the given prompts, and on known ones."""

    pair: ModelPair
    draft: WiredDraft  # its drafter, to be run from scratch
    prompts: Sequence[Prompt]
    texts: Sequence[Text]
    known: Sequence[Text]

    @property
    def tolerance(self) -> float:
        """Distance of two drafts that rounding may cause."""
        return 0.02 if self.pair.dtype == torch.float32 else 0.06

    @property
    def feature_tolerance(self) -> float:
        """Relative error of features that rounding may cause."""
        return 1e-2 if self.pair.dtype == torch.float32 else 1e-1

    @cached_property
    def contexts(self) -> list[list[Rows]]:
        """The context of every text."""
        return contexts(self.draft, self.texts)

    @cached_property
    def logits(self) -> list[Float[Tensor, "places few vocab"]]:
        """Drafts from scratch at every place of every text."""
        given = zip(self.contexts, self.texts, strict=True)
        return [self.draft.at(rows, text.ids, text.anchors, DEPTH) for rows, text in given]

    @cached_property
    def scores(self) -> Float[Tensor, "places"]:
        """`score` at every place of the texts."""
        vocabulary = self.draft.model.vocabulary
        told = zip(self.logits, self.texts, strict=True)
        return torch.cat([likelihood(logits, text, text.anchors, vocabulary) for logits, text in told])


def contexts(draft: WiredDraft, texts: Sequence[Text]) -> list[list[Rows]]:
    """A drafter's context of each text."""
    return [draft.context(text.features(draft.layer_ids), 0) for text in texts]


def score(
    draft: WiredDraft, texts: Sequence[Text], places: Places, given: Sequence[Sequence[Rows]] | None = None
) -> Float[Tensor, "places"]:
    """Likelihood of what the target wrote at places of texts, by drafts from scratch, in nats per token.

    `given` are the contexts of the texts where they are known already.
    """
    vocabulary, parts = draft.model.vocabulary, []
    for text, at, rows in zip(texts, places, given or contexts(draft, texts), strict=True):
        parts.append(likelihood(draft.at(rows, text.ids, at, DEPTH), text, at, vocabulary))
    return torch.cat(parts)


def standard_error(scores: Float[Tensor, "places"], texts: Sequence[Text]) -> float:
    """Of a mean of scores, or of differences of scores, at places of texts.

    Scores of neighbouring places share tokens, so every place counts for no more than 1 / DEPTH.
    """
    independent = min(len(scores), sum(len(text.anchors) for text in texts) / DEPTH)
    return float(scores.std() / independent**0.5)


def spread(text: Text, count: int) -> Tensor:
    """At most `count` places of a text's answer, evenly spread."""
    at = torch.linspace(0, len(text.anchors) - 1, min(count, len(text.anchors)), device=text.ids.device)
    return text.anchors[at.long()]
