"""Tokens are spelled as transformers' stop strings read them, on every kind of tokenizer."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import StopStringCriteria

from ddtree_core.decoding.spelling import Spelling
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models.tiny import byte_tokenizer
from tests.decoding.tokenizers import sentencepiece, wordpiece


@pytest.mark.parametrize(
    ("make", "spelled"),
    [
        (byte_tokenizer, {"a": b"a", "Ġ": b" ", "<|bos|>": b"<|bos|>", "â": b"\xe2"}),
        (sentencepiece, {"▁a": b" a", "<0xE2>": b"\xe2", "é": "é".encode(), "<s>": b"<s>", "▁▁": b"  "}),
        (wordpiece, {"a": b" a", "##ab": b"ab", "[SEP]": b" [SEP]"}),
    ],
    ids=["byte level", "byte fallback", "word pieces"],
)
def test_by_hand(make, spelled):
    tokenizer = make()
    spelling = Spelling(tokenizer)
    assert {token: spelling(tokenizer.convert_tokens_to_ids(token)) for token in spelled} == spelled
    assert spelling(len(tokenizer)) is None


@pytest.mark.parametrize(
    ("make", "text"),
    [(byte_tokenizer, "ab é☕<|bos|><|mask|>"), (sentencepiece, "ab bc é☕ abcdefc <s>"), (wordpiece, "")],
    ids=["byte level", "byte fallback", "word pieces"],
)
def test_stops_where_the_librarys_criterion_does(make: Callable[[], Any], text: str):
    """On 100 random texts, five tokens of which are the prompt, with strings cut from anywhere in them."""
    tokenizer, chance, stops = make(), random.Random(0), 0
    spelling = Spelling(tokenizer)
    alphabet = tokenizer(text, add_special_tokens=False).input_ids or list(range(len(tokenizer)))
    for _ in range(100):
        ids = chance.choices(alphabet, k=30)
        strings = []
        for _ in range(chance.choice([1, 2])):
            start = chance.randrange(28)
            cut = b"".join(spelling(token) or b"" for token in ids[start : start + chance.randint(1, 4)])
            strings.append(cut[chance.randrange(len(cut)) :].decode(errors="ignore") or "a")
        criterion = StopStringCriteria(tokenizer, strings)
        lengths = range(6, 31)
        expected = next((n for n in lengths if bool(criterion(torch.tensor([ids[:n]]), None))), None)  # pyright: ignore[reportArgumentType]
        stopper = Stopper(tokenizer, (), strings, 100, ids[:5])
        stopper.take(ids[5:])
        assert (5 + len(stopper.ids) if stopper.reason else None) == expected, (strings, ids)
        stops += expected is not None
    assert stops > 60
