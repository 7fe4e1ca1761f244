"""One loop, three methods: greedy text is the library's own, and every round tells what happened in it."""

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ddtree_core.decoding import (
    Clock,
    Generation,
    Round,
    decode,
    encode_prompt,
    generate,
    load_prompts,
)
from ddtree_core.trees import Acceptance, DraftTree
from tests.decoding.drafts import Remembered
from tests.decoding.library import METHODS, STORY, by_library

TINY = ("tiny-llama", "tiny-qwen3", "tiny-sliding", "tiny-qwen3_5")
# Shorter and longer than the window of tiny-sliding, with and without an end of text along the way.
PROMPTS = (("a", 24), ("def f(x):\n    return", 16), (STORY, 20))
RUNS = [(name, *prompt) for name in TINY for prompt in PROMPTS]
RUNS += [("tiny-qwen3_5_moe", STORY, 20), ("tiny-qwen3_next", STORY, 20)]


@pytest.mark.parametrize(("name", "prompt", "max_new_tokens"), RUNS)
def test_greedy_equals_the_library(quick_pair, name, prompt, max_new_tokens):
    pair = quick_pair(name)
    expected = by_library(pair, pair.tokenizer(prompt).input_ids, max_new_tokens)
    runs = [("autoregressive", None), ("dflash", None), *(("ddtree", budget) for budget in (0, 1, 8, 32, 64))]
    for method, budget in runs:
        generation = generate(pair, prompt, method, budget=budget, max_new_tokens=max_new_tokens)
        assert generation.ids == expected, (method, budget)
        assert generation.finish_reason == ("stop" if expected[-1] in pair.stop_ids else "length")
        assert generation.text == pair.tokenizer.decode(expected, skip_special_tokens=True)


# Every prompt with ddtree 16 and dflash, and with one of these in turn.
OTHERS = (("ddtree", 1), ("ddtree", 8), ("ddtree", 32), ("ddtree", 64), ("autoregressive", None))


@pytest.mark.smollm2
@pytest.mark.parametrize("number", range(20))
def test_greedy_equals_the_library_on_the_default_pair(smollm2, number):
    prompt = load_prompts(["chat", "code", "math"])[6 * number]["messages"]
    ids = encode_prompt(smollm2.tokenizer, prompt)
    expected = by_library(smollm2, ids, max_new_tokens=24)
    for method, budget in (("ddtree", 16), ("dflash", None), OTHERS[number % len(OTHERS)]):
        assert generate(smollm2, prompt, method, budget=budget, max_new_tokens=24).ids == expected, method


@pytest.fixture(
    scope="module", params=[("dflash", None), ("ddtree", 0), ("ddtree", 1), ("ddtree", 20)], ids=str
)
def generation(quick_pair, request) -> Generation:
    method, budget = request.param
    return generate(quick_pair("tiny-sliding"), STORY, method, budget=budget, max_new_tokens=20)


