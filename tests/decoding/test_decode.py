"""One loop, three methods: greedy text is the library's own, and every round tells what happened in it."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor
from transformers import Phi3Config, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config

from ddtree_core.decoding import (
    Clock,
    Generation,
    Round,
    Sampler,
    decode,
    encode_prompt,
    generate,
    load_prompts,
)
from ddtree_core.models import ModelPair, Target, load_pair
from ddtree_core.models.draft_config import DFlashConfig
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.tiny import MASK_TOKEN_ID, byte_tokenizer, tiny_target
from ddtree_core.trees import Acceptance, DraftTree
from tests.decoding.drafts import Remembered

TINY = ("tiny-llama", "tiny-qwen3", "tiny-sliding", "tiny-qwen3_5")
METHODS = (("autoregressive", None), ("dflash", None), ("ddtree", 8))
STORY = "The lighthouse keeper climbed the stairs twice a day."
# Shorter and longer than the window of tiny-sliding, with and without an end of text along the way.
PROMPTS = (("a", 24), ("def f(x):\n    return", 16), (STORY, 20))
RUNS = [(name, *prompt) for name in TINY for prompt in PROMPTS]
RUNS += [("tiny-qwen3_5_moe", STORY, 20), ("tiny-qwen3_next", STORY, 20)]


@pytest.fixture(scope="module")
def quick_pair(tiny_pair) -> Callable[[str], ModelPair]:
    """The tiny pairs, with drafts that are not made twice."""
    return cache(lambda name: replace(tiny_pair(name), draft=Remembered()))


def by_library(pair: ModelPair, ids: list[int], max_new_tokens: int, **options: Any) -> list[int]:
    """New tokens of the library's own greedy `generate` on the very same model."""
    prompt = torch.tensor([ids])
    model: Any = pair.model
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        **options,
    )
    return out[0, len(ids) :].tolist()


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


class TestRotationThatChangesWithTheLength:
    """Phi-3's longrope has one set of frequencies up to 48 tokens, and another for texts beyond."""

    @pytest.fixture
    def pair(self) -> ModelPair:
        rope = dict(
            rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 8,
            long_factor=[4.0 + i for i in range(8)], original_max_position_embeddings=48,
            partial_rotary_factor=1.0,
        )  # fmt: skip
        config = Phi3Config(
            vocab_size=260, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=48,
            initializer_range=0.3, tie_word_embeddings=False, eos_token_id=258, pad_token_id=258,
            bos_token_id=256, rope_parameters=rope,
        )  # fmt: skip
        return ModelPair("phi", tiny_target(config), byte_tokenizer(), Remembered())

    @pytest.mark.parametrize(
        ("prompt", "new", "method", "budget"),
        [
            (30, 19, "autoregressive", None),  # 48 tokens are read, the last one is not
            (30, 12, "dflash", None),  # before the last token, drafts reach seven further
            (30, 12, "ddtree", 16),
            (30, 16, "ddtree", 3),
            (49, 24, "autoregressive", None),  # beyond from the start
            (60, 24, "dflash", None),
            (60, 24, "ddtree", 16),
        ],
    )
    def test_texts_on_one_side_are_the_librarys(self, pair, prompt, new, method, budget):
        ids = [(13 * i * i + 7 * i) % 250 for i in range(prompt)]
        run = generate(pair, ids, method, budget=budget, max_new_tokens=new)
        assert run.ids == by_library(pair, ids, new)
        assert len(run.ids) == new

    @pytest.mark.parametrize(
        ("prompt", "new", "method", "budget", "fitting"),
        [
            (30, 40, "autoregressive", None, 19),
            (30, 40, "ddtree", 16, 12),
            (30, 13, "dflash", None, 12),
            (30, 17, "ddtree", 3, 16),
            (48, 2, "autoregressive", None, 1),
        ],
    )
    def test_texts_that_cross_are_refused(self, pair, prompt, new, method, budget, fitting):
        sentence = rf"^phi rotates all tokens in another way .* max_new_tokens of {fitting} or less"
        with pytest.raises(ValueError, match=sentence):
            decode(pair, [5] * prompt, method, budget=budget, max_new_tokens=new)


def test_ids_are_bounded_by_the_targets_rows(quick_pair):
    """The target has 260 rows; its tokenizer may know fewer tokens, or more."""
    pair = quick_pair("tiny-llama")
    longer, shorter = byte_tokenizer(), PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE({"a": 5}, [])))
    longer.add_tokens(["<|more|>"])
    assert (len(longer), len(shorter)) == (261, 1)
    for tokenizer in (longer, shorter):
        run = generate(replace(pair, tokenizer=tokenizer), [5, 259], budget=8, max_new_tokens=6)
        assert run.ids == by_library(pair, [5, 259], 6)
    for tokenizer, prompt in ((shorter, [5, 260]), (longer, "hi <|more|>")):
        with pytest.raises(ValueError, match=r"^the prompt holds token ids outside 0\.\.259;"):
            decode(replace(pair, tokenizer=tokenizer), prompt)


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


