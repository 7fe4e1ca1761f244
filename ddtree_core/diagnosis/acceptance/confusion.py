"""Every fault injected into a healthy pair, and what the autopsy makes of it without knowing the fault."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tqdm.auto import tqdm

from ddtree_core.decoding.prompts import Prompt
from ddtree_core.diagnosis.acceptance.autopsy import examine
from ddtree_core.diagnosis.acceptance.case import Case
from ddtree_core.diagnosis.acceptance.faults import FAULTS, Fault, NotApplicable, inject
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.settings import is_clear
from ddtree_core.diagnosis.acceptance.transcripts import record, record_with_known
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models.pair import ModelPair


def confusion(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    faults: Sequence[str] = tuple(FAULTS),
    *,
    max_new_tokens: int = 40,
) -> list[dict[str, Any]]:
    """One row per fault: its symptoms, and the first three suspects of an autopsy that does not know it.

    The first row is the healthy pair. `place` is the right cause's among the suspects, from 1, None where it
    is not there; `symptom` tells whether anything measured differs from the healthy pair, `loss` and `error`
    by how many nats per token its drafts are worse. A fault that the pair cannot express has a `reason`
    and nothing else.
    """
    draft = wired(pair)
    given, known = record_with_known(pair, prompts, max_new_tokens)
    healthy = Case(pair, prompts, Scratch(draft, given), Scratch(draft, known))
    rows = [_row(healthy, healthy, "healthy", "")]
    for name in tqdm(faults, desc=f"faults of {pair.name}"):
        fault = FAULTS[name]
        try:
            faulty = inject(pair, name)
        except NotApplicable as reason:
            rows.append({"pair": pair.name, "fault": name, "cause": fault.cause, "reason": str(reason)})
            continue
        rows.append(_row(_case(faulty, fault, healthy, max_new_tokens), healthy, name, fault.cause))
    return rows


def _case(faulty: ModelPair, fault: Fault, healthy: Case, max_new_tokens: int) -> Case:
    """A faulty pair. What its fault leaves alone is measured once, on the healthy pair."""
    if fault.cache_alone:
        case = Case(faulty, healthy.prompts, healthy.given, healthy.known)
        case.gains, case.feature_error = healthy.gains, healthy.feature_error
        return case
    draft, asked = wired(faulty), fault.prompts(faulty, healthy.prompts)
    answers = healthy.given.transcripts
    if fault.side == "input":
        answers = record(faulty, asked, max_new_tokens)
    case = Case(faulty, asked, Scratch(draft, answers), Scratch(draft, healthy.known.transcripts))
    if fault.side == "drafting" and draft.layer_ids == healthy.given.draft.layer_ids:
        case.feature_error = healthy.feature_error
    return case


def _row(case: Case, healthy: Case, fault: str, cause: str) -> dict[str, Any]:
    found = examine(case)
    symptoms, causes = found.symptoms, [suspect.cause for suspect in found.suspects]
    loss, error = float(healthy.given.scores.mean()) - symptoms.likelihood, _error(case, healthy)
    first, second, third = [*causes, "", "", ""][:3]
    wrong = symptoms.cache_error > case.tolerance or symptoms.feature_error > case.feature_tolerance
    return {
        "pair": case.pair.name,
        "fault": fault,
        "cause": cause,
        "reason": "",
        "first": first,
        "second": second,
        "third": third,
        "place": causes.index(cause) + 1 if cause in causes else None,
        "symptom": wrong or is_clear(loss, error),
        "loss": loss,
        "error": error,
        **asdict(symptoms),
    }


def _error(case: Case, healthy: Case) -> float:
    """Standard error of what drafts from scratch lose against the healthy pair's."""
    if case.given.transcripts is healthy.given.transcripts:
        return case.given.standard_error(healthy.given.scores - case.given.scores)
    return math.hypot(*(one.given.standard_error(one.given.scores) for one in (healthy, case)))
