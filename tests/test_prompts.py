"""The prompt sets keep their promises: format, size, unique ids, and no prompt that repeats another."""

import difflib
import itertools
import json
import re
from pathlib import Path

import pytest

PROMPTS = Path(__file__).resolve().parents[1] / "data" / "prompts"
DOMAINS = ("chat", "code", "math")

# Unrelated prompts of these sets reach 0.32 and 0.08; a copy with one word changed lies near 1.
MAX_WORD_RATIO = 0.6
MAX_SHARED_FIVE_GRAMS = 0.25


def read(domain: str) -> list[dict]:
    """Records of one prompt file, one per line; a blank line or broken JSON raises."""
    lines = (PROMPTS / f"{domain}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return [json.loads(line) for line in lines]


def turns(record: dict) -> list[dict]:
    """The conversation of a record, a plain prompt being a single user turn."""
    return record["messages"] if "messages" in record else [{"role": "user", "content": record["prompt"]}]


def user_words(record: dict) -> list[str]:
    """Lower-case words of everything the user says."""
    text = " ".join(turn["content"] for turn in turns(record) if turn["role"] == "user")
    return re.findall(r"\w+", text.lower())


def word_ratio(a: list[str], b: list[str]) -> float:
    """difflib's similarity of two word lists, 0 to 1 (0 where its upper bounds already rule a repeat out)."""
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if min(matcher.real_quick_ratio(), matcher.quick_ratio()) < MAX_WORD_RATIO:
        return 0.0
    return matcher.ratio()


def shared_five_grams(a: list[str], b: list[str]) -> float:
    """Share of the shorter text's runs of five words that the other one also has, 0 to 1."""
    grams_a, grams_b = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (a, b))
    return len(grams_a & grams_b) / max(1, min(len(grams_a), len(grams_b)))


def repeats(a: list[str], b: list[str]) -> bool:
    """Whether two prompts are near duplicates of each other."""
    return word_ratio(a, b) >= MAX_WORD_RATIO or shared_five_grams(a, b) >= MAX_SHARED_FIVE_GRAMS


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_domain_has_forty_numbered_prompts(domain):
    records = read(domain)
    assert [record["id"] for record in records] == [f"{domain}-{i:02d}" for i in range(1, 41)]
    assert {record["domain"] for record in records} == {domain}


@pytest.mark.parametrize("domain", DOMAINS)
def test_records_have_a_prompt_or_messages_and_no_other_field(domain):
    fields = {frozenset(record) for record in read(domain)}
    assert fields <= {frozenset({"id", "domain", "prompt"}), frozenset({"id", "domain", "messages"})}


@pytest.mark.parametrize("domain", DOMAINS)
def test_texts_are_clean_and_of_readable_length(domain):
    for record in read(domain):
        texts = [turn["content"] for turn in turns(record)]
        assert all(text and text == text.strip() for text in texts), record["id"]
        assert 10 <= len(" ".join(texts).split()) <= 200, record["id"]


def test_conversations_alternate_and_end_with_the_user():
    conversations = [record for domain in DOMAINS for record in read(domain) if "messages" in record]
    assert [record["id"] for record in conversations] == ["chat-37", "chat-38", "chat-39", "chat-40"]
    for record in conversations:
        assert [turn["role"] for turn in turns(record)] == ["user", "assistant", "user"], record["id"]


def test_no_prompt_repeats_another():
    prompts = {record["id"]: user_words(record) for domain in DOMAINS for record in read(domain)}
    pairs = itertools.combinations(prompts.items(), 2)
    assert len(prompts) == 120
    assert [(a, b) for (a, words_a), (b, words_b) in pairs if repeats(words_a, words_b)] == []


def test_the_comparison_recognises_a_reworded_copy():
    words = user_words({"prompt": "What is the volume of a tank that is four by five by six metres?"})
    renumbered = [{"four": "seven", "six": "nine"}.get(word, word) for word in words]
    # 13 of 15 words stay in order: difflib's ratio is 2 * 13 / 30.
    assert word_ratio(words, renumbered) == pytest.approx(26 / 30)
    # Of 11 five-grams, the five starting at words 0 to 4 hold no changed word (four is word 9).
    assert shared_five_grams(words, renumbered) == pytest.approx(5 / 11)
    assert repeats(words, renumbered)
    assert not repeats(words, user_words({"prompt": "Name eight rivers that flow into the Black Sea."}))
