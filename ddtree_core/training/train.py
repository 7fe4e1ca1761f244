"""Training of a DFlash drafter against the target's own texts and distributions."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from ddtree_core.models.borrowed import Borrowed, head_rows
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.training.batches import Batch, Batches
from ddtree_core.training.objective import drafting_loss, position_weights
from ddtree_core.training.state import Schedule, Step, descend


@dataclass(frozen=True, kw_only=True)
class DrafterPlan(Schedule):
    """How long and how to train a drafter."""

    texts: int = 8  # per step
    anchors: int = 32  # noise blocks per text
    block_size: int = 8  # slots trained, the root included; at most the drafter's
    soft: float = 0.7  # share of the loss against the target's distribution, the rest against its choice
    decay: float = 3.0  # of the position weights exp(−(k − 1) / decay)


class Tables(Borrowed):
    """What a drafter in training borrows: embedding, and head rows in float32 that no gradient reaches."""

    def __init__(self, model: DFlashModel, target: PreTrainedModel):
        size = model.config.body.vocab_size
        chosen = torch.arange(size) if model.vocabulary is None else model.vocabulary.cpu()
        head = model.lm_head or head_rows(target, chosen).float()
        super().__init__(target, model.device, embedding=model.embed_tokens, head=head)
        self.column = torch.full((size,), -1)  # token id → column of the logits
        self.column[chosen] = torch.arange(len(chosen))


def block_logits(
    model: DFlashModel,
    tables: Borrowed,
    features: Float[Tensor, "texts rows width"],
    roots: Int[Tensor, "texts anchors"],
    anchors: Int[Tensor, "texts anchors"],
    slots: int,
) -> Float[Tensor, "texts anchors slots-1 vocab"]:
    """Logits of blocks of `slots` slots whose roots are at `anchors`: one `DFlashDrafter.draft` for each.

    Rows of `features` at or behind an anchor are not seen by its block, so texts may be padded behind.
    """
    block = tables.embed(model.noise(roots, slots)).to(features.dtype)
    hidden = model(features, block, anchors)
    return tables.logits(hidden[:, :, 1:])


def batch_loss(
    model: DFlashModel, tables: Tables, batch: Batch, scale: Tensor, plan: DrafterPlan
) -> Float[Tensor, ""]:
    """The loss of all blocks of a batch."""
    slots = plan.block_size
    roots = batch.ids.gather(1, batch.anchors)
    logits = block_logits(model, tables, batch.features / scale, roots, batch.anchors, slots)
    drafted = batch.anchors[..., None] + torch.arange(1, slots)  # positions of the drafted tokens
    tokens = F.pad(batch.ids, (0, slots), value=-1).gather(1, drafted.flatten(1)).view_as(drafted)
    labels = torch.where(tokens < 0, -2, tables.column[tokens.clamp_min(0)])
    with torch.no_grad():
        said = tables.logits(batch.final).softmax(-1)  # (texts, rows, vocab); row i speaks of token i + 1
        rows = (drafted - 1).clamp_max(said.shape[1] - 1)
        target = said[torch.arange(len(said))[:, None, None], rows]
    weights = position_weights(slots - 1, plan.decay)
    return drafting_loss(logits.flatten(0, 1), target.flatten(0, 1), labels.flatten(0, 1), weights, plan.soft)


def train_drafter(
    model: DFlashModel,
    target: PreTrainedModel,
    batches: Batches,
    scale: Float[Tensor, "width"],
    plan: DrafterPlan,
    *,
    folder: Path | None = None,
    save_every: int = 100,
) -> Iterator[Step]:
    """Train `model` in place, one step per turn, on features divided by `scale`.

    See `descend` for `folder`, from which an interrupted training goes on, and for errors; a plan with longer
    blocks than the drafter's is refused with a `ValueError`.
    """
    if plan.block_size > model.config.block_size:
        raise ValueError(
            f"the plan trains blocks of {plan.block_size}, the drafter has {model.config.block_size} slots; "
            f"train at most that many"
        )
    tables = Tables(model, target)
    return descend(
        model,
        lambda step: batch_loss(model, tables, batches[step], scale, plan),
        plan,
        folder=folder,
        save_every=save_every,
        corpus_texts=batches.pool,
    )