@pytest.mark.parametrize("call", [decode, generate])
def test_help_and_completion_show_every_argument(call):
    """`decode` and `generate` take the fields of `Request`, which stand nowhere else."""
    shown = inspect.signature(call).parameters
    assert list(shown)[:3] == ["pair", "prompt", "method"]
    assert {name: p.default for name, p in shown.items() if p.kind is p.KEYWORD_ONLY} == {
        "budget": None,
        "sampler": None,
        "max_new_tokens": 128,
        "stop": None,
        "generator": None,
        "clock": None,
    }


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


class TestMaskToken:
    """The mask token is an ordinary token when the target generates it: nothing is removed by value."""

    @pytest.fixture
    def pair(self) -> ModelPair:
        """A target that says the mask token every now and then."""
        pair = load_pair("tiny-llama", packed=False)
        head: Any = pair.model.get_output_embeddings()
        with torch.no_grad():
            head.weight[MASK_TOKEN_ID] *= 3
        return pair

    def test_is_accepted_from_a_draft_and_kept(self, pair):
        expected = by_library(pair, pair.tokenizer(STORY).input_ids, 30)
        assert 3 <= expected.count(MASK_TOKEN_ID) < len(expected)
        for method, budget in METHODS:
            assert generate(pair, STORY, method, budget=budget, max_new_tokens=30).ids == expected
        rounds = generate(pair, STORY, "ddtree", budget=8, max_new_tokens=30).rounds
        assert MASK_TOKEN_ID in [int(r.tree.token_ids[node]) for r in rounds for node in r.path[1:]]

    def test_is_kept_beside_a_drafter_that_is_fed_with_it(self, pair):
        body = Qwen3Config(
            vocab_size=260, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16,
        )  # fmt: skip
        config = DFlashConfig(
            body=body, block_size=4, mask_token_id=MASK_TOKEN_ID, target_layer_ids=(1, 3),
            num_target_layers=4, target_hidden_size=64, draft_vocab_size=260, causal=(False,),
            windows=(None,),
        )  # fmt: skip
        torch.manual_seed(0)
        pair = replace(pair, draft=DFlashModel(config).eval())
        expected = by_library(pair, pair.tokenizer(STORY).input_ids, 30)
        for method, budget in METHODS:
            assert generate(pair, STORY, method, budget=budget, max_new_tokens=30).ids == expected


class TestLogitsThatAreNotFinite:
    """A damaged target gets one sentence, at the pass that shows it."""

    SENTENCE = (
        r"^the target's logits are NaN or infinite, so that they name no token; its weights are damaged"
    )

    @pytest.fixture
    def pair(self) -> ModelPair:
        return replace(load_pair("tiny-llama", packed=False), draft=Remembered())

    @pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0)], ids=["greedy", "sampled"])
    @pytest.mark.parametrize(("method", "budget"), METHODS)
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_in_the_head(self, pair, method, budget, value, sampler):
        head: Any = pair.model.get_output_embeddings()
        with torch.no_grad():
            head.weight[7] = value
        run = decode(pair, STORY, method, budget=budget, sampler=sampler)
        with pytest.raises(ValueError, match=self.SENTENCE):
            next(run)

    @pytest.mark.parametrize(("method", "budget"), METHODS)
    def test_in_the_row_of_a_token_that_comes_later(self, pair, method, budget):
        """Rounds before a pass that reads the token are as they would be; the draft remembers its own."""
        expected, place = self.damage_a_later_token(pair, method, budget)
        run = decode(pair, STORY, method, budget=budget, max_new_tokens=20)
        with pytest.raises(ValueError, match=self.SENTENCE):
            list(run)
        assert run.ids == expected[: len(run.ids)]
        assert 1 <= len(run.ids) <= place + 1

    def test_a_text_that_ends_before_is_whole(self, pair):
        expected, place = self.damage_a_later_token(pair, "autoregressive", None)
        run = generate(pair, STORY, "autoregressive", stop=expected[place], max_new_tokens=20)
        assert run.ids == expected[: place + 1]

    def damage_a_later_token(self, pair: ModelPair, method: str, budget: int | None) -> tuple[list[int], int]:
        """The text before the damage, and the place in it of a token whose embedding then becomes NaN."""
        made = generate(pair, STORY, method, budget=budget, max_new_tokens=20)
        place = next(i for i in range(6, 20) if made.ids[i] not in (*made.prompt_ids, *made.ids[:i]))
        table: Any = pair.model.get_input_embeddings()
        with torch.no_grad():
            table.weight[made.ids[place]] = math.nan
        return made.ids, place


