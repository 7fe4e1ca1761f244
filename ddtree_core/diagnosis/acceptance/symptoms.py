"""How low acceptance looks: a drafter measured along texts that the target wrote.

The text of a greedy target is what it says at every place of it, so drafts are compared with the text,
without the target, and many drafters with the same few texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.decoding.batched import write_texts
from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.models.drafter import Drafter
from ddtree_core.models.pair import ModelPair
from ddtree_core.models.target import Target, decoder_layers
from ddtree_core.trees import token_ids

DEPTH = 3  # drafted tokens by which drafts are compared; later ones are rarely reached
FLOOR = 1e-3  # a less likely token is as good as missed
ROUNDS = 24  # of a replay


@dataclass(frozen=True, eq=False)
class Text:
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


def record(pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int = 40) -> list[Text]:
    """Greedy answers of the pair's target to `prompts`, those of three tokens and more.

    Raises `ValueError` where there are none.
    """
    if not prompts:
        raise ValueError("there are no prompts; give at least one, three or more of several kinds are better")
    ids = [encode_prompt(pair.tokenizer, prompt, **pair.template) for prompt in prompts]
    written = write_texts(pair.model, ids, max_new_tokens=max_new_tokens, stop_ids=pair.stop_ids)
    every, device, texts = range(len(decoder_layers(pair.model))), pair.draft.device, []
    for text in written:
        if len(text.ids) - text.prompt_length < 3:
            continue
        read = Target(pair.model, every, device).prefill(text.ids[:-1]).features
        outputs = read.unflatten(-1, (len(every), -1)).transpose(0, 1).contiguous()
        surprise = _surprise(pair, text.ids[: text.prompt_length].to(device), outputs[-1])
        texts.append(Text(text.ids.to(device), text.prompt_length, outputs, surprise))
    if not texts:
        raise ValueError(
            "the target ends all its answers at once; give prompts that it has something to say to"
        )
    return texts


@torch.inference_mode()
def _surprise(pair: ModelPair, prompt: Tensor, last: Tensor) -> float:
    """Mean negative log-probability of a prompt's tokens behind the first, from the last block's output."""
    target: Any = pair.model
    hidden = target.get_decoder().norm(last[None, : len(prompt) - 1])
    log_p = target.get_output_embeddings()(hidden)[0].float().log_softmax(-1)
    return -float(log_p.gather(-1, prompt[1:, None]).mean())


@dataclass(frozen=True, eq=False)
class Replay:
    """A drafter's rounds along one text, as the loop would have them with a chain."""

    anchors: Int[Tensor, "rounds"]  # place of each round's root
    left: Int[Tensor, "rounds"]  # tokens of the text behind the root
    drafted: Int[Tensor, "rounds depth"]  # the likeliest tokens
    accepted: Int[Tensor, "rounds"]  # drafted tokens that the target wrote
    entropy: Float[Tensor, "rounds depth"]  # nats
    logits: Float[Tensor, "rounds few vocab"]  # of the first DEPTH tokens


@torch.inference_mode()
def replay(drafter: Drafter, text: Text, layer_ids: Sequence[int]) -> Replay:
    """Let a fresh drafter draft the first rounds of `text`.

    It is handed features of the blocks `layer_ids` as the loop does.
    """
    features, ids, done, at = text.features(layer_ids), text.ids, 0, text.prompt_length
    rows = []
    while at < len(ids) - 1 and len(rows) < ROUNDS:
        logits = drafter.draft(features[done:at], ids[done + 1 : at + 1])
        best = token_ids(logits.argmax(-1), drafter.vocabulary)
        told = ids[at + 1 : at + 1 + len(best)]
        accepted = (best[: len(told)] == told).long().cumprod(0).sum()
        log_q = logits.float().log_softmax(-1)
        rows.append((at, len(ids) - 1 - at, best, accepted, -(log_q.exp() * log_q).sum(-1), logits[:DEPTH]))
        done, at = at, at + int(accepted) + 1
    anchors, left, *drafts = zip(*rows, strict=True)
    anchors, left = torch.tensor([anchors, left], device=ids.device)
    return Replay(anchors, left, *(torch.stack(part) for part in drafts))


