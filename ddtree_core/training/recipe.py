"""A recipe: everything that makes a drafter for a target, in one JSON file, and the run that follows it.

Each part of a run finds what an earlier run finished, so the same call continues after an interruption.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.loading import locate
from ddtree_core.paths import data_dir
from ddtree_core.training.archive import restore
from ddtree_core.training.batches import Batches
from ddtree_core.training.corpus import Corpus, write_corpus
from ddtree_core.training.initialise import (
    continued,
    draft_config,
    feature_scale,
    frequent_tokens,
    new_drafter,
)
from ddtree_core.training.state import Step
from ddtree_core.training.train import DrafterPlan, train_drafter

VALIDATION_SHARE = 40  # one text in so many is not trained on


@dataclass(frozen=True)
class Recipe:
    """How a drafter is made; `stages` are trainings one after the other, each from the last one's weights."""

    target: str  # a registered pair's name, a folder or a hub id
    layer_ids: tuple[int, ...]
    mask_token_id: int
    stages: tuple[DrafterPlan, ...]
    block_size: int = 8
    layers: int = 2
    draft_vocab_size: int | None = None
    start: str | None = None  # drafter to begin with; None: weights from the target's last layers
    texts: str | None = None  # file in data/training of texts that the target wrote; None: it writes them
    shards: int = 40  # of 96 prompts each, where the target writes the texts
    seed: int = 0


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from JSON. Raises `ValueError` for a file that is not one."""
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stages = tuple(DrafterPlan(**stage) for stage in data.pop("stages"))
        return Recipe(**{**data, "layer_ids": tuple(data["layer_ids"]), "stages": stages})
    except (OSError, ValueError, TypeError, KeyError) as error:
        fields = ", ".join(Recipe.__dataclass_fields__)
        raise ValueError(f"{path} is not a recipe ({error}); expected JSON with {fields}") from error


def make_corpus(
    recipe: Recipe,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    stop_ids: Sequence[int],
    held_out: Sequence[str] = (),
) -> Corpus:
    """The corpus of a recipe in `folder`: restored from the recipe's texts, or written by the target.

    `held_out` are prompts that must not be written. What `folder` holds already is kept.
    """
    if recipe.texts is not None:
        texts = data_dir() / "training" / recipe.texts
        return restore(target, tokenizer, texts, folder, recipe.layer_ids)
    write_corpus(
        target,
        tokenizer,
        folder,
        layer_ids=recipe.layer_ids,
        stop_ids=stop_ids,
        shards=range(recipe.shards),
        seed=recipe.seed,
        held_out=held_out,
    )
    return Corpus(folder)


@dataclass(frozen=True)
class Prepared:
    """A drafter ready to be trained, with its corpus."""

    model: DFlashModel
    corpus: Corpus
    trained: list[int]  # numbers of the texts to train on
    validation: list[int]  # numbers of the texts to validate on
    scale: Float[Tensor, "width"]  # features are divided by it


def prepare(recipe: Recipe, target: PreTrainedModel, corpus: Corpus) -> Prepared:
    """The untrained drafter of a recipe, and the split of its corpus, by the texts' ids alone."""
    sums = [crc32(text.ids.numpy().tobytes()) for text in corpus]
    validation = [n for n, checksum in enumerate(sums) if checksum % VALIDATION_SHARE == 0]
    trained = sorted(set(range(len(corpus))) - set(validation))
    config = draft_config(
        target,
        layer_ids=recipe.layer_ids,
        block_size=recipe.block_size,
        mask_token_id=recipe.mask_token_id,
        layers=recipe.layers,
        draft_vocab_size=recipe.draft_vocab_size,
    )
    size, scale = recipe.draft_vocab_size, feature_scale(corpus, trained[::7])
    vocabulary = None if size is None else frequent_tokens(corpus, trained, size)
    if recipe.start is None:
        model = new_drafter(target, config, scale, vocabulary, recipe.seed)
    else:
        model = continued(load_drafter(Path(locate(recipe.start)), target), scale, vocabulary)
    return Prepared(model, corpus, trained, validation, scale)


def follow(recipe: Recipe, prepared: Prepared, target: PreTrainedModel, work: Path) -> Iterator[Step]:
    """Train through all stages, one optimiser step per turn, with the state saved in `work`.

    Steps are numbered through the stages; those of an earlier run are not yielded again.
    """
    before = 0
    for number, plan in enumerate(recipe.stages):
        batches = Batches(prepared.corpus, prepared.trained, plan.texts, plan.anchors, plan.seed)
        folder = work / f"stage-{number + 1}"
        for step in train_drafter(prepared.model, target, batches, prepared.scale, plan, folder=folder):
            yield replace(step, number=before + step.number)
        before += plan.steps