class TestRounds:
    def test_rounds_join_to_the_text(self, generation):
        first, *others = generation.ids
        assert [token for r in generation.rounds for token in r.tokens] == others
        assert [r.index for r in generation.rounds] == list(range(1, len(generation.rounds) + 1))
        last = [first, *(r.tokens[-1] for r in generation.rounds)]
        assert [int(r.tree.token_ids[0]) for r in generation.rounds] == last[:-1]  # a root is the last token
        assert generation.acceptance_lengths == [len(r.path) for r in generation.rounds]
        assert generation.tokens_per_round == sum(generation.acceptance_lengths) / len(generation.rounds)

    def test_paths_follow_the_target_down_the_tree(self, generation):
        for r in generation.rounds:
            assert len(r.target_tokens) == len(r.tree)
            assert r.path == r.tree.path(r.path[-1])
            whole = Acceptance(r.path, r.bonus).tokens(r.tree)
            assert whole == [r.target_tokens[node] for node in r.path]  # each is the target's choice above it
            assert r.tokens == whole[: len(r.tokens)]
            # The walk went on to the end: no child carries the bonus token.
            assert r.bonus not in r.tree.token_ids[r.tree.children(r.path[-1])].tolist()
            assert r.drafted_depth == int(r.tree.depths.max())
        # Only the last round may be cut.
        assert all(len(r.tokens) == r.acceptance_length for r in generation.rounds[:-1])

    def test_trees_have_the_size_asked_for(self, generation):
        nodes = {"dflash": 7, "ddtree": generation.budget}[generation.method]
        assert {len(r.tree) for r in generation.rounds} == {1 + nodes}

    def test_seconds_by_stage(self, generation):
        stages = {"draft", "tree", "verify", "accept", "commit"}
        assert all(set(r.seconds) == stages for r in generation.rounds)
        assert set(generation.seconds) == stages | {"prefill", "total"}
        assert all(seconds > 0 for r in generation.rounds for seconds in r.seconds.values())
        assert sum(generation.seconds[s] for s in (*stages, "prefill")) <= generation.seconds["total"]
        for stage in stages:
            assert generation.seconds[stage] == pytest.approx(
                sum(r.seconds[stage] for r in generation.rounds)
            )
        assert generation.tokens_per_second == len(generation.ids) / generation.seconds["total"]

    def test_decode_yields_the_prefill_and_the_same_rounds(self, quick_pair, generation):
        rounds = decode(
            quick_pair("tiny-sliding"), STORY, generation.method, budget=generation.budget, max_new_tokens=20
        )
        prefill, *others = list(rounds)
        assert (prefill.index, prefill.path, prefill.tokens) == (0, [0], generation.ids[:1])
        assert prefill.tree.token_ids.tolist() == generation.prompt_ids[-1:]
        assert [(r.path, r.tokens, r.target_tokens) for r in others] == [
            (r.path, r.tokens, r.target_tokens) for r in generation.rounds
        ]
        assert all(r.seconds == {} for r in [prefill, *others])  # no clock, no time


class TestDecoding:
    """What can be read of a text in the making, before, between and after its rounds."""

    def test_text_and_ids_follow_the_rounds(self, quick_pair):
        pair = quick_pair("tiny-llama")
        run, tokens = decode(pair, STORY, budget=8, max_new_tokens=12), []
        assert (run.ids, run.text, run.finish_reason) == ([], "", None)
        for made in run:
            tokens += made.tokens
            assert run.ids == tokens
            assert run.text == pair.tokenizer.decode(tokens, skip_special_tokens=True)
            assert run.finish_reason == (None if len(tokens) < 12 else "length")
        whole = generate(pair, STORY, budget=8, max_new_tokens=12)
        assert (run.ids, run.text, run.finish_reason) == (whole.ids, whole.text, whole.finish_reason)

    def test_a_run_that_has_ended_has_no_further_round(self, quick_pair):
        run = decode(quick_pair("tiny-llama"), STORY, max_new_tokens=3)
        assert len(list(run)) >= 1
        assert list(run) == []

    def test_what_is_read_is_not_what_is_written(self, quick_pair):
        run = decode(quick_pair("tiny-llama"), STORY, max_new_tokens=6)
        next(run)
        run.ids.clear()
        assert len(run.ids) == 1

    def test_ends_at_a_stop(self, quick_pair):
        pair = quick_pair("tiny-llama")
        token = generate(pair, STORY, max_new_tokens=6).ids[3]
        run = decode(pair, STORY, stop=token, max_new_tokens=6)
        assert [token for made in run for token in made.tokens] == run.ids
        assert (run.ids[-1], run.finish_reason) == (token, "stop")


def test_a_clock_listens_to_decode(quick_pair):
    prefill, *others = decode(quick_pair("tiny-llama"), STORY, max_new_tokens=6, clock=Clock())
    assert set(prefill.seconds) == {"prefill"}
    assert all(set(r.seconds) == {"draft", "tree", "verify", "accept", "commit"} for r in others)


