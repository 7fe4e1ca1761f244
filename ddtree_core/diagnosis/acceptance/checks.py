"""The autopsy's checks: small experiments on a pair, each with the value that a healthy pair gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from ddtree_core.diagnosis.acceptance.case import Case, score, spread
from ddtree_core.diagnosis.acceptance.causes import CAUSES
from ddtree_core.diagnosis.acceptance.symptoms import record
from ddtree_core.diagnosis.acceptance.what_if import FEW, Gain
from ddtree_core.diagnosis.acceptance.wired_draft import WiredDraft
from ddtree_core.trees import DraftTree, chain

WORTH = 0.75  # nats per token that the context is worth at least
UNLIKE = 0.3  # nats per token by which drafts on texts of one pair may differ
STRANGE = 2.0  # nats per token by which prompts may surprise the target more than known ones


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


def check_precision(case: Case) -> Finding:
    """Static: float16 overflows in drafters, whatever it does on these prompts."""
    dtype = case.draft.wiring.dtype
    return Finding(
        check="precision of the drafter",
        cause="precision",
        measured=str(dtype).removeprefix("torch."),
        expected="bfloat16 or float32",
        suspicious=dtype == torch.float16,
        proven=True,
    )


@torch.inference_mode()
def check_target(case: Case) -> tuple[Finding, float]:
    """Let the pair's target reject three tokens and read the next; gives the error of its features, too."""
    text, layer_ids, target = case.texts[0], case.draft.layer_ids, case.pair.open_target()
    at = min(16, len(text.ids) - 3)  # tokens read before
    target.prefill(text.ids[:at])
    size = case.pair.model.config.get_text_config(decoder=True).vocab_size
    wrong = (int(text.ids[at + 1]) + torch.arange(1, 4)) % size
    target.verify(chain(int(text.ids[at]), torch.nn.functional.one_hot(wrong, size).float()))
    target.commit([0])
    target.verify(DraftTree.root_only(int(text.ids[at + 1])))
    expected = text.features(layer_ids)[at + 1]
    error = float((target.commit([0])[0] - expected).norm() / expected.norm())
    finding = Finding(
        check="the target's features behind rejected tokens",
        cause="recurrent state",
        measured=f"{error:.1e} off those of the plain text",
        expected=f"below {case.feature_tolerance:g}",
        suspicious=not error <= case.feature_tolerance,
        proven=True,
    )
    return finding, error


def gain_finding(gain: Gain) -> Finding:
    """What the best other setting for one cause says."""
    return Finding(
        check=f"other settings: {gain.cause}",
        cause=gain.cause,
        measured=f"{gain.setting}: {gain.nats:+.2f} ± {gain.error:.2f} nats per token"
        if gain.changes
        else gain.setting,
        expected="no gain",
        suspicious=gain.clear,
        nats=gain.nats,
    )


def check_worth(case: Case, gains: Sequence[Gain]) -> Finding:
    """Is the context of use, as the drafter is run and under the best of the other settings?"""
    best = max((gain for gain in gains if gain.clear), key=lambda gain: gain.nats, default=None)
    worth = {"as it is": _worth(case, case.draft)}
    if best is not None:
        worth[best.setting] = _worth(case, case.draft.rewired(**best.changes))
    return Finding(
        check="what the context is worth, against another text's",
        cause="other target",
        measured=", ".join(f"{nats:+.2f} nats per token {name}" for name, nats in worth.items()),
        expected=f"above {WORTH} under one setting",
        suspicious=max(worth.values()) < WORTH,
        proven=True,
    )


def _worth(case: Case, draft: WiredDraft) -> float:
    """Nats per token that drafts of the known texts lose when the context is another's."""
    places, swapped = [spread(text, FEW) for text in case.known], []
    for text, other in zip(case.known, [*case.known[1:], case.texts[0]], strict=True):
        rows = torch.arange(text.outputs.shape[1]) % other.outputs.shape[1]
        swapped.append(replace(text, outputs=other.outputs[:, rows]))
    return float((score(draft, case.known, places) - score(draft, swapped, places)).mean())


def check_template(case: Case) -> Finding:
    """Do the same prompts draft better in the template's other thinking mode?"""
    pair, mode = case.pair, "enable_thinking"
    chat = not isinstance(case.prompts[0], str) and isinstance(case.prompts[0][0], Mapping)
    measured, nats = "there is none", 0.0
    if chat and mode in str(pair.tokenizer.chat_template):
        other = {**pair.template, mode: not pair.template.get(mode, True)}
        texts = record(replace(pair, template=other), case.prompts)
        scores = score(case.draft, texts, [spread(text, FEW) for text in texts])
        nats = float(scores.mean() - case.scores.mean())
        measured = f"{nats:+.2f} nats per token"
    return Finding(
        check="drafts in the other thinking mode",
        cause="chat template",
        measured=measured,
        expected=f"below +{UNLIKE}",
        suspicious=nats > UNLIKE,
        nats=nats,
    )


def check_input(case: Case) -> Finding:
    """Is the input as likely to the target as known prompts are, or do drafts suffer with it?"""
    own, known = (fmean(text.surprise for text in texts) for texts in (case.texts, case.known))
    scores = score(case.draft, case.known, [spread(text, FEW) for text in case.known])
    nats = float(scores.mean() - case.scores.mean())
    return Finding(
        check="how surprising the prompts are to the target",
        cause="input",
        measured=f"{own:.1f} nats per token; known prompts {known:.1f}, and drafts on them {nats:+.2f}",
        expected=f"below {known + STRANGE:.1f}",
        suspicious=own > known + STRANGE and nats > UNLIKE,
        nats=nats,
    )
