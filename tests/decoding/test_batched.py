"""The batch writes what the decoding loop writes, and keeps the features that a drafter will be given."""

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.decoding.batched import read_texts, write_texts
from ddtree_core.models import ModelPair, Target

PROMPTS = [[72, 105], [65, 66, 67, 68, 69], [33], [80, 81, 82]]
LAYERS = (2, 0)
HALF = 2e-3  # features are stored in float16: 11 bits, relative


@pytest.fixture
def pair(tiny_pair) -> ModelPair:
    return tiny_pair("tiny-llama", packed=False)


def test_batched_texts_equal_those_of_the_decoding_loop(pair: ModelPair):
    """Padding on the left, with rows that leave early, must not change a token."""
    stop = generate(pair, PROMPTS[1], method="autoregressive", max_new_tokens=6, stop=()).ids[5]
    written = write_texts(pair.model, PROMPTS, max_new_tokens=12, stop_ids=(stop,))
    for prompt, text in zip(PROMPTS, written, strict=True):
        alone = generate(pair, prompt, method="autoregressive", max_new_tokens=12, stop=()).ids
        alone = alone[: alone.index(stop) + 1] if stop in alone else alone
        assert text.ids.tolist() == prompt + alone
        assert text.prompt_length == len(prompt)
    assert len(written[1].ids) < len(PROMPTS[1]) + 12  # this row did leave before the others


def test_features_are_the_blocks_outputs(pair: ModelPair):
    """Reference: the library's `hidden_states` of each text alone, block k being entry k + 1."""
    for text in write_texts(pair.model, PROMPTS, max_new_tokens=5, stop_ids=(), layer_ids=LAYERS):
        with torch.no_grad():
            out = pair.model.model(text.ids[None, :-1], output_hidden_states=True)
        expected = torch.cat([out.hidden_states[k + 1][0] for k in LAYERS], dim=-1)
        torch.testing.assert_close(text.features.float(), expected, rtol=HALF, atol=HALF)
        torch.testing.assert_close(text.final.float(), out.last_hidden_state[0], rtol=HALF, atol=HALF)


def test_features_equal_the_targets_prefill(pair: ModelPair):
    """What training stores is what decoding will hand to the drafter."""
    (text,) = write_texts(pair.model, PROMPTS[1:2], max_new_tokens=5, stop_ids=(), layer_ids=LAYERS)
    scores = Target(pair.model, LAYERS).prefill(text.ids[:-1])
    torch.testing.assert_close(text.features.float(), scores.features, rtol=HALF, atol=HALF)


def test_reading_a_text_gives_what_writing_it_gave(pair: ModelPair):
    written = write_texts(pair.model, PROMPTS, max_new_tokens=7, stop_ids=(), layer_ids=LAYERS)
    again = read_texts(pair.model, [(t.ids.tolist(), t.prompt_length) for t in written], LAYERS)
    for one, other in zip(written, again, strict=True):
        assert torch.equal(one.ids, other.ids)
        torch.testing.assert_close(one.features, other.features, rtol=HALF, atol=HALF)
        torch.testing.assert_close(one.final, other.final, rtol=HALF, atol=HALF)


def test_a_finished_answer_leaves_the_batch(pair: ModelPair):
    texts = write_texts(
        pair.model, PROMPTS, max_new_tokens=9, stop_ids=(), finished=lambda answer: len(answer) == 4
    )
    assert [len(t.ids) - t.prompt_length for t in texts] == [4, 4, 4, 4]


@pytest.mark.parametrize("kind", ["tiny-qwen3", "tiny-sliding"])
def test_every_kind_of_cache_can_be_batched(kind: str, tiny_pair):
    """The sliding pair's window of 16 is passed by prompt and answer together."""
    pair = tiny_pair(kind, packed=False)
    prompts = [list(range(60, 72)), [65, 66], list(range(90, 110))]
    texts = write_texts(pair.model, prompts, max_new_tokens=10, stop_ids=())
    for prompt, text in zip(prompts, texts, strict=True):
        alone = generate(pair, prompt, method="autoregressive", max_new_tokens=10, stop=()).ids
        assert text.ids.tolist() == prompt + alone
