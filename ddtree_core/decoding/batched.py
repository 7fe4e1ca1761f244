"""Batched generation that keeps what a drafter is trained on: the features of every position it read.

The decoding loop serves one text at a time; a corpus needs throughput. Prompts are padded on the left, all
rows advance together, and finished rows leave the batch, so that no pass computes what nobody needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from ddtree_core.models.cache import new_cache
from ddtree_core.models.capture import captured
from ddtree_core.models.target import decoder_layers

Pick = Callable[[Float[Tensor, "batch vocab"]], Int[Tensor, "batch"]]


@dataclass(frozen=True)
class Written:
    """One text of the target, with the features of all its positions but the last."""

    ids: Int[Tensor, "n"]  # prompt and answer
    prompt_length: int
    features: Float[Tensor, "n-1 width"]  # float16, outputs of the captured blocks side by side
    final: Float[Tensor, "n-1 hidden"]  # float16, what the output head reads


def greedy(logits: Float[Tensor, "batch vocab"]) -> Int[Tensor, "batch"]:
    """The most likely token of each row."""
    return logits.argmax(-1)


@torch.no_grad()
def write_texts(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    layer_ids: Sequence[int] = (),
    pick: Pick = greedy,
    finished: Callable[[list[int]], bool] = lambda answer: False,
) -> list[Written]:
    """Continue all prompts at once, each until a stop id, `max_new_tokens`, or `finished(answer ids)`.

    Returns one `Written` per prompt, in order; the stop id is part of the text.
    """
    step, visible = (part.to(model.device) for part in _padded_in_front(prompts))
    texts = [list(prompt) for prompt in prompts]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in prompts]
    rows: list[int | None] = list(range(len(prompts)))  # the text of each batch row; None once it has ended
    cache = new_cache(model.config)
    with captured(_read_by_drafters(model, layer_ids)) as outputs:
        for _ in range(max_new_tokens):
            positions = (visible.cumsum(-1) - 1).clamp_min(0)[:, -step.shape[1] :]
            out = model(
                input_ids=step,
                attention_mask=visible,
                position_ids=positions,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            features, final = _stored(outputs)
            read = visible[:, -step.shape[1] :].bool().cpu()
            step = pick(out.logits[:, -1])[:, None]
            for i, (row, token) in enumerate(zip(rows, step[:, 0].tolist(), strict=True)):
                if row is None:
                    continue
                kept[row].append((features[i][read[i]], final[i][read[i]]))
                texts[row].append(token)
                if token in stop_ids or finished(texts[row][len(prompts[row]) :]):
                    rows[i] = None
            going = [i for i, row in enumerate(rows) if row is not None]
            if not going:
                break
            if len(going) < 0.9 * len(rows):  # dropping rows copies the cache, so not for every one
                chosen: Any = torch.tensor(going, device=model.device)
                cache.reorder_cache(chosen)  # of all its kinds of layers
                step, visible, rows = step[chosen], visible[chosen], [rows[i] for i in going]
            visible = torch.cat([visible, visible.new_ones(len(rows), 1)], dim=1)
    return [
        Written(torch.tensor(text), len(prompt), *(torch.cat(part) for part in zip(*pieces, strict=True)))
        for text, prompt, pieces in zip(texts, prompts, kept, strict=True)
    ]


def _padded_in_front(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids of a batch of prompts, and which of them are no padding (1), both (batch, longest)."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    visible = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        visible[row, width - len(prompt) :] = 1
    return ids, visible


@torch.no_grad()
def read_texts(
    model: PreTrainedModel, texts: Sequence[tuple[Sequence[int], int]], layer_ids: Sequence[int]
) -> list[Written]:
    """The features of finished texts, given as (ids, prompt length), in one pass over all of them."""
    width = max(len(ids) for ids, _ in texts) - 1
    batch = torch.zeros(len(texts), width, dtype=torch.long)
    for row, (ids, _) in enumerate(texts):
        batch[row, : len(ids) - 1] = torch.tensor(ids[:-1])  # padded behind, where no position looks
    with captured(_read_by_drafters(model, layer_ids)) as outputs:
        model(input_ids=batch.to(model.device), use_cache=False, logits_to_keep=1)
    features, final = _stored(outputs)
    return [
        Written(torch.tensor(ids), prompt, features[row, : len(ids) - 1], final[row, : len(ids) - 1])
        for row, (ids, prompt) in enumerate(texts)
    ]


def _read_by_drafters(model: PreTrainedModel, layer_ids: Sequence[int]) -> list[nn.Module]:
    """The captured blocks and, last, the decoder, whose output is past the final norm."""
    layers = decoder_layers(model)
    return [*(layers[k] for k in layer_ids), model.get_decoder()]


def _stored(outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """`features` (batch, n, width) and `final` (batch, n, hidden) as they are kept: float16, on the CPU."""
    *blocks, final = [output.half().cpu() for output in outputs]
    return torch.cat(blocks, dim=-1) if blocks else final[..., :0], final
