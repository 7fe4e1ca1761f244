"""Every known cause is recognised on trained pairs, and nothing is found on the healthy ones."""

from typing import Any

import pytest

from ddtree_core.decoding import load_prompts
from ddtree_core.diagnosis.acceptance import confusion
from ddtree_core.models import ModelPair

PROMPTS = [prompt["messages"] for prompt in load_prompts(["math", "code", "chat"], 2)[1::2]]


def check_bar(rows: list[dict[str, Any]], counted: int) -> None:
    """The right cause first in 80% of the faults with a symptom and among the first three in 95%; nothing to
    complain about on the healthy pair.
    """
    healthy, *faulty = rows
    assert (healthy["fault"], healthy["first"], healthy["symptom"]) == ("healthy", "", False)
    places = [row["place"] or 99 for row in faulty if row.get("symptom")]
    assert len(places) >= counted
    assert sum(place == 1 for place in places) >= 0.8 * len(places)
    assert sum(place <= 3 for place in places) >= 0.95 * len(places)


def test_causes_are_recognised_on_the_hybrid_pair(hybrid: ModelPair):
    rows = confusion(hybrid, PROMPTS, max_new_tokens=32)
    check_bar(rows, 24)
    reasons = {row["fault"]: row["reason"] for row in rows if row["reason"]}
    assert reasons["window ignored"] == "the drafter has no sliding layers"
    # Acceptance itself: a missing anchor halves what is accepted; a foreign head leaves nothing.
    tau = {row["fault"]: row["acceptance_length"] for row in rows if not row["reason"]}
    assert tau["anchor missing"] - 1 < 0.5 * (tau["healthy"] - 1)
    assert tau["head permuted"] < 1.1


@pytest.mark.smollm2
def test_causes_are_recognised_on_the_default_pair(smollm2: ModelPair):
    check_bar(confusion(smollm2, PROMPTS, max_new_tokens=32), 20)
