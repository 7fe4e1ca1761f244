"""A pair under examination, and all that is measured on it, each measure once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ddtree_core.decoding.prompts import Prompt
from ddtree_core.diagnosis.acceptance.context_cache import CacheMeasures, measure_cache
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.settings import Gain, best_gains
from ddtree_core.diagnosis.acceptance.symptoms import Replay, Symptoms, feature_error, replay, summarise
from ddtree_core.models.pair import ModelPair


@dataclass(eq=False)
class Case:
    """A pair with its drafter along transcripts of its target."""

    pair: ModelPair
    prompts: Sequence[Prompt]
    given: Scratch  # on the answers to the prompts
    known: Scratch  # on the answers to known prompts

    @property
    def tolerance(self) -> float:
        """Distance of two drafts that rounding may cause."""
        return 0.02 if self.pair.dtype == torch.float32 else 0.06

    @property
    def feature_tolerance(self) -> float:
        """Relative error of features that rounding may cause."""
        return 1e-2 if self.pair.dtype == torch.float32 else 1e-1

    @cached_property
    def replays(self) -> list[Replay]:
        """The pair's own drafter along the answers, with its cache."""
        layer_ids, transcripts = self.given.draft.layer_ids, self.given.transcripts
        drafters = [self.pair.open_drafter(t.ids[: t.prompt_length].tolist()) for t in transcripts]
        return [replay(d, t, layer_ids) for d, t in zip(drafters, transcripts, strict=True)]

    @cached_property
    def cache(self) -> CacheMeasures:
        """What reaches the drafter's context cache."""
        return measure_cache(self.pair, self.given, self.replays, self.known.transcripts[0])

    @cached_property
    def feature_error(self) -> float:
        """Relative error of the target's features behind rejected tokens."""
        return feature_error(self.pair, self.given.transcripts[0], self.given.draft.layer_ids)

    @cached_property
    def gains(self) -> list[Gain]:
        """What other settings of the drafter would bring, the best for every cause."""
        return best_gains(self.pair, self.given)

    @cached_property
    def symptoms(self) -> Symptoms:
        """How the pair's acceptance looks."""
        return summarise(
            self.replays,
            likelihood=float(self.given.scores.mean()) - self.cache.nats,
            context_dependence=self.cache.prompt[0],
            cache_error=max(self.cache.first, self.cache.later),
            feature_error=self.feature_error,
        )
