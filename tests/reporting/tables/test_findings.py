"""Sentences say what the tables hold, good or bad."""

from dataclasses import replace

import pandas as pd
import pytest

from ddtree_core.decoding import generate
from ddtree_core.reporting.tables import findings


@pytest.fixture(scope="module")
def made(tiny_pair):
    pair = tiny_pair("tiny-llama")
    settings = [("autoregressive", None), ("dflash", None), ("ddtree", 8)]
    return [generate(pair, "Once upon", m, budget=b, max_new_tokens=10) for m, b in settings]


def test_same_text(tiny_pair, made):
    pair = tiny_pair("tiny-llama")
    said = findings.same_text(pair, made)
    assert said.startswith("**Identical.** All 2 drafted generations on 1 prompts")
    assert f"{2 * len(made[0].ids)} tokens compared" in said

    broken = replace(made[2], ids=[*made[2].ids[:4], (made[2].ids[4] + 1) % 256])
    said = findings.same_text(pair, [*made[:2], broken])
    assert said.startswith("**1 of 2 generations part from the autoregressive text** (float32)")
    assert "DDTree 8 at token 4 (logit gap" in said

    with pytest.raises(ValueError, match="1 prompts have no autoregressive text"):
        findings.same_text(pair, made[1:])


SUMMARY = pd.DataFrame(
    {
        "domain": ["chat", "chat", "math", "math"],
        "method": ["autoregressive", "ddtree", "autoregressive", "ddtree"],
        "variant": ["Autoregressive", "DDTree 8", "Autoregressive", "DDTree 8"],
        "tau": [1.0, 1.5, 1.0, 2.25],
        "speedup": [1.0, 0.9, 1.0, 1.4],
    }
)


def test_acceptance_and_speed():
    assert findings.acceptance(SUMMARY) == "- **DDTree 8**: τ 2.25 on `math` down to 1.50 on `chat`"
    assert findings.speed(SUMMARY) == (
        "Fastest against autoregressive decoding: **DDTree 8 on `math` (1.40×)**. "
        "Slower than autoregressive decoding, 1 of 2: DDTree 8 on `chat` (0.90×)."
    )
    partly = SUMMARY.assign(tau=[1.0, float("nan"), 1.0, 2.25])  # no round on chat
    assert findings.acceptance(partly) == "- **DDTree 8**: τ 2.25 on `math`"
    assert findings.acceptance(SUMMARY.assign(tau=float("nan"))).startswith("- There is no round with drafts")
    assert "No setting was slower" in findings.speed(SUMMARY.iloc[2:])
    assert "no speed-up can be stated" in findings.speed(SUMMARY.assign(speedup=float("nan")))


CONFUSION = pd.DataFrame(
    {
        "pair": ["a"] * 5 + ["b"] * 2,
        "fault": ["healthy", "theta", "head", "window", "causal", "healthy", "theta"],
        "reason": ["", "", "", "", "", "", "no RoPE"],
        "place": [None, 1, 3, None, None, None, None],
        "symptom": [False, True, True, True, False, False, None],
        "acceptance_rate": [0.3, 0.02, 0.0, 0.2, 0.3, 0.1, None],
    }
)


def test_recognition_counts_only_faults_that_show():
    """Pair a: theta first, head third, window nowhere; causal shows nothing. Pair b could express none."""
    assert findings.recognition(CONFUSION) == (
        "- `a`: of 3 faults that show, the right cause comes first in 1 and among the first three in 2. "
        "Without a symptom on these prompts: causal."
    )


def test_near_nothing_names_the_worst_first():
    assert findings.near_nothing(CONFUSION) == "- `a`: head (0.0%), theta (2.0%)"
    assert findings.near_nothing(CONFUSION, 0.01) == "- `a`: head (0.0%)"
    assert findings.near_nothing(CONFUSION, -1.0) == "- `a`: none"
