"""What a speed-up is measured against: this loop and the library's own `generate`, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig

from ddtree_core.decoding.decode import generate
from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.models.pair import ModelPair


def library_generate(pair: ModelPair, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """New tokens of transformers' own greedy `generate` on the pair's target, a final stop token included.

    As this loop, it takes the stop tokens from the checkpoint's generation config and nothing else.
    """
    model: Any = pair.model
    ids = torch.tensor([list(prompt_ids)], device=model.device)
    plain = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(pair.stop_ids) or None,
        pad_token_id=pair.stop_ids[0] if pair.stop_ids else None,
    )
    with torch.inference_mode(), _generation_config(model, plain):
        out = model.generate(ids, attention_mask=torch.ones_like(ids))
    return out[0, ids.shape[1] :].tolist()


@contextmanager
def _generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Give a model another generation config; one passed to `generate` inherits from the own one."""
    own = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = own


def compare_baselines(
    pairs: Mapping[str, ModelPair],
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    methods: Sequence[tuple[str, int | None]] = (("autoregressive", None), ("ddtree", 16)),
) -> list[dict[str, Any]]:
    """Seconds and tokens of every method and of the library's `generate`, on every pair, over all prompts.

    `pairs` are the same models loaded in several ways, by name. Everything decodes greedily with the same
    stop tokens, and takes turns on each prompt. Rows have `weights` (the pair's name here), `decoder`,
    `tokens`, `seconds`, and `same_text` (equal to the library's text on that pair, on every prompt).
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    warm_up = [prompts[0], *prompts]  # the first text of each decoder is thrown away
    for turn, prompt in enumerate(warm_up):
        for weights, pair in pairs.items():
            ids = encode_prompt(pair.tokenizer, prompt, **pair.template)
            limit = max_new_tokens if turn else min(8, max_new_tokens)
            start = perf_counter()
            expected = library_generate(pair, ids, limit)
            runs = [("transformers generate", expected, perf_counter() - start)]
            for method, budget in methods:
                made = generate(pair, ids, method, budget=budget, max_new_tokens=limit)
                name = method if budget is None else f"{method} {budget}"
                runs.append((f"this loop, {name}", made.ids, made.seconds["total"]))
            if turn:
                for decoder, tokens, seconds in runs:
                    _add(rows, weights, decoder, len(tokens), seconds, tokens == expected)
    return list(rows.values())


def _add(rows: dict, weights: str, decoder: str, tokens: int, seconds: float, same: bool) -> None:
    row = rows.setdefault(
        (weights, decoder),
        {"weights": weights, "decoder": decoder, "tokens": 0, "seconds": 0.0, "same_text": True},
    )
    row["tokens"] += tokens
    row["seconds"] += seconds
    row["same_text"] &= same
