"""Prompts: chat messages, raw text or ids → token ids, and prompt sets on disk."""

import json
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ddtree_core.paths import data_dir

Prompt = str | Sequence[Mapping[str, str]] | Sequence[int] | torch.Tensor


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, **template: Any) -> list[int]:
    """Token ids of a prompt: text as it is, chat messages (role, content) through the chat template, or ids.

    `template` goes to the chat template (for instance `enable_thinking=False`). Raises `ValueError` for an
    empty prompt, ids outside the vocabulary, messages without role and content, messages for a tokenizer
    that has no chat template, or anything else.
    """
    if isinstance(prompt, str):
        ids = tokenizer(prompt).input_ids
    elif isinstance(prompt, Sequence) and len(prompt) and isinstance(prompt[0], Mapping):
        ids = _encode_messages(tokenizer, prompt, template)
    else:
        ids = _token_ids(prompt)
    if not ids:
        raise ValueError(
            "the prompt is empty; expected text, chat messages or token ids with at least one token"
        )
    if not all(0 <= token < len(tokenizer) for token in ids):
        raise ValueError(
            f"the prompt holds token ids outside 0..{len(tokenizer) - 1}; encode it with this pair's "
            f"tokenizer"
        )
    return ids


def _token_ids(prompt: Any) -> list[int]:
    if isinstance(prompt, torch.Tensor) and prompt.numel() == prompt.shape[-1:].numel():  # (n,) or (1, n)
        prompt = prompt.flatten().tolist()
    try:
        return [index(token) for token in prompt]
    except TypeError as error:
        raise ValueError(
            f"the prompt is {type(prompt).__name__}, expected one text, a list of chat messages or a list of "
            f"token ids"
        ) from error


def _encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Any, template: dict[str, Any]
) -> list[int]:
    if not all(
        isinstance(m, Mapping) and m.get("role") and isinstance(m.get("content"), str) for m in messages
    ):
        raise ValueError(
            "chat messages need a role and a text content each: [{'role': 'user', 'content': '…'}]"
        )
    if tokenizer.chat_template is None:
        raise ValueError("this tokenizer has no chat template; pass the prompt as text or ids")
    if not any(m["content"].strip() for m in messages):
        raise ValueError("the prompt is empty; expected at least one chat message with text")
    ids = tokenizer.apply_chat_template(
        [dict(m) for m in messages], add_generation_prompt=True, return_dict=False, **template
    )
    return [int(token) for token in ids]  # pyright: ignore[reportArgumentType]


def load_prompts(source: str | Path | Sequence[str], per_domain: int | None = None) -> list[dict[str, Any]]:
    """Prompts as dicts with `id`, `domain` and `messages`, from sets shipped in `data/prompts/` ("chat",
    "code", "math") or JSONL files.

    `source` is one name or path or a list of them; `per_domain` keeps the first few of each. Raises
    `ValueError` for a set that does not exist, a broken line, a repeated id, or per_domain < 1.
    """
    if per_domain is not None and per_domain < 1:
        raise ValueError(f"per_domain is {per_domain}, expected at least 1, or None for all prompts")
    prompts: list[dict[str, Any]] = []
    for name in [source] if isinstance(source, (str, Path)) else source:
        prompts += _read_set(name)[:per_domain]
    ids = [p["id"] for p in prompts]
    if repeated := sorted({i for i in ids if ids.count(i) > 1}):
        raise ValueError(f"prompt ids must be unique, but {', '.join(repeated[:5])} appear more than once")
    return prompts


def _read_set(name: str | Path) -> list[dict[str, Any]]:
    folder = data_dir() / "prompts"
    path = Path(name) if Path(name).suffix else folder / f"{name}.jsonl"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.jsonl")))
        raise ValueError(
            f"there is no prompt set {str(name)!r}; known are {known}, or give the path of a JSONL file"
        )
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            prompts.append(_read_line(line, f"{path.name} line {number}", path.stem))
    return prompts


def _read_line(line: str, where: str, domain: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        return {"id": str(row["id"]), "domain": str(row.get("domain") or domain), "messages": messages}
    except (json.JSONDecodeError, KeyError, AttributeError) as error:
        raise ValueError(
            f'{where} is not a prompt; expected {{"id": …, "domain": …, "prompt": … or "messages": …}}'
        ) from error
