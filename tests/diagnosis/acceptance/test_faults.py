"""Faults: each changes what the drafter drafts, never what the target says, and leaves the pair alone."""

from dataclasses import replace

import pytest
import torch

from ddtree_core.decoding import encode_prompt, generate, load_prompts
from ddtree_core.diagnosis.acceptance.causes import CAUSES
from ddtree_core.diagnosis.acceptance.faults import FAULTS, NotApplicable, inject
from ddtree_core.diagnosis.acceptance.symptoms import Text, record
from ddtree_core.diagnosis.acceptance.wired_draft import WiredDraft, wired
from ddtree_core.diagnosis.acceptance.wiring import wiring_of
from ddtree_core.models import ModelPair, load_pair
from ddtree_core.models.drafter import DFlashDrafter, Drafter
from tests.models.test_drafter import THETA, rotate
from tests.training.test_blocks import KINDS, random_drafter

# What the shipped hybrid pair cannot express, and why.
NOT_HERE = {
    "layer ids + 1": "not among the target's 8",
    "window ignored": "no sliding layers",
    "other thinking mode": "no thinking mode",
}


@pytest.fixture(scope="module")
def hybrid() -> ModelPair:
    """The shipped pair of four million parameters, trained, with a recurrent target."""
    return load_pair("hybrid-4m")


@pytest.fixture(scope="module")
def prompts(hybrid: ModelPair) -> list[list[int]]:
    """A prompt of each shipped set."""
    shipped = load_prompts(["math", "code"], 2)[1::2]
    return [encode_prompt(hybrid.tokenizer, prompt["messages"]) for prompt in shipped]


@pytest.fixture(scope="module")
def texts(hybrid: ModelPair, prompts: list[list[int]]) -> list[Text]:
    return record(hybrid, prompts, 16)


def drafts(pair: ModelPair, texts: list[Text]) -> torch.Tensor:
    """Logits of four rounds along each text, committing one, three and two tokens after the prompt."""
    rounds = []
    for text in texts:
        drafter, features, done = pair.open_drafter([]), text.features(pair.draft.layer_ids), 0
        for at in (text.prompt_length + step for step in (0, 1, 4, 6)):
            rounds.append(drafter.draft(features[done:at], text.ids[done + 1 : at + 1]))
            done = at
    return torch.stack(rounds)


