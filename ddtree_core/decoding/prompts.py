"""Prompts: chat messages, raw text or ids → token ids, and prompt sets on disk."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import PreTrainedTokenizerBase

from ddtree_core.decoding.arguments import is_text, shown, whole_number
from ddtree_core.paths import caller_path, data_dir

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int] | torch.Tensor


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, **template: Any) -> list[int]:
    """Token ids of a prompt: text as it is, chat messages (role, content) through the chat template, or ids.

    `template` goes to the chat template (for instance `enable_thinking=False`). Raises `ValueError` for an
    empty prompt, ids below 0, messages without role and content, messages for a tokenizer that
    has no chat template or whose template refuses them, text that cannot be encoded, or anything else.
    """
    if isinstance(prompt, str):
        if not is_text(prompt):
            raise ValueError(f"the prompt is {shown(prompt)}; half a surrogate pair cannot be encoded")
        ids = tokenizer(prompt).input_ids
    elif isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        check_messages(prompt)
        ids = _encode_messages(tokenizer, prompt, template)
    else:
        ids = _token_ids(prompt)
    if not ids:
        raise ValueError(
            "the prompt is empty; expected text, chat messages or token ids with at least one token"
        )
    if min(ids) < 0:
        raise ValueError(f"the prompt holds the token id {min(ids)}, expected ids from 0")
    return ids


def _token_ids(prompt: Any) -> list[int]:
    tokens = prompt
    if isinstance(prompt, torch.Tensor) and prompt.numel() == prompt.shape[-1:].numel():  # (n,) or (1, n)
        tokens = prompt.flatten().tolist()
    ordered = hasattr(tokens, "__iter__") and not isinstance(tokens, (bytes, bytearray, Mapping, AbstractSet))
    ids = [whole_number(token) for token in tokens] if ordered else [None]
    if None in ids:
        raise ValueError(
            f"the prompt is {type(prompt).__name__}, expected one text, a list of chat messages or a list of "
            f"token ids"
        )
    return [token for token in ids if token is not None]


def check_messages(messages: object) -> None:
    """Raise `ValueError` unless these are chat messages with a role and a text each, not all empty."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise ValueError(f"the messages are {shown(messages)}, expected a list of chat messages")
    for message in messages:
        if not (
            isinstance(message, Mapping)
            and is_text(message.get("role"))
            and message["role"]
            and is_text(message.get("content"))
        ):
            raise ValueError(
                "chat messages need a role and a text content each: [{'role': 'user', 'content': '…'}], not "
                + shown(message)
            )
    if not any(message["content"].strip() for message in messages):
        raise ValueError("the prompt is empty; expected at least one chat message with text")


def _encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Any], template: dict[str, Any]
) -> list[int]:
    if tokenizer.chat_template is None:
        raise ValueError("this tokenizer has no chat template; pass the prompt as text or ids")
    try:
        ids = tokenizer.apply_chat_template(
            [dict(m) for m in messages], add_generation_prompt=True, return_dict=False, **template
        )
        return [int(token) for token in ids]  # pyright: ignore[reportArgumentType]
    except Exception as error:  # templates raise errors of their own, and of every kind
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"this tokenizer's chat template does not take these messages ({reason}); change them, or pass "
            f"the prompt as text or ids"
        ) from error


def load_prompts(
    source: str | Path | Sequence[str | Path], per_domain: int | None = None
) -> list[dict[str, Any]]:
    """Prompts as dicts with `id`, `domain` and `messages`: shipped sets ("chat", "code", "math") or JSONL.

    `source` is one name or path or a list of them; `per_domain` keeps the first few of each. A line of a file
    is `{"id": …, "domain": …, "prompt": … or "messages": …}`; without a domain it has the file's name. Raises
    `ValueError` for a set that does not exist, a broken line, a repeated id, or per_domain < 1.
    """
    if per_domain is not None and (whole_number(per_domain) or 0) < 1:
        raise ValueError(f"per_domain is {shown(per_domain)}, expected at least 1, or None for all prompts")
    prompts: list[dict[str, Any]] = []
    for name in [source] if isinstance(source, (str, Path)) else source:
        prompts += _read_set(name)[:per_domain]
    ids = [p["id"] for p in prompts]
    if repeated := sorted({i for i in ids if ids.count(i) > 1}):
        raise ValueError(f"prompt ids must be unique, but {', '.join(repeated[:5])} appear more than once")
    return prompts


def _read_set(name: str | Path) -> list[dict[str, Any]]:
    folder = data_dir() / "prompts"
    path = caller_path(name) if Path(name).suffix else folder / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.jsonl")))
        raise ValueError(
            f"there is no prompt set {str(name)!r}; known are {known}, or give the path of a JSONL file"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name} is not UTF-8 ({error.reason} at byte {error.start}); save it in that encoding"
        ) from error
    prompts = []
    # Lines end at \n alone: JSON strings may hold the other separators that str.splitlines() knows.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                prompts.append(_read_line(line, path.stem))
            except ValueError as error:
                raise ValueError(
                    f"{path.name} line {number} is not a prompt ({error}); expected "
                    f'{{"id": …, "domain": …, "prompt": … or "messages": …}}'
                ) from error
    if not prompts:
        raise ValueError(f"{path.name} holds no prompts; expected one JSON object per line")
    return prompts


def _read_line(line: str, domain: str) -> dict[str, Any]:
    row = _parse_object(line)
    row = {key: value for key, value in row.items() if value is not None}  # an absent column of a table
    number, name = row.get("id"), row.get("domain", domain)
    if number == "" or not (is_text(number) or whole_number(number) is not None):
        raise ValueError(f"its id is {shown(number)}, not a string or a whole number")
    if name == "" or not is_text(name):
        raise ValueError(f"its domain is {shown(name)}, not a string")
    match row:
        case {"prompt": _, "messages": _}:
            raise ValueError("it has both a prompt and messages")
        case {"prompt": text}:
            if not is_text(text):
                raise ValueError(f"its prompt is {shown(text)}, not a string")
            messages = [{"role": "user", "content": text}]
        case {"messages": messages}:
            pass
        case _:
            raise ValueError("it has neither a prompt nor messages")
    check_messages(messages)
    return {"id": str(number), "domain": name, "messages": messages}


def _parse_object(line: str) -> dict[str, Any]:
    """A line's JSON object; `ValueError` with the reason for anything else, and for keys that repeat."""
    try:
        row = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"it is {shown(row)}, not an object")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} appears twice")
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