@pytest.mark.parametrize("name", TINY)
def test_a_tree_accepts_no_less_than_the_chain_inside_it(quick_pair, name):
    """The two runs are independent; where rounds start at the same place, their drafts are the same."""
    pair = quick_pair(name)
    by_start: dict[str, dict[int, Round]] = {}
    for method, budget in (("dflash", None), ("ddtree", 32)):
        rounds = generate(pair, STORY, method, budget=budget, max_new_tokens=40).rounds
        starts = accumulate((r.acceptance_length for r in rounds), initial=1)
        by_start[method] = dict(zip(starts, rounds, strict=False))
    gains = []
    for start, chain in by_start["dflash"].items():
        tree = by_start["ddtree"].get(start)
        if tree is not None and contains(tree.tree, chain.tree.token_ids[chain.path].tolist()):
            shorter = min(len(chain.tokens), len(tree.tokens))  # the last round may be cut
            assert tree.tokens[:shorter] == chain.tokens[:shorter]
            gains.append(tree.acceptance_length - chain.acceptance_length)
    assert min(gains) >= 0
    assert max(gains) > 0  # branches paid somewhere
    assert len(gains) >= 3


def contains(tree: DraftTree, tokens: list[int]) -> bool:
    """Whether the tree has this root path."""
    node = 0
    for token in tokens[1:]:
        children = {int(tree.token_ids[child]): child for child in tree.children(node)}
        if token not in children:
            return False
        node = children[token]
    return int(tree.token_ids[0]) == tokens[0]


def test_a_tree_without_branches_is_the_chain(quick_pair):
    pair = replace(quick_pair("tiny-qwen3"), draft=Remembered(sharpen=1e4))
    chain = generate(pair, STORY, "dflash", max_new_tokens=40)
    tree = generate(pair, STORY, "ddtree", budget=7, max_new_tokens=40)
    assert 1 < chain.tokens_per_round < 8  # chains broke, and not all at once
    assert [facts(r) for r in tree.rounds] == [facts(r) for r in chain.rounds]


def facts(r: Round) -> tuple[Any, ...]:
    """All of a round but its times and log-probabilities."""
    return (r.index, r.tree.token_ids.tolist(), r.tree.parents.tolist(), r.target_tokens, r.path, r.tokens)


def test_interleaved_decodes_do_not_disturb_each_other(quick_pair):
    pair = quick_pair("tiny-sliding")
    prompts = (STORY, "def f(x):\n    return", "a")
    alone = [generate(pair, prompt, budget=8, max_new_tokens=18).ids for prompt in prompts]
    together: list[list[int]] = [[] for _ in prompts]
    running = {i: decode(pair, prompt, budget=8, max_new_tokens=18) for i, prompt in enumerate(prompts)}
    while running:
        for i, rounds in list(running.items()):
            if (r := next(rounds, None)) is None:
                del running[i]
            else:
                together[i] += r.tokens
    assert together == alone


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize(("method", "budget"), METHODS)
def test_the_token_limit_is_exact(quick_pair, method, budget, max_new_tokens):
    pair = quick_pair("tiny-llama")
    run = generate(pair, STORY, method, budget=budget, max_new_tokens=max_new_tokens)
    assert len(run.ids) == max_new_tokens
    assert run.finish_reason == "length"
    assert run.ids == by_library(pair, run.prompt_ids, max_new_tokens)
    assert math.isnan(run.tokens_per_round) == (max_new_tokens == 1)  # the first token needs no round


def test_autoregressive_decoding_knows_no_drafter(quick_pair):
    pair = quick_pair("tiny-llama")
    expected = generate(pair, STORY, "autoregressive", max_new_tokens=6)
    run = generate(replace(pair, draft=Absent()), STORY, "autoregressive", max_new_tokens=6)
    assert run.ids == expected.ids
    assert run.acceptance_lengths == [1] * 5
    assert run.budget is None


@dataclass(frozen=True)
class Absent:
    """Draft weights that are there in name only."""

    depth: int = 7
    layer_ids: tuple[int, ...] = (0, 1)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> Any:
        raise AssertionError("the drafter was asked")
