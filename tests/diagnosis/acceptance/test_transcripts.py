"""Transcripts: the target's own text, its blocks' outputs, and how likely it finds a prompt."""

import pytest
import torch

from ddtree_core.decoding import encode_prompt, generate, load_prompts
from ddtree_core.diagnosis.acceptance.transcripts import known_prompts, record, record_with_known
from ddtree_core.models import ModelPair

SHIPPED = [prompt["messages"] for name in ("chat", "code", "math") for prompt in load_prompts([name], 2)]


@torch.inference_mode()
def test_a_transcript_is_what_the_model_writes_and_computes(hybrid: ModelPair):
    """Against the loop's text, and the library's loss and hidden states in one forward pass."""
    prompt = SHIPPED[0]
    made = record(hybrid, [prompt], 12)[0]
    ids = encode_prompt(hybrid.tokenizer, prompt)
    assert made.ids.tolist() == ids + generate(hybrid, prompt, "autoregressive", max_new_tokens=12).ids
    assert made.prompt_length == len(ids)
    out = hybrid.model(input_ids=made.ids[None, :-1], use_cache=False, output_hidden_states=True)
    expected = torch.cat([out.hidden_states[k + 1][0] for k in (2, 0)], dim=-1)
    torch.testing.assert_close(made.features([2, 0]), expected, rtol=1e-4, atol=1e-4)
    prompt_ids = torch.tensor([ids])
    loss = hybrid.model(input_ids=prompt_ids, labels=prompt_ids, use_cache=False).loss
    assert made.surprise == pytest.approx(float(loss), rel=1e-4)


def test_known_prompts_are_others(hybrid: ModelPair):
    """The first of each set, the second where the first is given already."""
    assert known_prompts(hybrid, []) == SHIPPED[::2]
    assert known_prompts(hybrid, SHIPPED[:1]) == [SHIPPED[1], *SHIPPED[2::2]]


def test_one_batch_gives_what_two_give(hybrid: ModelPair):
    given, known = record_with_known(hybrid, SHIPPED[1:3], 12)
    expected = [
        record(hybrid, prompts, 12) for prompts in (SHIPPED[1:3], known_prompts(hybrid, SHIPPED[1:3]))
    ]
    for found, alone in zip((given, known), expected, strict=True):
        assert [t.ids.tolist() for t in found] == [t.ids.tolist() for t in alone]
