"""The autopsy of one pair: what it says, of plain pairs and of injected ones, and what it refuses."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from ddtree_core.decoding import encode_prompt, load_prompts
from ddtree_core.diagnosis.acceptance import autopsy, inject
from ddtree_core.diagnosis.acceptance.transcripts import record
from ddtree_core.models import ModelPair, load_pair

PROMPTS = [prompt["messages"] for prompt in load_prompts(["math", "code", "chat"], 2)[1::2]]


def test_what_an_autopsy_tells(hybrid: ModelPair):
    """The right cause with what was measured, what was expected, and the fix, in one line."""
    found = autopsy(inject(hybrid, "head permuted"), PROMPTS, max_new_tokens=32)
    first, *_ = str(found).split("suspects:\n")[1].splitlines()
    assert first.startswith("1. output head (other settings: output head: the target's: +")
    assert "expected no gain" in first
    assert first.endswith("in the order of the drafter's vocabulary.")
    assert not found.healthy


def test_a_pair_as_it_loads_is_examined_like_an_injected_one():
    """The wiring of a plain pair comes from its own config: theta misread there is found there."""
    pair = load_pair("hybrid-4m")
    draft: Any = pair.draft
    draft.config.body.rope_parameters["rope_theta"] = 1e7
    draft.rotary_emb = type(draft.rotary_emb)(draft.config.body)
    found = autopsy(pair, PROMPTS, max_new_tokens=24)
    assert found.suspects[0].cause == "RoPE theta"
    assert found.symptoms.cache_error < 1e-3  # what is drafted live is what the wiring drafts


def test_the_other_thinking_mode_is_found(hybrid: ModelPair):
    """A template whose thinking mode begins the answer in a way that no drafter was trained on."""
    tokenizer: Any = copy.copy(hybrid.tokenizer)
    noise = "".join(chr(33 + 7 * i % 90) for i in range(60)).replace("{", "").replace("%", "")
    opening = "{% if enable_thinking is not defined or enable_thinking %}" + noise + "{% endif %}"
    tokenizer.chat_template = tokenizer.chat_template + opening
    pair = replace(hybrid, tokenizer=tokenizer, template={"enable_thinking": False})
    assert autopsy(pair, PROMPTS, max_new_tokens=24).healthy
    found = autopsy(inject(pair, "other thinking mode"), PROMPTS, max_new_tokens=24)
    assert "chat template" in [finding.cause for finding in found.suspects][:3]


def test_what_cannot_be_examined_is_refused(hybrid: ModelPair, tiny_pair):
    with pytest.raises(ValueError, match="is a BlurredLookahead, expected a DFlash drafter"):
        autopsy(tiny_pair("tiny-llama"), PROMPTS)
    with pytest.raises(ValueError, match="there are no prompts"):
        autopsy(hybrid, [])
    silent = encode_prompt(hybrid.tokenizer, PROMPTS[0])
    with pytest.raises(ValueError, match="the target ends all its answers at once"):
        record(hybrid, [silent], 1)
