"""Symptoms by definition: replays against the decoding loop, and numbers worked by hand."""

import math
from dataclasses import replace

import pytest
import torch

from ddtree_core.decoding import generate, load_prompts
from ddtree_core.diagnosis.acceptance import inject
from ddtree_core.diagnosis.acceptance.symptoms import (
    MIN_PROBABILITY,
    distance,
    feature_error,
    likelihood,
    replay,
    summarise,
)
from ddtree_core.diagnosis.acceptance.transcripts import Transcript, record
from ddtree_core.models import ModelPair

PROMPTS = [prompt["messages"] for prompt in load_prompts(["math", "code", "chat"], 2)[1::2]]
NOTHING = dict(likelihood=0.0, context_dependence=0.0, cache_error=0.0, feature_error=0.0)


@pytest.mark.parametrize("fault", ["", "cache not cropped", "context cut"])
def test_replays_accept_what_the_loop_accepts(fault: str, hybrid: ModelPair):
    """Tokens of every round, the last cut by the text's end: the loop with a chain is the reference."""
    pair = inject(hybrid, fault) if fault else hybrid
    for prompt in PROMPTS:
        transcript = record(pair, [prompt], 20)[0]
        made = replay(pair.open_drafter([]), transcript, pair.draft.layer_ids)
        loop = generate(pair, prompt, "dflash", max_new_tokens=20)
        found = summarise([made], **NOTHING)
        assert [tokens for _, tokens in found.rounds] == [len(made.tokens) for made in loop.rounds]
        assert found.acceptance_length == (len(loop.ids) - 1) / len(loop.rounds)


def test_symptoms_by_hand(hybrid: ModelPair):
    """Two rounds of a drafter with two slots whose accepted drafts are 2 and 0, both with text to spare."""
    transcript = record(hybrid, PROMPTS[:1], 12)[0]
    ids, at = transcript.ids.tolist(), transcript.prompt_length

    class Scripted:
        vocabulary = None
        drafts = iter([ids[at + 1 : at + 3], [(ids[at + 4] + 1) % 2048, ids[at + 5]]])

        def draft(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.tensor(next(self.drafts)), 2048).float() * 100

    transcript = replace(transcript, ids=transcript.ids[: at + 5])
    made = replay(Scripted(), transcript, hybrid.draft.layer_ids)
    assert made.anchors.tolist() == [at, at + 3]
    found = summarise([made], **NOTHING)
    assert found.acceptance_length == 2.0  # four tokens behind the first root, two rounds
    assert found.acceptance_rate == 0.5  # two of four drafts
    assert found.rounds == ((at, 3), (at + 3, 1))
    assert found.slot1_agreement == 0.5
    assert found.accepted_by_slot == (0.5, 1.0)  # the second slot was reached once
    assert found.entropy < 1e-6


def test_likelihood_by_hand():
    """Tokens 3 and 1, with columns for tokens 1, 3 and 5; 4 has no column; behind the end is nothing."""
    transcript = Transcript(torch.tensor([0, 3, 1, 4]), 1, torch.zeros(1, 3, 1), 0.0)
    logits = torch.tensor([[[0.0, math.log(2), 0.0], [math.log(6), 0.0, 0.0]]])  # 2/4 for 3, 6/8 for 1
    vocabulary = torch.tensor([1, 3, 5])
    found = likelihood(logits, transcript, torch.tensor([0]), vocabulary)
    assert float(found) == pytest.approx((math.log(2 / 4) + math.log(6 / 8)) / 2)
    found = likelihood(logits, transcript, torch.tensor([2]), vocabulary)
    assert float(found) == pytest.approx(math.log(MIN_PROBABILITY))


def test_distance_by_hand():
    """Half the sum of |p − q|: of (3/4, 1/4) and (1/4, 3/4) it is 1/2; numbers that are none are far off."""
    one, two = torch.tensor([math.log(3), 0.0]), torch.tensor([0.0, math.log(3)])
    assert float(distance(one, two)) == pytest.approx(0.5)
    assert float(distance(one, torch.tensor([float("nan"), 0.0]))) == 1.0


def test_features_behind_rejected_tokens(hybrid: ModelPair):
    """Rounding alone on the pair as it is; another state altogether where rejected tokens stay in it."""
    transcript, layer_ids = record(hybrid, PROMPTS[:1], 8)[0], hybrid.draft.layer_ids
    assert feature_error(hybrid, transcript, layer_ids) < 1e-4
    assert feature_error(inject(hybrid, "recurrent state kept"), transcript, layer_ids) > 0.05
