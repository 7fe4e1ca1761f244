"""The second implementation of a drafter: the same numbers as the first, and wrong ones by their formula."""

from dataclasses import replace

import pytest
import torch

from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models import ModelPair
from ddtree_core.models.drafter import DFlashDrafter, Drafter
from tests.diagnosis.acceptance.four_rounds import drafts
from tests.models.test_drafter import THETA, rotate
from tests.training.test_blocks import KINDS, random_drafter


def test_a_wiring_runs_a_checkpoint_as_the_drafter_does(hybrid: ModelPair, transcripts: list[Transcript]):
    """The same weights by another implementation: every number of four rounds, cached and from scratch."""
    draft, expected = wired(hybrid), drafts(hybrid, transcripts)
    torch.testing.assert_close(
        drafts(replace(hybrid, draft=draft), transcripts), expected, rtol=1e-5, atol=1e-4
    )
    scratch = []
    for transcript in transcripts:
        context = draft.context(transcript.features(draft.layer_ids), 0)
        places = transcript.prompt_length + torch.tensor([0, 1, 4, 6])
        scratch.append(draft.at(context, transcript.ids, places, draft.depth))
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


def turned(hybrid: ModelPair, x: torch.Tensor, position: int, **changes) -> torch.Tensor:
    """One head, rotated as a wiring says."""
    draft = wired(hybrid).rewired(**changes)
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


def test_an_added_boolean_mask_lets_empty_rows_in(hybrid: ModelPair, transcripts: list[Transcript]):
    """With one layer, attention over n rows and `room` empty ones with scores s + 1 and 0: the softmax by
    hand gives what the wiring gives.
    """
    draft = wired(hybrid)
    layer = draft._layers[0].self_attn
    context = draft.context(transcripts[0].features(draft.layer_ids)[:40], 0)[0]
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