def test_a_wiring_runs_a_checkpoint_as_the_drafter_does(hybrid: ModelPair, texts: list[Text]):
    """The same weights by another implementation: every number of four rounds, cached and from scratch."""
    draft, expected = wired(hybrid), drafts(hybrid, texts)
    torch.testing.assert_close(drafts(replace(hybrid, draft=draft), texts), expected, rtol=1e-5, atol=1e-4)
    scratch = []
    for text in texts:
        context = draft.context(text.features(draft.layer_ids), 0)
        places = text.prompt_length + torch.tensor([0, 1, 4, 6])
        scratch.append(draft.at(context, text.ids, places, draft.depth))
    torch.testing.assert_close(torch.cat(scratch), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_and_causal_layers_run_as_in_the_drafter(kind: str, tiny_pair):
    """Layers with windows, causal in the block or not, at a first round of 9 features and a second of 3."""
    pair = tiny_pair("tiny-llama", packed=False)
    model = random_drafter(pair, *KINDS[kind])
    pair = replace(pair, draft=model)
    features, ids = torch.randn(12, 128), torch.randint(0, 250, (13,))

    def two_rounds(drafter: Drafter) -> torch.Tensor:
        first = drafter.draft(features[:9], ids[1:10])
        return torch.stack([first, drafter.draft(features[9:], ids[10:])])

    given = two_rounds(wired(pair).open(pair.model, []))
    torch.testing.assert_close(given, two_rounds(DFlashDrafter(model, pair.model)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", FAULTS)
def test_the_text_stays_the_targets_own_and_the_drafts_change(
    name: str, hybrid: ModelPair, prompts: list[list[int]], texts: list[Text]
):
    """Greedy float32 decoding of 16 tokens with trees of 8; the healthy pair's autoregressive text is due."""
    fault = FAULTS[name]
    if name in NOT_HERE:
        with pytest.raises(NotApplicable, match=NOT_HERE[name]):
            inject(hybrid, name)
        return
    sick = inject(hybrid, name)
    given = [p if isinstance(p, list) else [] for p in fault.prompts(sick, prompts)]
    for prompt in given:
        expected = generate(hybrid, prompt, "autoregressive", max_new_tokens=16).ids
        same = generate(sick, prompt, "ddtree", budget=8, max_new_tokens=16).ids == expected
        assert same or fault.side == "target"
    if fault.side == "drafting":
        assert not torch.allclose(drafts(sick, texts), drafts(hybrid, texts), rtol=1e-5, atol=1e-4)
    elif fault.side == "input":
        assert given != prompts


@pytest.mark.parametrize("name", ["layer ids + 1", "window ignored"])
def test_drafting_faults_that_the_hybrid_pair_cannot_express(name: str, tiny_pair):
    """The same on a random drafter with windows, which captures blocks 0 and 2 of 4."""
    pair = tiny_pair("tiny-llama", packed=False)
    pair = replace(pair, draft=random_drafter(pair, *KINDS["sliding below full"]))
    sick, prompt = inject(pair, name), list(range(40, 60))
    expected = generate(pair, prompt, "autoregressive", max_new_tokens=16).ids
    assert generate(sick, prompt, "ddtree", budget=8, max_new_tokens=16).ids == expected
    features, ids = torch.randn(20, 128), torch.randint(0, 250, (21,))
    healthy, drafted = (one.open_drafter([]).draft(features, ids[1:]) for one in (pair, sick))
    assert torch.allclose(healthy, drafted) == (name == "layer ids + 1")  # which are other features
    assert sick.draft.layer_ids == ((1, 3) if name == "layer ids + 1" else (0, 2))


def test_a_state_that_keeps_rejected_tokens_writes_another_text(hybrid: ModelPair, prompts: list[list[int]]):
    """The one fault of the target: the text leaves its own, unless no token is ever rejected."""
    sick = inject(hybrid, "recurrent state kept")
    told, expected = [], []
    for prompt in prompts:
        expected.append(generate(hybrid, prompt, "autoregressive", max_new_tokens=24).ids)
        told.append(generate(sick, prompt, "ddtree", budget=8, max_new_tokens=24).ids)
        assert generate(sick, prompt, "autoregressive", max_new_tokens=24).ids == expected[-1]
    assert told != expected


def test_the_healthy_pair_stays_as_it_was(hybrid: ModelPair, texts: list[Text]):
    before, draft = drafts(hybrid, texts), hybrid.draft
    for name in FAULTS.keys() - NOT_HERE.keys():
        drafts(inject(hybrid, name), texts)
    assert hybrid.draft is draft
    assert torch.equal(drafts(hybrid, texts), before)


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


def turned(hybrid: ModelPair, x: torch.Tensor, position: int, **changes) -> torch.Tensor:
    """One head, rotated as a wiring says."""
    draft = wired(hybrid).rewired(**changes)
    assert isinstance(draft, WiredDraft)
    return draft._rotate(x[None, None, None], draft._turns(torch.tensor([[position]]), x.dtype))[0, 0, 0]


def test_rotations_are_those_of_the_formula(hybrid: ModelPair):
    """Pair i of D channels turns by position · θ^(−2i/D): halves as `rotate` does it; neighbours are the
    same on channels in another order; a quarter of the head turns as a head of a quarter of the channels;
    a linear scaling by 4 turns as a quarter of the position.
    """
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    rope = {"rope_type": "default", "rope_theta": THETA}
    expected = rotate(x, 8)
    torch.testing.assert_close(turned(hybrid, x, 8, rope=rope), expected, rtol=1e-4, atol=1e-5)
    order = torch.arange(64).view(32, 2).T.flatten()  # evens, then odds
    found = turned(hybrid, x, 8, rope=rope, interleaved=True)
    torch.testing.assert_close(found[order], rotate(x[order], 8), rtol=1e-4, atol=1e-5)
    found = turned(hybrid, x, 8, rope=rope, rotated=0.25)
    torch.testing.assert_close(found[:16], rotate(x[:16], 8), rtol=1e-4, atol=1e-5)
    assert torch.equal(found[16:], x[16:])
    scaled = {**rope, "rope_type": "linear", "factor": 4.0}
    torch.testing.assert_close(turned(hybrid, x, 32, rope=scaled), expected, rtol=1e-4, atol=1e-5)


def test_an_added_boolean_mask_lets_empty_rows_in(hybrid: ModelPair, texts: list[Text]):
    """With one layer, attention over n rows and `room` empty ones with scores s + 1 and 0: the softmax by
    hand gives what the wiring gives.
    """
    draft = wired(hybrid)
    layer = draft._layers[0].self_attn
    context = draft.context(texts[0].features(draft.layer_ids)[:40], 0)[0]
    x = torch.randn(1, 8, 192, generator=torch.Generator().manual_seed(1))
    turns = draft._turns(40 + torch.arange(8)[None], x.dtype)
    own, everything = draft._rows(layer, x, turns), torch.ones(1, 8, 48, dtype=torch.bool)
    given = draft._attend(layer, x, turns, context, own, everything, True)
    q = draft._rotate(layer.q_norm(layer.q_proj(x).unflatten(-1, (3, 64))).transpose(1, 2), turns)
    k, v = (torch.cat([past, new], dim=2) for past, new in zip(context, own, strict=True))
    weights = (q @ k.mT * layer.scaling + 1).exp()  # (1, 3, 8, 48)
    out = weights @ v / (weights.sum(-1, keepdim=True) + 128 - 48)  # an empty row weighs e^0, its value is 0
    expected = layer.o_proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)
