"""Where two texts part, and how close the target's choice was there."""

from dataclasses import replace

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.decoding.compare import first_difference, first_divergence


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ([], [], None),
        ([5, 6], [5, 6], None),
        ([5, 6], [4, 6], 0),
        ([5, 6, 7], [5, 6, 8], 2),
        ([5, 6], [5, 6, 7], 2),
        ([5, 6], [5], 1),
        ([], [5], 0),
    ],
    ids=str,
)
def test_first_difference_by_hand(expected, found, place):
    assert first_difference(expected, found) == first_difference(found, expected) == place


def test_first_divergence(tiny_pair):
    pair = tiny_pair("tiny-llama")
    made = generate(pair, "Once upon", "autoregressive", max_new_tokens=12)
    assert first_divergence(pair, made, replace(made)) is None

    other = (made.ids[7] + 1) % 256
    changed = first_divergence(pair, made, replace(made, ids=[*made.ids[:7], other, *made.ids[8:]]))
    assert changed is not None
    assert (changed.position, changed.expected, changed.found) == (7, made.ids[7], other)
    # The gap is that of a plain forward pass: positive, since the reference took the best token.
    ids = torch.tensor([made.prompt_ids + made.ids[:7]])
    with torch.inference_mode():
        logits = pair.model(ids).logits[0, -1]
    assert changed.gap == pytest.approx(float(logits[made.ids[7]] - logits[other]), abs=1e-4)
    assert changed.gap > 0

    shorter = first_divergence(pair, made, replace(made, ids=made.ids[:5]))
    assert shorter is not None
    assert (shorter.position, shorter.found) == (5, None)
