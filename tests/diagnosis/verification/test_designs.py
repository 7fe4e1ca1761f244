"""The lab: its parts by hand, and that only the whole of them gives the target's own text."""

import pytest

from ddtree_core.decoding import generate
from ddtree_core.diagnosis.verification.designs import (
    CHAIN,
    CORRECT,
    SERVER,
    Design,
    all_designs,
    compare_designs,
    try_design,
)


def test_there_are_33_distinct_designs():
    assert len(set(all_designs())) == 33
    assert {CHAIN, SERVER, CORRECT} < set(all_designs())


@pytest.fixture(scope="module")
def trials(tiny_pair):
    """The designs that matter on two prompts of a tiny pair, against autoregressive text."""
    pair = tiny_pair("tiny-llama")
    prompts = [pair.tokenizer(f"Prompt number {i} says").input_ids for i in range(2)]
    designs = [
        CHAIN,
        Design("causal", "arange", "linear", "first", "bfs"),
        Design("tree", "arange", "walk", "path"),
        Design("causal", "depth", "walk", "path"),
        Design("tree", "depth", "walk", "first"),
        CORRECT,
    ]
    rows = compare_designs(pair, prompts, designs, budget=15, max_new_tokens=24)
    return dict(zip(designs, rows, strict=True))


def test_the_whole_is_right_and_better(trials):
    right = trials[CORRECT]
    assert (right["equal"], right["prompts"], right["first_divergence"]) == (2, 2, None)
    assert right["tokens_per_round"] > trials[CHAIN]["tokens_per_round"]


def test_a_chain_and_a_linear_rule_under_a_causal_mask_are_right_but_poor(trials):
    poor = trials[Design("causal", "arange", "linear", "first", "bfs")]
    assert trials[CHAIN]["equal"] == poor["equal"] == 2
    assert poor["tokens_per_round"] < trials[CORRECT]["tokens_per_round"]


@pytest.mark.parametrize(
    "missing",
    [
        Design("tree", "arange", "walk", "path"),
        Design("causal", "depth", "walk", "path"),
        Design("tree", "depth", "walk", "first"),
    ],
    ids=["depth positions", "tree mask", "compaction"],
)
def test_a_walk_that_lacks_one_part_is_wrong(trials, missing):
    assert trials[missing]["equal"] == 0
    assert trials[missing]["first_divergence"] is not None


def test_the_correct_design_is_the_loop_itself(tiny_pair):
    """Round counts equal those of `generate`, which is held against transformers elsewhere."""
    pair = tiny_pair("tiny-qwen3")
    made = generate(pair, "Once upon", "ddtree", budget=15, max_new_tokens=20)
    trial = try_design(pair, made.prompt_ids, made.ids, CORRECT, budget=15)
    assert trial.equal
    assert (trial.rounds, trial.tokens) == (len(made.rounds), sum(made.acceptance_lengths))


def test_recurrent_layers_read_the_tree_where_attention_masks_it(tiny_pair):
    """Verified in the order of its nodes, a tree leads a hybrid target to another text than its own."""
    pair = tiny_pair("tiny-qwen3_5")
    made = generate(pair, "Once upon", "ddtree", budget=15, max_new_tokens=12)
    in_order = Design("causal", "depth", "walk", "path")
    trials = [try_design(pair, made.prompt_ids, made.ids, d, budget=15) for d in (CORRECT, in_order)]
    assert [trial.equal for trial in trials] == [True, False]