class TestPromptForms:
    def test_text_and_ids_are_the_same_prompt(self, quick_pair):
        pair = quick_pair("tiny-llama")
        ids = pair.tokenizer(STORY).input_ids
        runs = [
            generate(pair, form, max_new_tokens=8)
            for form in (STORY, ids, torch.tensor(ids), torch.tensor([ids]))
        ]
        assert [run.prompt_ids for run in runs] == [ids] * 4
        assert len({tuple(run.ids) for run in runs}) == 1

    def test_messages_of_several_turns(self, quick_pair):
        pair = quick_pair("tiny-llama")
        messages = [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "Another one."},
        ]
        written = (
            "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\nBlue.<|im_end|>\n"
            "<|im_start|>user\nAnother one.<|im_end|>\n<|im_start|>assistant\n"
        )
        run = generate(pair, messages, budget=8, max_new_tokens=12)
        assert run.prompt_ids == pair.tokenizer(written).input_ids
        assert run.ids == by_library(pair, run.prompt_ids, 12)


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


class TestArguments:
    @pytest.mark.parametrize("call", [decode, generate])
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (
                dict(method="eagle"),
                r"^unknown method 'eagle'; expected one of ddtree, dflash, autoregressive$",
            ),
            (dict(budget=-1), r"^budget is -1, expected 0 to 4096 draft nodes"),
            (dict(budget=4097), r"^budget is 4097, expected 0 to 4096 draft nodes"),
            (dict(budget=8.5), r"^budget is 8\.5, expected a whole number$"),
            (dict(max_new_tokens=0), r"^max_new_tokens is 0, expected at least 1$"),
            (dict(max_new_tokens=2.5), r"^max_new_tokens is 2\.5, expected a whole number$"),
            (
                dict(max_new_tokens=2048),
                r"^prompt \(53 tokens\) and max_new_tokens \(2048\) exceed the 2048 positions",
            ),
            (dict(stop=[""]), r"^a stop string is empty; expected text, or leave it out$"),
            (dict(stop=""), r"^a stop string is empty; expected text, or leave it out$"),
            (dict(budget=True), r"^budget is True, expected a whole number$"),
            (dict(max_new_tokens="8"), r"^max_new_tokens is '8', expected a whole number$"),
            (dict(sampler=0.7), r"^sampler is 0\.7, expected Sampler\(temperature=0\.7\) or None$"),
            (dict(generator=5), r"^generator is 5, expected torch\.Generator\(\)\.manual_seed\(0\) or None$"),
            (dict(clock=print), r"^clock is <built-in function print>, expected Clock\(\) or None$"),
            (dict(pair="smollm2-135m"), r"^pair is 'smollm2-135m', expected a pair from load_pair$"),
            (dict(stop=[1.5]), r"^stop holds 1\.5, expected token ids and strings$"),
            (dict(stop=[True]), r"^stop holds True, expected token ids and strings$"),
            (dict(stop=["\ud800"]), r"^stop holds '\\ud800', expected token ids and strings$"),
            (dict(stop=1.5), r"^stop is 1\.5, expected a token id, a string, or several of them$"),
            (dict(stop=b"ab"), r"^stop is b'ab', expected a token id, a string, or several of them$"),
            (dict(stop={5: 6}), r"^stop is \{5: 6\}, expected a token id, a string, or several of them$"),
            (dict(stop=torch.tensor(1.5)), r"^stop is tensor\(1\.5000\), expected a token id, a string, or"),
            (dict(prompt=""), r"^the prompt is empty; expected text, chat messages or token ids"),
            (
                dict(prompt=[260]),
                r"^the prompt holds token ids outside 0\.\.259; encode it with this pair's tokenizer$",
            ),
            (
                dict(prompt="a" * 2048),
                r"^the prompt has 2048 tokens, but tiny-llama has 2048 positions; shorten",
            ),
        ],
        ids=str,
    )
    def test_bad_ones_get_a_sentence_at_the_call(self, quick_pair, monkeypatch, call, arguments, sentence):
        monkeypatch.setattr(Target, "prefill", forbidden)
        with pytest.raises(ValueError, match=sentence) as error:
            call(**(dict(pair=quick_pair("tiny-llama"), prompt=STORY) | arguments))
        assert "\n" not in str(error.value)

    def test_numbers_of_any_type(self, quick_pair):
        pair = quick_pair("tiny-llama")
        kinds: list[Any] = [int, np.int64, torch.tensor]
        made = [generate(pair, STORY, budget=kind(8), max_new_tokens=kind(6)) for kind in kinds]
        assert [(type(run.budget), run.budget, len(run.ids)) for run in made] == [(int, 8, 6)] * 3

    def test_decode_works_only_when_asked_for_a_round(self, quick_pair, monkeypatch):
        monkeypatch.setattr(Target, "prefill", forbidden)
        rounds = decode(quick_pair("tiny-llama"), STORY)
        with pytest.raises(AssertionError, match="the target was asked"):
            next(rounds)

    def test_the_last_position_can_be_used(self, quick_pair):
        run = generate(quick_pair("tiny-llama"), "a" * 2044, budget=8, max_new_tokens=4)
        assert run.ids == by_library(quick_pair("tiny-llama"), run.prompt_ids, 4)


def forbidden(self: Target, ids: Tensor) -> Any:
    raise AssertionError("the target was asked")
