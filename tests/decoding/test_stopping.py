"""Every method stops where autoregressive decoding stops, and that is where the library stops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ddtree_core.decoding import Generation, generate
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models import ModelPair
from tests.decoding import library
from tests.decoding.drafts import Remembered
from tests.decoding.tokenizers import sentencepiece

METHODS = (("autoregressive", None), ("dflash", None), ("ddtree", 8), ("ddtree", 48))
PROMPT = "The"  # tiny-llama continues it with several readable stretches, none of which ends the text
LENGTH = 40


@pytest.fixture(scope="module")
def pair(tiny_pair) -> ModelPair:
    return replace(tiny_pair("tiny-llama"), draft=Remembered())


@pytest.fixture(scope="module")
def whole(pair) -> Generation:
    """The text without any further stop, by the method whose rounds are longest."""
    generation = generate(pair, PROMPT, "ddtree", budget=48, max_new_tokens=LENGTH)
    assert generation.finish_reason == "length"
    return generation


def by_library(pair: ModelPair, prompt: str = PROMPT, **options: Any) -> list[int]:
    return library.by_library(pair, pair.tokenizer(prompt).input_ids, LENGTH, **options)


def all_methods(pair: ModelPair, stop: Any, expected: list[int], text: str) -> None:
    """Each method gives these ids and this text, for the reason "stop"."""
    for method, budget in METHODS:
        run = generate(pair, PROMPT, method, budget=budget, stop=stop, max_new_tokens=LENGTH)
        assert (run.ids, run.text, run.finish_reason) == (expected, text, "stop"), (method, budget)
        assert [token for r in run.rounds for token in r.tokens] == expected[1:]


def test_a_stop_token_anywhere_in_an_accepted_path(pair, whole):
    """Wherever a token first appears: drafted in the middle of a path, or the bonus token at its end."""
    middle, start = 0, 1
    for r in whole.rounds:
        for place, token in enumerate(r.tokens):
            if token not in whole.ids[: start + place]:
                kept = whole.ids[: start + place + 1]
                middle += place + 1 < len(r.tokens)
                text = pair.tokenizer.decode(kept[:-1], skip_special_tokens=True)
                run = generate(pair, PROMPT, "ddtree", budget=48, stop=[token], max_new_tokens=LENGTH)
                assert (run.ids, run.text, run.finish_reason) == (kept, text, "stop")
                assert run.rounds[-1].tokens == r.tokens[: place + 1]
                assert run.rounds[-1].acceptance_length == r.acceptance_length  # what the target accepted
        start += len(r.tokens)
    assert middle >= 5


@pytest.mark.parametrize("place", [0, 1, 2, 7, 12])
def test_a_stop_token_for_all_methods(pair, whole, place):
    token = whole.ids[place]
    kept = whole.ids[: whole.ids.index(token) + 1]
    assert by_library(pair, eos_token_id=[token, *pair.stop_ids]) == kept
    all_methods(pair, token, kept, pair.tokenizer.decode(kept[:-1], skip_special_tokens=True))


def test_several_end_tokens_of_the_model(pair, whole, monkeypatch):
    tokens = [whole.ids[20], whole.ids[9]]
    monkeypatch.setattr(pair.model.generation_config, "eos_token_id", tokens)
    kept = whole.ids[: min(map(whole.ids.index, tokens)) + 1]
    assert pair.stop_ids == tuple(tokens)
    assert by_library(pair) == kept
    all_methods(pair, None, kept, pair.tokenizer.decode(kept[:-1], skip_special_tokens=True))


def test_the_end_of_the_text_is_not_part_of_it(tiny_pair):
    """tiny-llama continues "a" with the mask token and the end token, both special: an empty text."""
    pair = tiny_pair("tiny-llama")
    for method, budget in METHODS:
        run = generate(pair, "a", method, budget=budget)
        assert run.ids[-1] in pair.stop_ids
        assert (len(run.ids), run.text, run.finish_reason) == (2, "", "stop")


# Stretches of the text of `whole`, found in it by the test itself.
STRINGS = ["p#", "#", "d\n:", "\n:=", '0"']


@pytest.mark.parametrize("string", STRINGS)
def test_a_stop_string_for_all_methods(pair, whole, string):
    assert string in whole.text
    kept = by_library(pair, stop_strings=[string], tokenizer=pair.tokenizer)
    assert len(kept) < LENGTH
    all_methods(pair, [string], kept, whole.text[: whole.text.index(string)])


def test_stop_strings_cross_token_and_round_borders(pair, whole):
    """The strings above are worth testing: single tokens, stretches of a path, and across two rounds."""
    decode = pair.tokenizer.decode
    spans = set()
    for string in STRINGS:
        last = next(
            n for n in range(LENGTH) if string in decode(whole.ids[: n + 1], skip_special_tokens=True)
        )
        first = next(n for n in range(last, -1, -1) if string in decode(whole.ids[n : last + 1]))
        rounds = [i for i, r in enumerate(whole.rounds) for _ in r.tokens]
        crosses = rounds[first - 1] != rounds[last - 1]
        spans.add("one token" if first == last else "two rounds" if crosses else "one path")
    assert spans == {"one token", "two rounds", "one path"}


def test_the_first_of_several_stops_counts(pair, whole):
    strings = ['0"', "p#", "never"]
    kept = by_library(pair, stop_strings=strings, tokenizer=pair.tokenizer)
    all_methods(pair, strings, kept, whole.text[: whole.text.index("p#")])
    token = whole.ids[1]  # before both
    all_methods(pair, [*strings, token], whole.ids[:2], pair.tokenizer.decode(whole.ids[:1]))


def test_a_stop_that_never_comes(pair, whole):
    for method, budget in METHODS:
        run = generate(pair, PROMPT, method, budget=budget, stop=["never", 5], max_new_tokens=LENGTH)
        assert (run.ids, run.text, run.finish_reason) == (whole.ids, whole.text, "length")


# What tiny-llama writes after "P7": <|bos|> before "o" and before "H", and <|mask|> after "-O".
TO_BOS = 'J\x02��R�K�"�uj\x11�g�+u�����'
TO_MASK = TO_BOS + "o���-O"
TO_H = TO_MASK + "�\x0f��\x17"
SPECIAL = [
    ("<|bos|>o", TO_BOS),
    ("<|bos|>", TO_BOS),
    ("bos", TO_BOS),
    ("<", TO_BOS),
    (">", TO_BOS),
    ("|>o", TO_BOS),  # no part of a special token shows
    ("o", TO_BOS),
    ("O<|mask|>", TO_MASK[:-1]),
    ("-O<|ma", TO_MASK[:-2]),
    ("mask", TO_MASK),
    ("<|bos|>H", TO_H),
    ("H", TO_H),
    ("\x0f", TO_MASK + "�"),
    ("O", TO_MASK[:-1]),
    ("K", TO_BOS[: TO_BOS.index("K")]),
    ("uj", TO_BOS[: TO_BOS.index("u")]),
    ("+u", TO_BOS[: TO_BOS.index("+")]),
    ("P7J", ""),  # begins in the prompt
    ("7J\x02", ""),
    ("uo", None),  # in the text that shows, <|bos|> stands between
    ("P7", None),  # ends in the prompt
    ("<|im_end|>", None),
]


@pytest.mark.parametrize(("string", "text"), SPECIAL)
def test_special_tokens_count_as_they_are_spelled(pair, string, text):
    """Ids as the library's `stop_strings`; the text by hand."""
    ids = by_library(pair, "P7", stop_strings=[string], tokenizer=pair.tokenizer)
    reason = "length" if text is None else "stop"
    whole = TO_H + "H�I"
    assert (len(ids) == LENGTH) == (text is None)
    for method, budget in METHODS:
        run = generate(pair, "P7", method, budget=budget, stop=string, max_new_tokens=LENGTH)
        assert (run.ids, run.text, run.finish_reason) == (ids, whole if text is None else text, reason)


