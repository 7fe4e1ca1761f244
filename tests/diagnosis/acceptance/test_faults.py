"""Faults: each changes what the drafter drafts, never what the target says, and leaves the pair alone."""

from dataclasses import replace

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.diagnosis.acceptance import CAUSES, FAULTS, NotApplicable, inject, wiring_of
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models import ModelPair
from tests.diagnosis.acceptance.four_rounds import drafts
from tests.training.test_blocks import KINDS, random_drafter

# What the shipped hybrid pair cannot express, and why.
NOT_HERE = {
    "layer ids + 1": "not among the target's 8",
    "window ignored": "no sliding layers",
    "other thinking mode": "no thinking mode",
}
DRAFTING = [name for name, fault in FAULTS.items() if fault.side == "drafting" and name not in NOT_HERE]


@pytest.fixture(scope="module")
def own_texts(hybrid: ModelPair, prompts: list[list[int]]) -> list[list[int]]:
    """The target's own answers: autoregressive, 24 tokens."""
    return [generate(hybrid, prompt, "autoregressive", max_new_tokens=24).ids for prompt in prompts]


@pytest.fixture(scope="module")
def healthy_drafts(hybrid: ModelPair, transcripts: list[Transcript]) -> torch.Tensor:
    return drafts(hybrid, transcripts)


@pytest.mark.parametrize("name", DRAFTING)
def test_the_text_stays_the_targets_own_and_the_drafts_change(
    name: str,
    hybrid: ModelPair,
    prompts: list[list[int]],
    own_texts: list[list[int]],
    transcripts: list[Transcript],
    healthy_drafts: torch.Tensor,
):
    """Greedy float32 decoding of 16 tokens with trees of 8; the pair itself drafts as before, bit by bit."""
    draft, faulty = hybrid.draft, inject(hybrid, name)
    for prompt, own_text in zip(prompts, own_texts, strict=True):
        made = generate(faulty, prompt, "ddtree", budget=8, max_new_tokens=16)
        assert made.ids == own_text[:16]
    assert not torch.allclose(drafts(faulty, transcripts), healthy_drafts, rtol=1e-5, atol=1e-4)
    assert hybrid.draft is draft
    assert torch.equal(drafts(hybrid, transcripts), healthy_drafts)


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_a_pair_cannot_express_is_refused(name: str, hybrid: ModelPair):
    with pytest.raises(NotApplicable, match=NOT_HERE[name]):
        inject(hybrid, name)


@pytest.mark.parametrize("name", ["layer ids + 1", "window ignored"])
def test_drafting_faults_that_the_hybrid_pair_cannot_express(name: str, tiny_pair):
    """The same on a random drafter with windows, which captures blocks 0 and 2 of 4."""
    pair = tiny_pair("tiny-llama", packed=False)
    pair = replace(pair, draft=random_drafter(pair, *KINDS["sliding below full"]))
    faulty, prompt = inject(pair, name), list(range(40, 60))
    expected = generate(pair, prompt, "autoregressive", max_new_tokens=16).ids
    assert generate(faulty, prompt, "ddtree", budget=8, max_new_tokens=16).ids == expected
    features, ids = torch.randn(20, 128), torch.randint(0, 250, (21,))
    healthy, drafted = (one.open_drafter([]).draft(features, ids[1:]) for one in (pair, faulty))
    assert torch.allclose(healthy, drafted) == (name == "layer ids + 1")  # which are other features
    assert faulty.draft.layer_ids == ((1, 3) if name == "layer ids + 1" else (0, 2))


def test_a_state_that_keeps_rejected_tokens_writes_another_text(
    hybrid: ModelPair, prompts: list[list[int]], own_texts: list[list[int]]
):
    """The one fault of the target: the text leaves its own, unless no token is ever rejected."""
    faulty = inject(hybrid, "recurrent state kept")
    written = [generate(faulty, prompt, "ddtree", budget=8, max_new_tokens=24).ids for prompt in prompts]
    assert written != own_texts
    assert generate(faulty, prompts[0], "autoregressive", max_new_tokens=24).ids == own_texts[0]


def test_shuffled_input_is_the_same_tokens_in_another_order(hybrid: ModelPair, prompts: list[list[int]]):
    fault = FAULTS["shuffled input"]
    for prompt, shuffled in zip(prompts, fault.prompts(hybrid, prompts), strict=True):
        assert shuffled != prompt
        assert torch.tensor(shuffled).sort().values.tolist() == sorted(prompt)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.cache_alone])
def test_faults_of_the_cache_alone_draft_rightly_from_scratch(
    name: str, hybrid: ModelPair, transcripts: list[Transcript]
):
    """Every draft is the healthy pair's, bit by bit, where no cache takes part."""
    made = [Scratch(wired(pair), transcripts).logits for pair in (inject(hybrid, name), hybrid)]
    assert all(torch.equal(faulty, healthy) for faulty, healthy in zip(*made, strict=True))


def test_every_cause_can_be_injected():
    assert {fault.cause for fault in FAULTS.values()} == set(CAUSES)


def test_faults_add_up(hybrid: ModelPair):
    """A fault of an injected pair keeps the first one."""
    wiring = wiring_of(inject(inject(hybrid, "anchor missing"), "causal block"))
    assert (wiring.anchor, wiring.causal) == (False, (True, True, True))


def test_an_unknown_fault_is_refused(hybrid: ModelPair):
    with pytest.raises(ValueError, match="unknown fault 'gremlins'; known are anchor missing, layer ids"):
        inject(hybrid, "gremlins")


def test_a_pair_without_a_dflash_drafter_is_refused(tiny_pair):
    with pytest.raises(ValueError, match="drafter of tiny-llama is a BlurredLookahead, expected a DFlash"):
        inject(tiny_pair("tiny-llama"), "anchor missing")
