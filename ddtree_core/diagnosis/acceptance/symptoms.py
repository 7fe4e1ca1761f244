"""How low acceptance looks: a drafter measured along transcripts of its target."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.diagnosis.acceptance.transcripts import Transcript
from ddtree_core.models.drafter import Drafter
from ddtree_core.models.pair import ModelPair
from ddtree_core.trees import DraftTree, chain, token_ids

DEPTH = 3  # drafted tokens by which drafts are compared; later ones are rarely reached
MIN_PROBABILITY = 1e-3  # a less likely token is as good as missed
MAX_ROUNDS = 24  # of a replay
READ_BEFORE = 16  # tokens that the target has read before it rejects some


@dataclass(frozen=True, eq=False)
class Replay:
    """A drafter's rounds along one transcript, as the loop would have them with a chain."""

    anchors: Int[Tensor, "rounds"]  # place of each round's root
    left: Int[Tensor, "rounds"]  # tokens of the text behind the root
    drafted: Int[Tensor, "rounds depth"]  # the likeliest tokens
    accepted: Int[Tensor, "rounds"]  # drafted tokens that the target wrote
    entropy: Float[Tensor, "rounds depth"]  # nats
    logits: Float[Tensor, "rounds few vocab"]  # of the first DEPTH tokens


@torch.inference_mode()
def replay(drafter: Drafter, transcript: Transcript, layer_ids: Sequence[int]) -> Replay:
    """Let a fresh drafter draft the first rounds of a transcript.

    It is handed features of the blocks `layer_ids` as the loop does.
    """
    features, ids, done = transcript.features(layer_ids), transcript.ids, 0
    at, rows = transcript.prompt_length, []
    while at < len(ids) - 1 and len(rows) < MAX_ROUNDS:
        logits = drafter.draft(features[done:at], ids[done + 1 : at + 1])
        best = token_ids(logits.argmax(-1), drafter.vocabulary)
        written = ids[at + 1 : at + 1 + len(best)]
        accepted = (best[: len(written)] == written).long().cumprod(0).sum()
        log_q = logits.float().log_softmax(-1)
        rows.append((at, len(ids) - 1 - at, best, accepted, -(log_q.exp() * log_q).sum(-1), logits[:DEPTH]))
        done, at = at, at + int(accepted) + 1
    anchors, left, *drafts = zip(*rows, strict=True)
    anchors, left = torch.tensor([anchors, left], device=ids.device)
    return Replay(anchors, left, *(torch.stack(part) for part in drafts))


@torch.inference_mode()
def likelihood(
    logits: Float[Tensor, "blocks few vocab"],
    transcript: Transcript,
    anchors: Int[Tensor, "blocks"],
    vocabulary: Int[Tensor, "vocab"] | None,
) -> Float[Tensor, "blocks"]:
    """Mean log-probability, in nats, that drafts give to the tokens which the target wrote next."""
    ids = transcript.ids
    places = anchors[:, None] + torch.arange(1, logits.shape[1] + 1, device=anchors.device)
    inside = places < len(ids)
    columns = ids[places.clamp_max(len(ids) - 1)]  # (blocks, few)
    if vocabulary is not None:
        column_of = vocabulary.new_full((int(max(columns.max(), vocabulary.max())) + 1,), -1)
        column_of[vocabulary] = torch.arange(len(vocabulary), device=vocabulary.device)
        columns = column_of[columns]
    given = logits.float().softmax(-1).gather(-1, columns.clamp_min(0)[..., None])[..., 0]
    log_p = torch.where(columns < 0, 0.0, given).nan_to_num(0.0).clamp_min(MIN_PROBABILITY).log()
    return (log_p * inside).sum(-1) / inside.sum(-1)


def distance(one: Float[Tensor, "*n vocab"], two: Float[Tensor, "*n vocab"]) -> Float[Tensor, "*n"]:
    """Total variation between the distributions of two sets of logits, 0 to 1; 1 where one is not finite."""
    variation = (one.float().softmax(-1) - two.float().softmax(-1)).abs().sum(-1) / 2
    return variation.nan_to_num(1.0)


@torch.inference_mode()
def feature_error(pair: ModelPair, transcript: Transcript, layer_ids: Sequence[int]) -> float:
    """Let the target reject three tokens and read the next: relative error of that one's features."""
    ids, target = transcript.ids, pair.open_target()
    at = min(READ_BEFORE, len(ids) - 3)
    target.prefill(ids[:at])
    size = pair.model.config.get_text_config(decoder=True).vocab_size
    wrong = (int(ids[at + 1]) + torch.arange(1, 4)) % size
    target.verify(chain(int(ids[at]), F.one_hot(wrong, size).float()))
    target.commit([0])
    target.verify(DraftTree.root_only(int(ids[at + 1])))
    expected = transcript.features(layer_ids)[at + 1]
    return float((target.commit([0])[0] - expected).norm() / expected.norm())


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
    context_dependence: float  # distance of first drafts on a prompt's features and their negatives, 0 to 1
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
    reached = (slots <= accepted[:, None]) & (slots < left[:, None])  # (rounds, depth)
    by_slot = (reached & (slots < accepted[:, None])).sum(0) / reached.sum(0)
    # The last round of a text that ends with it has no bonus token.
    committed = torch.minimum(accepted + 1, left).tolist()
    context = [int(a) for r in replays for a in r.anchors]
    return Symptoms(
        acceptance_length=sum(committed) / len(committed),
        acceptance_rate=(sum(committed) - len(committed)) / drafted.numel(),
        accepted_by_slot=tuple(by_slot.tolist()),
        rounds=tuple(zip(context, committed, strict=True)),
        slot1_agreement=float(by_slot[0]),
        entropy=float(entropy.mean()),
        repetition=float((drafted[:, 1:] == drafted[:, :-1]).float().mean()),
        likelihood=likelihood,
        context_dependence=context_dependence,
        cache_error=cache_error,
        feature_error=feature_error,
    )
