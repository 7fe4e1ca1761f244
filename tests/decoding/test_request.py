"""A request is checked in full before any work, and takes what people have at hand."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ddtree_core.decoding import (
    decode,
    generate,
)
from ddtree_core.models import Target
from ddtree_core.models.tiny import byte_tokenizer
from tests.decoding.library import STORY, by_library


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


def forbidden(self: Target, ids: Tensor) -> Any:
    raise AssertionError("the target was asked")
