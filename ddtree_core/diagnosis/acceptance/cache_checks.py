"""What reaches a drafter's context cache, and what stays in it: the pair's own drafter, with its cache,
against the same weights run from scratch.

The drafter is a black box here: it is opened, handed features, and its drafts are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddtree_core.diagnosis.acceptance.case import Case
from ddtree_core.diagnosis.acceptance.checks import Finding
from ddtree_core.diagnosis.acceptance.symptoms import DEPTH, Replay, Text, distance, likelihood


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
def measure_cache(case: Case, replays: Sequence[Replay]) -> CacheMeasures:
    """Compare the pair's own drafter, with its cache, with the same drafter from scratch."""
    text, other, layer_ids = case.texts[0], case.known[0], case.draft.layer_ids
    n = text.prompt_length
    own = text.features(layer_ids)[:n]
    beginning = torch.cat([-own[: n // 4], own[n // 4 :]])

    def cached(of: Text, features: Tensor) -> Tensor:
        ids = of.ids[: of.prompt_length + 1]
        return case.pair.open_drafter(ids[:-1].tolist()).draft(features, ids[1:])[:DEPTH]

    def scratch(features: Tensor) -> Tensor:
        return case.draft.at(case.draft.context(features, 0), text.ids, text.anchors[:1], DEPTH)[0]

    def apart(one: Tensor, two: Tensor) -> float:
        return float(distance(one, two).mean())

    cached(other, other.features(layer_ids)[: other.prompt_length])
    behind_other, behind_itself, plain = cached(text, own), cached(text, own), scratch(own)
    prompt, beginning = (
        (apart(behind_itself, cached(text, features)), apart(plain, scratch(features)))
        for features in (-own, beginning)
    )
    gaps, lost = zip(*(_against_scratch(case, *given) for given in enumerate(replays)), strict=True)
    later = torch.cat([gap[1:] for gap in gaps])
    return CacheMeasures(
        apart(behind_other, behind_itself),
        prompt,
        beginning,
        max(float(gap[0]) for gap in gaps),
        float(later.mean()) if len(later) else 0.0,
        float(torch.cat(lost).mean()),
    )


def _against_scratch(case: Case, number: int, made: Replay) -> tuple[Tensor, Tensor]:
    """Per round of a replay: distance of its drafts from those of scratch, and nats per token it lost."""
    text, vocabulary = case.texts[number], case.draft.model.vocabulary
    scratch = case.logits[number][made.anchors - text.prompt_length]
    one, two = (likelihood(logits, text, made.anchors, vocabulary) for logits in (scratch, made.logits))
    return distance(scratch, made.logits).mean(-1), one - two


def cache_findings(measures: CacheMeasures, tolerance: float) -> list[Finding]:
    """What the distances speak for; the first that explains the others is the suspect."""
    m, t = measures, tolerance
    stale = m.earlier > t
    missing = not stale and m.prompt[0] <= t < m.prompt[1]
    cut = not (stale or missing) and m.beginning[0] <= t < m.beginning[1]
    # Rows that a pass leaves behind are not there yet at a first draft.
    unlike = m.first > min(t, m.later / 4)
    masked = unlike and max(m.first, m.later) > t and not (stale or missing or cut)
    kept = not unlike and m.later > t
    rows = [
        ("drafts behind another prompt", "stale context", f"{m.earlier:.2f} apart", f"at most {t}", stale),
        ("drafts on another prompt", "context missing", _both(m.prompt), "the same", missing),
        ("drafts on another beginning", "context cut", _both(m.beginning), "the same", cut),
        ("first drafts, cache against scratch", "added mask", f"{m.first:.2f} apart", f"at most {t}", masked),
        (
            "later drafts, cache against scratch",
            "cache not cropped",
            f"{m.later:.2f} apart",
            f"at most {t}",
            kept,
        ),
    ]
    return [Finding(*row, nats=m.nats if row[-1] else 0.0, proven=True) for row in rows]


def _both(distances: tuple[float, float]) -> str:
    return f"{distances[0]:.2f} apart, from scratch {distances[1]:.2f}"
