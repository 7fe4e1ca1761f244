"""The acceptance autopsy: why a drafter that should work gets low acceptance.

A fixed list of checks runs on a pair as it is, whoever made it. What differs from what a healthy pair gives
is a suspect; suspects are ordered by what putting them right brings back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ddtree_core.decoding.prompts import Prompt
from ddtree_core.diagnosis.acceptance.case import Case
from ddtree_core.diagnosis.acceptance.checks import CHECKS, Finding
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.symptoms import Symptoms
from ddtree_core.diagnosis.acceptance.transcripts import record_with_known
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models.pair import ModelPair


@dataclass(frozen=True)
class Autopsy:
    """What was found on one pair."""

    pair: str
    symptoms: Symptoms
    findings: tuple[Finding, ...]  # in the order of the checks
    suspects: tuple[Finding, ...]  # those that differ from a healthy pair, the likeliest first

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
    draft = wired(pair)
    given, known = record_with_known(pair, prompts, max_new_tokens)
    return examine(Case(pair, prompts, Scratch(draft, given), Scratch(draft, known)))


@torch.inference_mode()
def examine(case: Case) -> Autopsy:
    """Symptoms, checks, suspects of a pair whose target has written its answers."""
    symptoms = case.symptoms
    findings = tuple(finding for check in CHECKS for finding in check(case))
    return Autopsy(case.pair.name, symptoms, findings, suspects=ranked(findings))


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The suspicious ones: first what was seen directly, then by what putting it right brings."""
    suspects = [finding for finding in findings if finding.suspicious]
    return tuple(sorted(suspects, key=lambda finding: (not finding.proven, -finding.nats)))
