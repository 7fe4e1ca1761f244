"""Verify cost, baselines and divergences: what they measure is what they say."""

from dataclasses import replace

import pytest
import torch

from ddtree_core.decoding import encode_prompt, generate
from ddtree_core.decoding.baselines import compare_baselines, library_generate
from ddtree_core.decoding.compare import first_divergence
from ddtree_core.decoding.cost import verify_seconds
from ddtree_core.models.target import Target


def test_verify_seconds_times_every_size_over_the_same_history(tiny_pair, monkeypatch):
    seen = []
    verify = Target.verify

    def watched(self, tree):
        seen.append((self.length, len(tree)))
        return verify(self, tree)

    monkeypatch.setattr(Target, "verify", watched)
    seconds = verify_seconds(tiny_pair("tiny-sliding"), [1, 5, 9], history=40, repeats=3)
    assert list(seconds) == [1, 5, 9]
    assert all(value > 0 for value in seconds.values())
    assert seen == [(40, n) for _ in range(3 + 1) for n in (1, 5, 9)]  # the first turn warms up


def test_first_divergence(tiny_pair):
    pair = tiny_pair("tiny-llama")
    made = generate(pair, "Once upon", "autoregressive", max_new_tokens=12)
    assert first_divergence(pair, made, replace(made)) is None

    other = (made.ids[7] + 1) % 256
    apart = first_divergence(pair, made, replace(made, ids=[*made.ids[:7], other, *made.ids[8:]]))
    assert apart is not None
    assert (apart.position, apart.expected, apart.found) == (7, made.ids[7], other)
    # The gap is that of a plain forward pass: positive, since the reference took the best token.
    ids = torch.tensor([made.prompt_ids + made.ids[:7]])
    with torch.inference_mode():
        logits = pair.model(ids).logits[0, -1]
    assert apart.gap == pytest.approx(float(logits[made.ids[7]] - logits[other]), abs=1e-4)
    assert apart.gap > 0

    shorter = first_divergence(pair, made, replace(made, ids=made.ids[:5]))
    assert shorter is not None
    assert (shorter.position, shorter.found) == (5, None)


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
