"""What a pair's target writes: greedy texts with the outputs of all its blocks.

The text of a greedy target is what it says at every place of it, so drafts are compared with the text,
without the target, and many drafters with the same few texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.decoding.batched import Written, write_texts
from ddtree_core.decoding.prompts import Prompt, encode_prompt, load_prompts
from ddtree_core.models.pair import ModelPair
from ddtree_core.models.target import Target, decoder_layers


@dataclass(frozen=True, eq=False)
class Transcript:
    """A text of the target with the outputs of all its blocks."""

    ids: Int[Tensor, "n"]  # prompt and answer
    prompt_length: int
    outputs: Float[Tensor, "layers n-1 hidden"]
    surprise: float  # of the prompt for the target, nats per token

    def features(self, layer_ids: Sequence[int]) -> Float[Tensor, "n-1 width"]:
        """Outputs of some blocks, side by side."""
        return torch.cat([self.outputs[k] for k in layer_ids], dim=-1)

    @property
    def anchors(self) -> Int[Tensor, "anchors"]:
        """Places of the answer with at least one token behind."""
        return torch.arange(self.prompt_length, len(self.ids) - 1, device=self.ids.device)


def record(pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int = 40) -> list[Transcript]:
    """Greedy answers of the pair's target to `prompts`, those of three tokens and more.

    Raises `ValueError` where there are none.
    """
    return _read(pair, _write(pair, _encoded(pair, prompts), max_new_tokens))


def record_with_known(
    pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int = 40
) -> tuple[list[Transcript], list[Transcript]]:
    """Answers to `prompts`, and to known ones with which they are compared, all written in one batch."""
    given, known = _encoded(pair, prompts), _encoded(pair, known_prompts(pair, prompts))
    written = _write(pair, given + known, max_new_tokens)
    return _read(pair, written[: len(given)]), _read(pair, written[len(given) :])


def known_prompts(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Prompt]:
    """A shipped prompt of each set, others than `prompts`: a context of another prompt's must show."""
    chat, chosen = pair.tokenizer.chat_template is not None, []
    for name in ("chat", "code", "math"):
        shipped = [prompt["messages"] for prompt in load_prompts([name])]
        known = [messages if chat else messages[0]["content"] for messages in shipped]
        chosen.append(next((prompt for prompt in known if prompt not in prompts), known[-1]))
    return chosen


def _encoded(pair: ModelPair, prompts: Sequence[Prompt]) -> list[list[int]]:
    if not prompts:
        raise ValueError("there are no prompts; give at least one, three or more of several kinds are better")
    return [encode_prompt(pair.tokenizer, prompt, **pair.template) for prompt in prompts]


def _write(pair: ModelPair, prompt_ids: Sequence[list[int]], max_new_tokens: int) -> list[Written]:
    return write_texts(pair.model, prompt_ids, max_new_tokens=max_new_tokens, stop_ids=pair.stop_ids)


def _read(pair: ModelPair, written: Sequence[Written]) -> list[Transcript]:
    every, device, transcripts = range(len(decoder_layers(pair.model))), pair.draft.device, []
    for text in written:
        if len(text.ids) - text.prompt_length < 3:
            continue
        features = Target(pair.model, every, device).prefill(text.ids[:-1]).features
        outputs = features.unflatten(-1, (len(every), -1)).transpose(0, 1).contiguous()
        surprise = _surprise(pair, text.ids[: text.prompt_length].to(device), outputs[-1])
        transcripts.append(Transcript(text.ids.to(device), text.prompt_length, outputs, surprise))
    if not transcripts:
        raise ValueError(
            "the target ends all its answers at once; give prompts that it has something to say to"
        )
    return transcripts


@torch.inference_mode()
def _surprise(pair: ModelPair, prompt: Tensor, last: Tensor) -> float:
    """Mean negative log-probability of a prompt's tokens behind the first, from the last block's output."""
    target: Any = pair.model
    hidden = target.get_decoder().norm(last[None, : len(prompt) - 1])
    log_p = target.get_output_embeddings()(hidden)[0].float().log_softmax(-1)
    return -float(log_p.gather(-1, prompt[1:, None]).mean())
