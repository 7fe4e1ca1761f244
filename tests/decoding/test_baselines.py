"""Baselines: every decoder is given the same work, and its texts are compared."""

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
