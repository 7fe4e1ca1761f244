"""Prompts: what reads as which ids, and a sentence for what cannot be read."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch

from ddtree_core.decoding import encode_prompt, load_prompts
from ddtree_core.models.tiny import byte_tokenizer

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


class TestEncodePrompt:
    @pytest.mark.parametrize(
        "form",
        [
            [7, 0, 259],
            (7, 0, 259),
            torch.tensor([7, 0, 259]),
            torch.tensor([[7, 0, 259]]),
            np.array([7, 0, 259]),
        ],
        ids=["list", "tuple", "tensor", "batch of one", "array"],
    )
    def test_ids_stay_as_they_are(self, tokenizer, form):
        assert encode_prompt(tokenizer, form) == [7, 0, 259]

    def test_text_is_tokenised_as_it_is(self, tokenizer):
        assert encode_prompt(tokenizer, "hi <|im_end|>") == tokenizer("hi <|im_end|>").input_ids
        assert encode_prompt(tokenizer, " ") == tokenizer(" ").input_ids  # a blank is a token too

    def test_messages_go_through_the_chat_template(self, tokenizer):
        """Written out by hand after the template: every turn closed, and the assistant's opened."""
        text = (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )
        messages = [{"role": "system", "content": "Be brief."}, USER]
        assert encode_prompt(tokenizer, messages) == tokenizer(text).input_ids

    def test_arguments_for_the_template(self, tokenizer):
        thinking = deepcopy(tokenizer)
        thinking.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}?{% endif %}"
        for enable, text in ((True, "hi?"), (False, "hi")):
            assert encode_prompt(thinking, [USER], enable_thinking=enable) == tokenizer(text).input_ids

    @pytest.mark.parametrize(
        ("prompt", "sentence"),
        [
            ("", r"^the prompt is empty; expected text, chat messages or token ids with at least one token$"),
            ([], r"^the prompt is empty"),
            (torch.tensor([]), r"^the prompt is empty"),
            (
                [{"role": "user", "content": "  \n"}],
                r"^the prompt is empty; expected at least one chat message",
            ),
            ([260], r"^the prompt holds token ids outside 0\.\.259; encode it with this pair's tokenizer$"),
            ([5, -1], r"^the prompt holds token ids outside 0\.\.259"),
            ([{"content": "hi"}], r"^chat messages need a role and a text content each"),
            ([{"role": "user"}], r"^chat messages need a role and a text content each"),
            ([USER, "and"], r"^chat messages need a role and a text content each"),
            (
                [{"role": "user", "content": [{"type": "text"}]}],
                r"^chat messages need a role and a text content",
            ),
            (
                USER,
                r"^the prompt is dict, expected one text, a list of chat messages or a list of token ids$",
            ),
            (["hi"], r"^the prompt is list, expected one text"),
            ([1.5], r"^the prompt is list, expected one text"),
            (torch.tensor([1.5]), r"^the prompt is list, expected one text"),
            (torch.tensor([[1, 2], [3, 4]]), r"^the prompt is Tensor, expected one text"),
            (None, r"^the prompt is NoneType, expected one text"),
        ],
        ids=repr,
    )
    def test_bad_ones_get_a_sentence(self, tokenizer, prompt, sentence):
        with pytest.raises(ValueError, match=sentence) as error:
            encode_prompt(tokenizer, prompt)
        assert "\n" not in str(error.value)

    def test_messages_need_a_chat_template(self, tokenizer):
        plain = deepcopy(tokenizer)
        plain.chat_template = None
        with pytest.raises(
            ValueError, match=r"^this tokenizer has no chat template; pass the prompt as text or ids$"
        ):
            encode_prompt(plain, [USER])


class TestLoadPrompts:
    def test_shipped_sets(self):
        prompts = load_prompts(["chat", "code", "math"])
        assert [p["id"] for p in prompts] == [
            f"{d}-{n:02d}" for d in ("chat", "code", "math") for n in range(1, 41)
        ]
        assert {frozenset(p) for p in prompts} == {frozenset({"id", "domain", "messages"})}
        assert load_prompts("math") == prompts[80:]

    def test_the_first_few_of_each(self):
        prompts = load_prompts(["math", "chat"], per_domain=2)
        assert [p["id"] for p in prompts] == ["math-01", "math-02", "chat-01", "chat-02"]

    def test_the_data_folder_can_be_another(self, tmp_path, monkeypatch):
        (tmp_path / "prompts").mkdir()
        (tmp_path / "prompts" / "mine.jsonl").write_text('{"id": "a", "prompt": "hi"}\n')
        monkeypatch.setenv("DDTREE_DATA", str(tmp_path))
        assert load_prompts("mine") == [{"id": "a", "domain": "mine", "messages": [USER]}]

    def test_files(self, tmp_path):
        rows = [
            {"id": 7, "prompt": "hi"},
            {"id": "b", "domain": "talk", "messages": [USER, {"role": "assistant", "content": "ho"}, USER]},
        ]
        path = tmp_path / "own.jsonl"
        path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")  # blank lines are nothing
        expected = [
            {"id": "7", "domain": "own", "messages": [USER]},
            {"id": "b", "domain": "talk", "messages": rows[1]["messages"]},
        ]
        assert load_prompts(path) == expected
        assert load_prompts([str(path)], per_domain=1) == expected[:1]

    @pytest.mark.parametrize(
        "line", ["{", "[1]", "5", '{"prompt": "hi"}', '{"id": "a"}', '{"id": "a", "prompt": "hi"'], ids=repr
    )
    def test_a_broken_line_is_named(self, tmp_path, line):
        path = tmp_path / "own.jsonl"
        path.write_text('{"id": "a", "prompt": "hi"}\n' + line)
        with pytest.raises(
            ValueError, match=r'^own\.jsonl line 2 is not a prompt; expected {"id": …'
        ) as error:
            load_prompts(path)
        assert "\n" not in str(error.value)

    def test_repeated_ids_are_refused(self, tmp_path):
        path = tmp_path / "own.jsonl"
        path.write_text(
            '{"id": "a", "prompt": "hi"}\n{"id": "b", "prompt": "hi"}\n{"id": "a", "prompt": "ho"}\n'
        )
        with pytest.raises(ValueError, match=r"^prompt ids must be unique, but a appear more than once$"):
            load_prompts(path)
        with pytest.raises(ValueError, match=r"^prompt ids must be unique, but chat-01, chat-02 appear more"):
            load_prompts(["chat", "chat"], per_domain=2)

    @pytest.mark.parametrize("name", ["poems", "nowhere/poems.jsonl"])
    def test_unknown_sets_are_refused(self, name):
        sentence = rf"^there is no prompt set '{name}'; known are chat, code, math, or give the path"
        with pytest.raises(ValueError, match=sentence):
            load_prompts(name)

    def test_fewer_than_one_each_is_refused(self):
        with pytest.raises(
            ValueError, match=r"^per_domain is 0, expected at least 1, or None for all prompts$"
        ):
            load_prompts("chat", per_domain=0)
