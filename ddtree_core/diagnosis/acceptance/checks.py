"""The autopsy's checks: what is measured on a pair, beside the value that a healthy pair gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from ddtree_core.diagnosis.acceptance.case import Case
from ddtree_core.diagnosis.acceptance.causes import CAUSES
from ddtree_core.diagnosis.acceptance.context_cache import CacheMeasures
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.transcripts import Transcript, record

# All in nats per token.
MIN_CONTEXT_WORTH = 0.75  # what the context is worth at least
MAX_DIFFERENCE = 0.3  # between drafts on answers of one pair
MAX_SURPRISE = 2.0  # by which prompts may surprise the target more than known ones


@dataclass(frozen=True)
class Finding:
    """One check: what was measured, what a healthy pair gives, and the cause that a difference speaks for."""

    check: str
    cause: str
    measured: str
    expected: str
    suspicious: bool
    nats: float = 0.0  # per token of the target: what putting it right would bring, as far as measured
    proven: bool = False  # seen directly, not from what another setting brings

    @property
    def fix(self) -> str:
        return CAUSES[self.cause]


def check_precision(case: Case) -> list[Finding]:
    """Static: float16 overflows in drafters, whatever it does on these prompts."""
    dtype = case.given.draft.wiring.dtype
    finding = Finding(
        check="precision of the drafter",
        cause="precision",
        measured=str(dtype).removeprefix("torch."),
        expected="bfloat16 or float32",
        suspicious=dtype == torch.float16,
        proven=True,
    )
    return [finding]


def check_target(case: Case) -> list[Finding]:
    """Does the target forget the tokens that it rejects?"""
    finding = Finding(
        check="the target's features behind rejected tokens",
        cause="recurrent state",
        measured=f"{case.feature_error:.1e} off those of the plain text",
        expected=f"below {case.feature_tolerance:g}",
        suspicious=not case.feature_error <= case.feature_tolerance,
        proven=True,
    )
    return [finding]


def check_cache(case: Case) -> list[Finding]:
    """Does the whole prompt reach the drafter's cache, and does nothing else stay in it?"""
    return cache_findings(case.cache, case.tolerance)


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

    def off(distance: float) -> tuple[str, str]:
        return f"{distance:.2f} apart", f"at most {t}"

    def both(distances: tuple[float, float]) -> tuple[str, str]:
        return f"{distances[0]:.2f} apart, from scratch {distances[1]:.2f}", "the same"

    rows = [
        ("drafts behind another prompt", "stale context", off(m.earlier), stale),
        ("drafts on another prompt", "context missing", both(m.prompt), missing),
        ("drafts on another beginning", "context cut", both(m.beginning), cut),
        ("first drafts, cache against scratch", "added mask", off(m.first), masked),
        ("later drafts, cache against scratch", "cache not cropped", off(m.later), kept),
    ]
    return [
        Finding(check, cause, *values, suspicious, nats=m.nats if suspicious else 0.0, proven=True)
        for check, cause, values, suspicious in rows
    ]


def check_settings(case: Case) -> list[Finding]:
    """What does the best other setting for each cause say?"""
    return [
        Finding(
            check=f"other settings: {gain.cause}",
            cause=gain.cause,
            measured=f"{gain.setting}: {gain.nats:+.2f} ± {gain.error:.2f} nats per token"
            if gain.changes
            else gain.setting,
            expected="no gain",
            suspicious=gain.clear,
            nats=gain.nats,
        )
        for gain in case.gains
    ]


def check_worth(case: Case) -> list[Finding]:
    """Is the context of use, as the drafter is run and under the best of the other settings?"""
    worth = {"as it is": _context_worth(case.known, case.given.transcripts[0])}
    best = max((gain for gain in case.gains if gain.clear), key=lambda gain: gain.nats, default=None)
    if best is not None:
        rewired = case.known.rewired(best.changes)
        worth[best.setting] = _context_worth(rewired, case.given.transcripts[0])
    finding = Finding(
        check="what the context is worth, against another text's",
        cause="other target",
        measured=", ".join(f"{nats:+.2f} nats per token {name}" for name, nats in worth.items()),
        expected=f"above {MIN_CONTEXT_WORTH} under one setting",
        suspicious=max(worth.values()) < MIN_CONTEXT_WORTH,
        proven=True,
    )
    return [finding]


def _context_worth(known: Scratch, last: Transcript) -> float:
    """Nats per token that drafts lose when each context is the next transcript's, the last one's `last`."""
    swapped, transcripts = [], known.transcripts
    for transcript, other in zip(transcripts, [*transcripts[1:], last], strict=True):
        rows = torch.arange(transcript.outputs.shape[1]) % other.outputs.shape[1]
        swapped.append(replace(transcript, outputs=other.outputs[:, rows]))
    return float((known.sampled_scores - Scratch(known.draft, swapped).sampled_scores).mean())


def check_input(case: Case) -> list[Finding]:
    """Is the input as likely to the target as known prompts are, or do drafts suffer with it?"""
    own, known = (fmean(t.surprise for t in scratch.transcripts) for scratch in (case.given, case.known))
    nats = float(case.known.sampled_scores.mean() - case.given.scores.mean())
    finding = Finding(
        check="how surprising the prompts are to the target",
        cause="input",
        measured=f"{own:.1f} nats per token; known prompts {known:.1f}, and drafts on them {nats:+.2f}",
        expected=f"below {known + MAX_SURPRISE:.1f}",
        suspicious=own > known + MAX_SURPRISE and nats > MAX_DIFFERENCE,
        nats=nats,
    )
    return [finding]


def check_template(case: Case) -> list[Finding]:
    """Do the same prompts draft better in the template's other thinking mode?"""
    pair, mode = case.pair, "enable_thinking"
    chat = not isinstance(case.prompts[0], str) and isinstance(case.prompts[0][0], Mapping)
    measured, nats = "there is none", 0.0
    if chat and mode in str(pair.tokenizer.chat_template):
        other = replace(pair, template={**pair.template, mode: not pair.template.get(mode, True)})
        scores = Scratch(case.given.draft, record(other, case.prompts)).sampled_scores
        nats = float(scores.mean() - case.given.scores.mean())
        measured = f"{nats:+.2f} nats per token"
    finding = Finding(
        check="drafts in the other thinking mode",
        cause="chat template",
        measured=measured,
        expected=f"below +{MAX_DIFFERENCE}",
        suspicious=nats > MAX_DIFFERENCE,
        nats=nats,
    )
    return [finding]


CHECKS: Sequence[Callable[[Case], list[Finding]]] = (
    check_precision,
    check_target,
    check_cache,
    check_settings,
    check_worth,
    check_input,
    check_template,
)
