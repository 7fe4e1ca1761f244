"""The acceptance autopsy: why a drafter that should work gets low acceptance.

A fixed list of checks runs on a pair as it is, whoever made it, the cheapest first. What differs from what a
healthy pair gives is a suspect; suspects are ordered by what putting them right brings back.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from tqdm.auto import tqdm

from ddtree_core.decoding.prompts import Prompt, load_prompts
from ddtree_core.diagnosis.acceptance.cache_checks import cache_findings, measure_cache
from ddtree_core.diagnosis.acceptance.case import Case, standard_error
from ddtree_core.diagnosis.acceptance.checks import (
    Finding,
    check_input,
    check_precision,
    check_target,
    check_template,
    check_worth,
    gain_finding,
)
from ddtree_core.diagnosis.acceptance.faults import FAULTS, NotApplicable, inject
from ddtree_core.diagnosis.acceptance.symptoms import Symptoms, Text, record, replay, summarise
from ddtree_core.diagnosis.acceptance.what_if import CLEAR, LEAST, best_gains
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models.pair import ModelPair


@dataclass(frozen=True)
class Autopsy:
    """What was found on one pair."""

    pair: str
    symptoms: Symptoms
    findings: tuple[Finding, ...]  # in the order of the checks

    @property
    def suspects(self) -> list[Finding]:
        """What differs from a healthy pair, the likeliest first: what was seen directly, then by what putting
        it right brings.
        """
        found = [finding for finding in self.findings if finding.suspicious]
        return sorted(found, key=lambda finding: (not finding.proven, -finding.nats))

    @property
    def healthy(self) -> bool:
        return not self.suspects

    def __str__(self) -> str:
        tau = f"{self.pair}: {self.symptoms.acceptance_length:.2f} tokens per round"
        if self.healthy:
            return f"{tau}; all {len(self.findings)} checks are as on a healthy pair"
        lines = [
            f"{n}. {f.cause} ({f.check}: {f.measured}, expected {f.expected}). {f.fix}"
            for n, f in enumerate(self.suspects, start=1)
        ]
        return "\n".join([f"{tau}; suspects:", *lines])


def autopsy(pair: ModelPair, prompts: Sequence[Prompt], *, max_new_tokens: int = 40) -> Autopsy:
    """Examine a pair on `prompts`: the target answers each once, and a few dozen drafters draft the answers.

    Raises `ValueError` for a pair whose drafter is none of DFlash's, and for prompts without answers.
    """
    draft, texts = wired(pair), record(pair, prompts, max_new_tokens)
    return examine(Case(pair, draft, prompts, texts, known_texts(pair, prompts, max_new_tokens)))


def known_texts(pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int = 40) -> list[Text]:
    """The target's answers to a shipped prompt of each set: what the given `prompts` are held against.

    Those are others than the given ones, since a context that belongs to another prompt must show.
    """
    chat, chosen = pair.tokenizer.chat_template is not None, []
    for name in ("chat", "code", "math"):
        shipped = [prompt["messages"] for prompt in load_prompts([name])]
        known = [messages if chat else messages[0]["content"] for messages in shipped]
        chosen.append(next((prompt for prompt in known if prompt not in prompts), known[-1]))
    return record(pair, chosen, max_new_tokens)


@torch.inference_mode()
def examine(case: Case) -> Autopsy:
    """All checks on a pair whose target has written the texts already."""
    pair, draft, texts = case.pair, case.draft, case.texts
    drafters = [pair.open_drafter(text.ids[: text.prompt_length].tolist()) for text in texts]
    replays = [replay(d, t, draft.layer_ids) for d, t in zip(drafters, texts, strict=True)]
    cache = measure_cache(case, replays)
    target, feature_error = check_target(case)
    gains = best_gains(case)
    findings = [
        check_precision(case),
        target,
        *cache_findings(cache, case.tolerance),
        *(gain_finding(gain) for gain in gains),
        check_worth(case, gains),
        check_input(case),
        check_template(case),
    ]
    symptoms = summarise(
        replays,
        likelihood=float(case.scores.mean()) - cache.nats,
        context_dependence=cache.prompt[0],
        cache_error=max(cache.first, cache.later),
        feature_error=feature_error,
    )
    return Autopsy(pair.name, symptoms, tuple(findings))


def confusion(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    faults: Sequence[str] = tuple(FAULTS),
    *,
    max_new_tokens: int = 40,
) -> list[dict[str, Any]]:
    """One row per fault: its symptoms, and the first three suspects of an autopsy that is not told about it.

    The first row is the healthy pair. `place` is the right cause's among the suspects, from 1, None where it
    is not there; `symptom` tells whether anything measured differs from the healthy pair, `loss` and `error`
    by how many nats per token its drafts are worse. A fault that the pair cannot express has a `reason`
    and nothing else.
    """
    texts, known = record(pair, prompts, max_new_tokens), known_texts(pair, prompts, max_new_tokens)
    healthy = Case(pair, wired(pair), prompts, texts, known)
    rows = [_row(healthy, healthy, "healthy", "")]
    for name in tqdm(faults, desc=f"faults of {pair.name}"):
        fault = FAULTS[name]
        try:
            sick = inject(pair, name)
        except NotApplicable as reason:
            rows.append({"pair": pair.name, "fault": name, "cause": fault.cause, "reason": str(reason)})
            continue
        given = fault.prompts(sick, prompts)
        read = texts if fault.side != "input" else record(sick, given, max_new_tokens)
        rows.append(_row(Case(sick, wired(sick), given, read, known), healthy, name, fault.cause))
    return rows


def _row(case: Case, healthy: Case, fault: str, cause: str) -> dict[str, Any]:
    found = examine(case)
    look = found.symptoms
    loss, error = float(healthy.scores.mean()) - look.likelihood, _error(case, healthy)
    named = [suspect.cause for suspect in found.suspects]
    first, second, third = [*named, "", "", ""][:3]
    seen = look.cache_error > case.tolerance or look.feature_error > case.feature_tolerance
    return {
        "pair": case.pair.name,
        "fault": fault,
        "cause": cause,
        "reason": "",
        "first": first,
        "second": second,
        "third": third,
        "place": named.index(cause) + 1 if cause in named else None,
        "symptom": seen or loss > max(LEAST, CLEAR * error),
        "loss": loss,
        "error": error,
        **asdict(look),
    }


def _error(case: Case, healthy: Case) -> float:
    """Standard error of what drafts from scratch lose against the healthy pair's."""
    if case.texts is healthy.texts:
        return standard_error(healthy.scores - case.scores, case.texts)
    return math.hypot(*(standard_error(one.scores, one.texts) for one in (healthy, case)))