def test_stops_of_any_type(pair, whole):
    """One or several; ids of Python, numpy or torch."""
    token = whole.ids[9]
    kept = whole.ids[: whole.ids.index(token) + 1]
    one: list[Any] = [token, np.int64(token), torch.tensor(token)]
    several: list[Any] = [[token], {token}, np.array([token, 5]), torch.tensor([token])]
    for stop in one + several:
        assert generate(pair, PROMPT, budget=8, stop=stop, max_new_tokens=LENGTH).ids == kept


class TestStopper:
    """By hand, on the byte tokenizer: one token per letter."""

    def stopper(self, pair: ModelPair, **options: Any) -> Stopper:
        defaults: dict[str, Any] = dict(stop_ids=(), stop_strings=(), max_new_tokens=100)
        return Stopper(pair.tokenizer, **(defaults | options))

    def test_takes_up_to_the_limit(self, pair):
        stopper, letters = self.stopper(pair, max_new_tokens=4), pair.tokenizer("abcdef").input_ids
        assert stopper.take(letters[:3]) == letters[:3]
        assert stopper.reason is None
        assert stopper.take(letters[3:]) == letters[3:4]
        assert (stopper.reason, stopper.ids, stopper.text()) == ("length", letters[:4], "abcd")

    def test_a_stop_at_the_limit_is_a_stop(self, pair):
        letters = pair.tokenizer("abcdef").input_ids
        for options in (dict(stop_ids=[letters[3]]), dict(stop_strings=["cd"])):
            stopper = self.stopper(pair, max_new_tokens=4, **options)
            stopper.take(letters)
            assert (stopper.reason, stopper.ids) == ("stop", letters[:4])

    def test_the_string_that_is_complete_first_wins(self, pair):
        letters = pair.tokenizer("abcdef").input_ids
        stopper = self.stopper(pair, stop_strings=["bcde", "cd"])
        stopper.take(letters)
        assert (stopper.ids, stopper.text()) == (letters[:4], "ab")

    def test_of_two_that_end_together_the_longer_one_goes(self, pair):
        letters = pair.tokenizer("abcdef").input_ids
        stopper = self.stopper(pair, stop_strings=["cd", "bcd"])
        stopper.take(letters)
        assert (stopper.ids, stopper.text()) == (letters[:4], "a")

    def test_a_string_that_begins_and_ends_inside_of_tokens(self):
        """Of the token " abcdef", what stands before the string stays."""
        tokenizer = sentencepiece()
        ids: Any = tokenizer.convert_tokens_to_ids(["▁abcdef", "▁a"])
        for string, kept, text in (
            ("cd", 1, "ab"),
            ("abc", 1, ""),
            ("f a", 2, "abcde"),
            (" a", 1, ""),  # the first space of a text does not show, but it was generated
            ("bcd", 1, "a"),
            ("de", 1, "abc"),
        ):
            stopper = Stopper(tokenizer, (), [string], 100)
            stopper.take(ids)
            assert (len(stopper.ids), stopper.text()) == (kept, text), string

    def test_a_character_of_several_tokens(self, pair):
        ids = pair.tokenizer("tea ☕ cup").input_ids
        assert len(ids) == 11  # the cup is three bytes
        stopper = self.stopper(pair, stop_strings=["☕"])
        stopper.take(ids)
        assert (stopper.ids, stopper.text(), stopper.reason) == (ids[:7], "tea ", "stop")


@pytest.mark.smollm2
def test_stop_strings_on_the_default_pair(smollm2):
    """Tokens of several letters: a stop string may begin and end inside of them."""
    ids = smollm2.tokenizer("Here is a list of fruits: apple, banana,").input_ids
    model: Any = smollm2.model
    text = generate(smollm2, ids, "autoregressive", max_new_tokens=24).text
    for string in (text[9:12], text[20:24], text[2]):
        out = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
            max_new_tokens=24, stop_strings=[string], tokenizer=smollm2.tokenizer,
        )  # fmt: skip
        for method, budget in METHODS:
            run = generate(smollm2, ids, method, budget=budget, stop=string, max_new_tokens=24)
            assert run.ids == out[0, len(ids) :].tolist()
            assert (run.text, run.finish_reason) == (text[: text.index(string)], "stop")
