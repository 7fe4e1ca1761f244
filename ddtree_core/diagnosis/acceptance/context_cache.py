"""What reaches a drafter's context cache, and what stays in it.

The pair's own drafter, with its cache, is a black box here: it is opened, handed features, and its drafts are
compared with those of the same weights from scratch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.symptoms import DEPTH, Replay, distance
from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.models.pair import ModelPair


@dataclass(frozen=True)
class CacheMeasures:
    """Distances (0 to 1) between drafts that tell what reaches a drafter's context cache."""

    earlier: float  # first drafts on one prompt, opened after another prompt and after itself
    prompt: tuple[float, float]  # features of the prompt and their negatives: from the cache, from scratch
    beginning: tuple[float, float]  # the same for the first quarter of the prompt
    first: float  # a text's first draft, from the cache and from scratch
    later: float  # its later ones
    nats: float  # what the target's tokens lose by the cache


@torch.inference_mode()
def measure_cache(
    pair: ModelPair, scratch: Scratch, replays: Sequence[Replay], other: Transcript
) -> CacheMeasures:
    """Compare the pair's own drafter with drafts from scratch; `other` is a transcript of another prompt."""
    draft, transcript = scratch.draft, scratch.transcripts[0]
    n = transcript.prompt_length
    prompt = transcript.features(draft.layer_ids)[:n]
    negated = -prompt, torch.cat([-prompt[: n // 4], prompt[n // 4 :]])  # the whole of it, its beginning

    def cached(of: Transcript, features: Tensor) -> Tensor:
        ids = of.ids[: of.prompt_length + 1]
        return pair.open_drafter(ids[:-1].tolist()).draft(features, ids[1:])[:DEPTH]

    def from_scratch(features: Tensor) -> Tensor:
        return draft.at(draft.context(features, 0), transcript.ids, transcript.anchors[:1], DEPTH)[0]

    cached(other, other.features(draft.layer_ids)[: other.prompt_length])
    behind_other, behind_itself = cached(transcript, prompt), cached(transcript, prompt)
    plain = from_scratch(prompt)
    whole, beginning = (
        (_mean(behind_itself, cached(transcript, features)), _mean(plain, from_scratch(features)))
        for features in negated
    )
    gaps, losses = zip(*(_against_scratch(scratch, i, made) for i, made in enumerate(replays)), strict=True)
    later = torch.cat([gap[1:] for gap in gaps])
    return CacheMeasures(
        earlier=_mean(behind_other, behind_itself),
        prompt=whole,
        beginning=beginning,
        first=max(float(gap[0]) for gap in gaps),
        later=float(later.mean()) if len(later) else 0.0,
        nats=float(torch.cat(losses).mean()),
    )


def _mean(one: Tensor, two: Tensor) -> float:
    return float(distance(one, two).mean())


def _against_scratch(scratch: Scratch, number: int, made: Replay) -> tuple[Tensor, Tensor]:
    """Per round of a replay: distance of its drafts from those of scratch, and nats per token it lost."""
    logits = scratch.logits[number][made.anchors - scratch.transcripts[number].prompt_length]
    right, got = (scratch.likelihood(number, drafts, made.anchors) for drafts in (logits, made.logits))
    return distance(logits, made.logits).mean(-1), right - got
