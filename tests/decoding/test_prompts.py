"""Prompts: what reads as which ids, and a sentence for what cannot be read."""

import json
import sys
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
            ([5, -1], r"^the prompt holds the token id -1, expected ids from 0$"),
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
            ([True, False], r"^the prompt is list, expected one text"),
            (torch.tensor([True]), r"^the prompt is Tensor, expected one text"),
            (b"hi", r"^the prompt is bytes, expected one text"),
            ({5: 6}, r"^the prompt is dict, expected one text"),
            ({5, 6}, r"^the prompt is set, expected one text"),
            (5, r"^the prompt is int, expected one text"),
            ("a\ud800", r"^the prompt is 'a\\ud800'; half a surrogate pair cannot be encoded$"),
            ([{"role": 5, "content": "hi"}], r"^chat messages need a role and a text content each"),
            ([{"role": "user", "content": "\udc00"}], r"^chat messages need a role and a text content each"),
            (torch.tensor([1.5]), r"^the prompt is Tensor, expected one text"),
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

    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            ("{{ raise_exception('System role not supported') }}", r"System role not supported"),
            ("{{ messages[0].nothing.at_all }}", r"'dict object' has no attribute 'nothing'"),
            ("{{ messages[0]['content'] + 5 }}", r"can only concatenate str \(not \"int\"\) to str"),
            ("{% for m in messages %}", r"Unexpected end of template.*"),
        ],
        ids=["refuses a role", "lacks a field", "adds a number", "is cut off"],
    )
    def test_a_template_that_raises(self, tokenizer, template, reason):
        broken = deepcopy(tokenizer)
        broken.chat_template = template
        sentence = (
            rf"^this tokenizer's chat template does not take these messages \({reason}\); change them, "
            "or pass the prompt as text or ids$"
        )
        with pytest.raises(ValueError, match=sentence) as error:
            encode_prompt(broken, [{"role": "system", "content": "Be brief."}, USER])
        assert "\n" not in str(error.value)


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

    @pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x7f"])
    def test_lines_end_at_newlines_alone(self, tmp_path, separator):
        """JSON strings may hold what Python's `splitlines` takes for the end of a line."""
        path = tmp_path / "own.jsonl"
        rows = [{"id": name, "prompt": f"one{separator}two"} for name in "ab"]
        path.write_bytes("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
        contents = [p["messages"][0]["content"] for p in load_prompts(path)]
        assert contents == [f"one{separator}two"] * 2

    @pytest.mark.parametrize(
        ("start", "end"), [("\ufeff", "\n"), ("", "\r\n"), ("\ufeff", "\r\n\r\n")], ids=repr
    )
    def test_files_of_other_systems(self, tmp_path, start, end):
        path = tmp_path / "own.jsonl"
        lines = [json.dumps({"id": name, "prompt": "hi"}) for name in "ab"]
        path.write_bytes((start + "".join(line + end for line in lines)).encode())
        assert load_prompts(path) == [{"id": n, "domain": "own", "messages": [USER]} for n in "ab"]

    def test_null_is_an_absent_field(self, tmp_path):
        """As tables write a column that a row does not have."""
        path = tmp_path / "own.jsonl"
        path.write_text('{"id": 1, "domain": null, "prompt": "hi", "messages": null}')
        assert load_prompts(path) == [{"id": "1", "domain": "own", "messages": [USER]}]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("{", r"Expecting property name enclosed in double quotes at column 2"),
            ('{"id": "a", "prompt": "hi"', r"Expecting ',' delimiter at column 27"),
            (
                '{"id": "a", "prompt": "hi",}',
                r"Illegal trailing comma before end of object at column 27"
                if sys.version_info >= (3, 13)
                else r"Expecting property name enclosed in double quotes at column 28",
            ),
            ('{"id": "a", "prompt": "hi"} {}', r"Extra data at column 29"),
            ('{"id": "a", "id": "b", "prompt": "hi"}', r"the key 'id' appears twice"),
            ('{"id": NaN, "prompt": "hi"}', r"NaN is no JSON number"),
            ("[" * 100_000, r"it is nested too deeply"),
            ("[1]", r"it is \[1\], not an object"),
            ("5", r"it is 5, not an object"),
            ('{"prompt": "hi"}', r"its id is None, not a string or a whole number"),
            ('{"id": "", "prompt": "hi"}', r"its id is '', not a string or a whole number"),
            ('{"id": 1.5, "prompt": "hi"}', r"its id is 1\.5, not a string or a whole number"),
            ('{"id": true, "prompt": "hi"}', r"its id is True, not a string or a whole number"),
            ('{"id": ["a"], "prompt": "hi"}', r"its id is \['a'\], not a string or a whole number"),
            ('{"id": "a", "domain": 5, "prompt": "hi"}', r"its domain is 5, not a string"),
            ('{"id": "a"}', r"it has neither a prompt nor messages"),
            ('{"id": "a", "prompt": "hi", "messages": []}', r"it has both a prompt and messages"),
            ('{"id": "a", "prompt": ["hi"]}', r"its prompt is \['hi'\], not a string"),
            ('{"id": "a", "prompt": "\\ud800"}', r"its prompt is '\\ud800', not a string"),
            (
                '{"id": "a", "prompt": " "}',
                r"the prompt is empty; expected at least one chat message with text",
            ),
            ('{"id": "a", "messages": "hi"}', r"the messages are 'hi', expected a list of chat messages"),
            (
                '{"id": "a", "messages": {"role": "user"}}',
                r"the messages are \{.*\}, expected a list of chat .*",
            ),
            (
                '{"id": "a", "messages": []}',
                r"the prompt is empty; expected at least one chat message with text",
            ),
            (
                '{"id": "a", "messages": ["hi"]}',
                r"chat messages need a role and a text content each: .* 'hi'",
            ),
            (
                '{"id": "a", "messages": [{"role": "user", "content": 5}]}',
                r"chat messages need a role and .*",
            ),
            (
                '{"id": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}',
                r"chat messages need a role and a text content each: .*",
            ),
        ],
        ids=lambda value: value[:60],
    )
    def test_a_broken_line_is_named_with_the_reason(self, tmp_path, line, reason):
        path = tmp_path / "own.jsonl"
        path.write_text('{"id": "first", "prompt": "hi"}\n' + line)
        sentence = (
            rf'^own\.jsonl line 2 is not a prompt \({reason}\); expected {{"id": …, "domain": …, "prompt"'
        )
        with pytest.raises(ValueError, match=sentence) as error:
            load_prompts(path)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (
                b'{"id": 1, "prompt": "caf\xe9"}',
                r"^own\.jsonl is not UTF-8 \(invalid continuation byte at byte 24\)",
            ),
            (
                '{"id": 1}'.encode("utf-16"),
                r"^own\.jsonl is not UTF-8 \(invalid start byte at byte 0\); save it",
            ),
            (b"\n \r\n", r"^own\.jsonl holds no prompts; expected one JSON object per line$"),
        ],
        ids=["Latin-1", "UTF-16", "blank"],
    )
    def test_files_that_cannot_be_read(self, tmp_path, content, sentence):
        path = tmp_path / "own.jsonl"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=sentence):
            load_prompts(path)

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

    @pytest.mark.parametrize("per_domain", [0, -1, 2.0, True, "2"], ids=repr)
    def test_fewer_than_one_each_is_refused(self, per_domain):
        sentence = rf"^per_domain is {per_domain!r}, expected at least 1, or None for all prompts$"
        with pytest.raises(ValueError, match=sentence):
            load_prompts("chat", per_domain=per_domain)
