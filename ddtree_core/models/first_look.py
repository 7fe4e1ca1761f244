"""A first look at a loaded pair: the cheapest signs that its drafts will hardly be accepted.

A drafter that is wired wrongly (another output head, no context, a wrong mask token) still loads and still
gives the target's own text, only slowly. One short text tells: a working drafter's first token is often the
target's own choice there.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddtree_core.models.pair import ModelPair
from ddtree_core.trees import DraftTree, token_ids

# Predictable for any language model, but not without knowing the last token and what was read before.
QUESTION = "Tom has 3 boxes with 12 apples in each box. How many apples does he have?"
ANSWER = (
    "Tom has 3 boxes with 12 apples in each box. To find the total number of apples, multiply 3 by 12. So he "
    "has 3 * 12 = 36 apples."
)
# Fresh drafters along the answer, and drafts of each: what is wrong with the first draft shows as well as
# what goes wrong from draft to draft.
STARTS, DRAFTS = 4, 8
# Of the first drafted tokens. Small drafters of this workbook reach 0.47 and more; with a missing anchor, a
# wrong mask token or rotary layout, another embedding, head, or target, or no context, they stay under 0.35.
LEAST_AGREEMENT = 3 / 8

NEXT_STEP = "ddtree_core.diagnosis.acceptance.autopsy(pair)"  # named in every warning


class PairWarning(UserWarning):
    """A pair that loads, but in which something looks wrong: its drafts, or what the registry says of it."""


@dataclass(frozen=True)
class Check:
    """What was measured, and what a working pair gives."""

    check: str
    measured: str
    expected: str
    right: bool


@dataclass(frozen=True)
class FirstLook:
    """What a first look at a pair found."""

    pair: str
    dtype: torch.dtype  # of the drafter
    finite: bool  # every draft is
    agreed: int  # drafts whose first token is the target's choice
    drafted: int

    @property
    def agreement(self) -> float:
        """Share of drafts whose first token is the target's choice, 0 to 1."""
        return self.agreed / self.drafted

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks one by one, the most telling first."""
        return (
            Check(
                check="precision of the drafter",
                measured=str(self.dtype).removeprefix("torch."),
                expected="bfloat16 or float32",
                right=self.dtype != torch.float16,  # which overflows in drafters
            ),
            Check(
                check="drafts are finite numbers",
                measured="yes" if self.finite else "no",
                expected="yes",
                right=self.finite,
            ),
            Check(
                check="first drafted tokens that are the target's choice",
                measured=f"{self.agreed} of {self.drafted}",
                expected=f"{math.ceil(LEAST_AGREEMENT * self.drafted)} or more",
                right=self.agreement >= LEAST_AGREEMENT,
            ),
        )

    @property
    def warning(self) -> str | None:
        """One sentence on the first check that is not as on a working pair; None where all are."""
        for check in self.checks:
            if not check.right:
                return (
                    f"drafts of {self.pair} look wrong ({check.check}: {check.measured}, expected "
                    f"{check.expected}), so few of them will be accepted; {NEXT_STEP} looks for the cause"
                )
        return None


@torch.inference_mode()
def first_look(pair: ModelPair) -> FirstLook:
    """Let the target read one short text and the drafter draft at 32 places of it.

    It costs two passes of the target and one of the drafter per place. The text is fixed, so the same pair
    always gives the same.
    """
    prompt, answer = _read(pair)
    ids, n, m = torch.tensor([*prompt, *answer]), len(prompt), len(answer)
    target = pair.open_target()
    before = target.prefill(ids[:n])
    # The answer as a tree without branches: one pass gives the target's choice at every token of it.
    along = torch.arange(m)
    behind = target.verify(DraftTree(ids[n:], along - 1, along, torch.zeros(m)))
    choices, features = behind.logits.argmax(-1).tolist(), torch.cat([before.features, behind.features])
    agreed, drafted, finite = 0, 0, True
    for start in range(STARTS):
        first, end = (n + k * m // STARTS for k in (start, start + 1))
        drafter, done = pair.open_drafter(ids[:first].tolist()), 0
        for at in range(first, min(end, first + DRAFTS)):
            logits = drafter.draft(features[done:at], ids[done + 1 : at + 1])
            token = int(token_ids(logits[:1].argmax(-1), drafter.vocabulary))
            agreed, drafted, done = agreed + (token == choices[at - n]), drafted + 1, at
            finite = finite and bool(logits.isfinite().all())
    return FirstLook(pair.name, _dtype(pair), finite, agreed, drafted)


def warn_if_wrong(pair: ModelPair, stacklevel: int = 2) -> None:
    """Take a first look and give a `PairWarning` where it finds something, or where it fails.

    Weights that load stay loaded: what stops the look stops the first text as well, with its own error.
    """
    try:
        sentence = first_look(pair).warning
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        sentence = (
            f"a first look at {pair.name} failed ({type(error).__name__}: {reason}), so nothing is known of "
            f"its acceptance; {NEXT_STEP} looks closer"
        )
    if sentence:
        warnings.warn(sentence, PairWarning, stacklevel=stacklevel + 1)


def _read(pair: ModelPair) -> tuple[list[int], list[int]]:
    """Token ids of question and answer, in the chat template where there is one."""
    tokenizer: Any = pair.tokenizer
    if tokenizer.chat_template is None:
        prompt = tokenizer(QUESTION + "\n").input_ids
    else:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}],
            add_generation_prompt=True,
            return_dict=False,
            **pair.template,
        )
    return prompt, tokenizer(ANSWER, add_special_tokens=False).input_ids


def _dtype(pair: ModelPair) -> torch.dtype:
    weights = pair.draft.parameters() if isinstance(pair.draft, nn.Module) else ()
    return next((p.dtype for p in weights if p.is_floating_point()), pair.dtype)
