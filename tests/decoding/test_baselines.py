"""Baselines: every decoder is given the same work, and its texts are compared."""

from typing import Any

import pytest
import torch

from ddtree_core.decoding import encode_prompt
from ddtree_core.decoding.baselines import compare_baselines, library_generate


def test_baselines_compare_texts_and_count_tokens(tiny_pair):
    pair = tiny_pair("tiny-qwen3")
    prompts = ["Once upon", "def f("]
    methods = [("autoregressive", None), ("ddtree", 4)]
    rows = compare_baselines({"stock": pair}, prompts, 6, methods)
    assert [row["decoder"] for row in rows] == [
        "transformers generate",
        "this loop, autoregressive",
        "this loop, ddtree 4",
    ]
    assert all(row["same_text"] for row in rows)
    expected = sum(len(library_generate(pair, encode_prompt(pair.tokenizer, p), 6)) for p in prompts)
    assert {row["tokens"] for row in rows} == {expected}


SETTINGS = {
    "repetition_penalty": 1.05,
    "no_repeat_ngram_size": 2,
    "min_new_tokens": 30,
    "suppress_tokens": list(range(0, 260, 2)),
    "begin_suppress_tokens": list(range(0, 260, 2)),
    "sequence_bias": [[[5], 50.0]],
    "bad_words_ids": [[token] for token in range(0, 260, 2)],
    "exponential_decay_length_penalty": [1, 9.0],
    "do_sample": True,
    "num_beams": 2,
    "max_length": 3,
    "stop_strings": ["e"],
    "cache_implementation": "static",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_checkpoint_are_left_out_on_both_sides(tiny_pair, monkeypatch, name):
    """Its `generation_config` would change the library's text alone; only its stop tokens count."""
    pair = tiny_pair("tiny-llama")
    prompt = "The"
    expected = library_generate(pair, encode_prompt(pair.tokenizer, prompt), 24)
    own = pair.model.generation_config
    monkeypatch.setattr(own, name, SETTINGS[name])
    rows = compare_baselines({"stock": pair}, [prompt], 24, [("ddtree", 4)])
    assert [(row["same_text"], row["tokens"]) for row in rows] == [(True, len(expected))] * 2
    assert library_generate(pair, encode_prompt(pair.tokenizer, prompt), 24) == expected
    assert pair.model.generation_config is own
    assert getattr(own, name) == SETTINGS[name]


@pytest.mark.parametrize("penalty", [1.05, 1.5])
def test_the_setting_alone_would_change_the_librarys_text(tiny_pair, monkeypatch, penalty):
    """With a repetition penalty of its own, the target's `generate` writes another text than this loop."""
    pair = tiny_pair("tiny-llama")
    ids = torch.tensor([encode_prompt(pair.tokenizer, "P7")])
    monkeypatch.setattr(pair.model.generation_config, "repetition_penalty", penalty)
    model: Any = pair.model
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)
    assert out[0, ids.shape[1] :].tolist() != library_generate(pair, ids[0].tolist(), 40)


def test_stop_tokens_of_a_checkpoint_count_on_both_sides(tiny_pair, monkeypatch):
    pair = tiny_pair("tiny-llama")
    ids = encode_prompt(pair.tokenizer, "The")
    whole = library_generate(pair, ids, 24)
    monkeypatch.setattr(pair.model.generation_config, "eos_token_id", [258, whole[9]])
    expected = whole[: whole.index(whole[9]) + 1]
    assert library_generate(pair, ids, 24) == expected
    rows = compare_baselines({"stock": pair}, ["The"], 24, [("ddtree", 4)])
    assert [(row["same_text"], row["tokens"]) for row in rows] == [(True, len(expected))] * 2