@torch.inference_mode()
def likelihood(
    logits: Float[Tensor, "blocks few vocab"],
    text: Text,
    anchors: Int[Tensor, "blocks"],
    vocabulary: Int[Tensor, "vocab"] | None,
) -> Float[Tensor, "blocks"]:
    """Mean log-probability, in nats, that drafts give to the tokens which the target wrote next."""
    places = anchors[:, None] + torch.arange(1, logits.shape[1] + 1, device=anchors.device)
    inside = places < len(text.ids)
    told = text.ids[places.clamp_max(len(text.ids) - 1)]  # (blocks, few)
    if vocabulary is not None:
        columns = vocabulary.new_full((int(max(told.max(), vocabulary.max())) + 1,), -1)
        columns[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
        told = columns[told]
    given = logits.float().softmax(-1).gather(-1, told.clamp_min(0)[..., None])[..., 0]
    log_p = torch.where(told < 0, 0.0, given).nan_to_num(0.0).clamp_min(FLOOR).log()
    return (log_p * inside).sum(-1) / inside.sum(-1)


def distance(one: Float[Tensor, "*n vocab"], two: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n"]:
    """Total variation between the distributions of two sets of logits, 0 to 1; 1 where one is not finite."""
    apart = (one.float().softmax(-1) - two.float().softmax(-1)).abs().sum(-1) / 2
    return apart.nan_to_num(1.0)


@dataclass(frozen=True)
class Symptoms:
    """What low acceptance looks like on one pair. nan where nothing was there to be measured."""

    acceptance_length: float  # tokens per round, chain
    acceptance_rate: float  # accepted drafts over drafted ones
    accepted_by_slot: tuple[float, ...]  # share of accepted drafts in each slot, of those that were reached
    rounds: tuple[tuple[int, int], ...]  # per round: tokens of context, and tokens committed
    slot1_agreement: float  # share of rounds whose first drafted token is the target's choice
    entropy: float  # mean entropy of a drafted distribution, nats
    repetition: float  # share of drafted tokens that equal the one before them
    likelihood: float  # mean log-probability of the target's next DEPTH tokens, nats per token
    context_dependence: (
        float  # distance of a first draft on a prompt's features and on their negatives, 0 to 1
    )
    cache_error: float  # distance of drafts from the cache and from scratch, 0 to 1
    feature_error: float  # of features behind rejected tokens, relative to those of the plain text


def summarise(
    replays: Sequence[Replay],
    *,
    likelihood: float,
    context_dependence: float,
    cache_error: float,
    feature_error: float,
) -> Symptoms:
    """The symptoms of a drafter from its replays, and from what was measured beside them."""
    accepted, left = (torch.cat([getattr(r, name) for r in replays]) for name in ("accepted", "left"))
    drafted, entropy = (torch.cat([getattr(r, name) for r in replays]) for name in ("drafted", "entropy"))
    slots = torch.arange(drafted.shape[1], device=drafted.device)
    reached = (slots <= accepted[:, None]) & (slots < left[:, None])
    held = (reached & (slots < accepted[:, None])).sum(0) / reached.sum(0)
    # The last round of a text that ends with it has no bonus token.
    committed = torch.minimum(accepted + 1, left).tolist()
    context = [int(a) for r in replays for a in r.anchors]
    return Symptoms(
        acceptance_length=sum(committed) / len(committed),
        acceptance_rate=(sum(committed) - len(committed)) / drafted.numel(),
        accepted_by_slot=tuple(held.tolist()),
        rounds=tuple(zip(context, committed, strict=True)),
        slot1_agreement=float(held[0]),
        entropy=float(entropy.mean()),
        repetition=float((drafted[:, 1:] == drafted[:, :-1]).float().mean()),
        likelihood=likelihood,
        context_dependence=context_dependence,
        cache_error=cache_error,
        feature_error=feature_error,
    )
