"""Validation by what counts: acceptance length, from walking texts that the target wrote.

For a greedy target the text it wrote is what it would say at every node on the text's own path, so drafts can
be walked against the text alone, without the target. Drafts depend on the anchor only, not on the rounds
before: one batched pass drafts at every position of a text, and any tree is walked over them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from ddtree_core.models.drafter import DFlashModel
from ddtree_core.training.corpus import Text
from ddtree_core.training.train import Tables, block_logits
from ddtree_core.trees import best_first, chain, tree_walk


@dataclass(frozen=True)
class Walked:
    """One text walked with one method."""

    domain: str
    method: str  # "chain" or "tree N", N draft nodes
    tokens: int
    rounds: int


@torch.inference_mode()
def walk_texts(
    model: DFlashModel,
    target: PreTrainedModel,
    texts: Iterable[Text],
    budgets: Sequence[int] = (16,),
    scale: Float[Tensor, "width"] | None = None,
) -> list[Walked]:
    """Acceptance over `texts` for the chain and for trees of every budget in `budgets`.

    `scale` divides the features of a drafter in training; None for a finished one.
    """
    tables, walked, training = Tables(model, target), [], model.training
    model.eval()
    for text in texts:
        drafts = _drafts(model, tables, text, scale)
        for method, budget in [("chain", None), *((f"tree {n}", n) for n in budgets)]:
            rounds = _rounds(text, drafts, budget, model.vocabulary)
            walked.append(Walked(text.domain, method, len(text.ids) - text.prompt_length - 1, rounds))
    model.train(training)
    return walked


def tau(walked: Iterable[Walked], method: str, domain: str | None = None) -> float:
    """Total tokens over total rounds of one method, of one domain or of all."""
    chosen = [w for w in walked if w.method == method and domain in (None, w.domain)]
    return sum(w.tokens for w in chosen) / max(1, sum(w.rounds for w in chosen))


def _drafts(
    model: DFlashModel, tables: Tables, text: Text, scale: Tensor | None
) -> Mapping[int, Float[Tensor, "depth vocab"]]:
    """Draft logits at every anchor of the answer that has a token behind it."""
    features = text.features.float()[None]
    features = features if scale is None else features / scale
    anchors = torch.arange(text.prompt_length, len(text.ids) - 1)
    slots, drafts = model.config.block_size, {}
    for part in anchors.split(64):
        logits = block_logits(model, tables, features, text.ids[part][None], part[None], slots)
        drafts.update(zip(part.tolist(), logits[0], strict=True))
    return drafts


def _rounds(text: Text, drafts: Mapping[int, Tensor], budget: int | None, vocabulary: Tensor | None) -> int:
    """Rounds in which a text is committed, its first answer token (from the prefill) aside."""
    ids, rounds, at, last = text.ids.tolist(), 0, text.prompt_length, len(text.ids) - 1
    while at < last:
        root = ids[at]
        tree = (
            chain(root, drafts[at], vocabulary)
            if budget is None
            else best_first(root, drafts[at], budget, vocabulary)
        )
        said = text.ids[(tree.depths + at + 1).clamp_max(last)]
        at, rounds = at + tree_walk(tree, said).length, rounds + 1
    return rounds
