"""A target and its drafter, loaded and checked against each other."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.models import memory
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.draft_config import parse_config, read_config
from ddtree_core.models.drafter import Drafter, DraftModel
from ddtree_core.models.first_look import warn_if_wrong
from ddtree_core.models.loading import (
    PairError,
    choose_device,
    choose_dtype,
    draft_folder,
    fetch,
    locate,
    read_model,
    read_tokenizer,
    stop_ids,
)
from ddtree_core.models.packed import can_pack, pack_linears
from ddtree_core.models.registry import DEFAULT_PAIR, PAIRS, PairSpec
from ddtree_core.models.target import Target
from ddtree_core.models.tiny import BlurredLookahead, byte_tokenizer, tiny_model


@dataclass(frozen=True, eq=False)
class ModelPair:
    """A loaded target and drafter that belong together, with their tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft: DraftModel
    packed: bool = False  # linears run through oneDNN-packed weights
    revisions: dict[str, str | None] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)  # arguments for the chat template

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def max_positions(self) -> int | None:
        """Positions that the target was made for, prompt and answer together."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text; see `stop_ids`."""
        return stop_ids(self.model, self.tokenizer)

    def open_target(self, features: bool = True) -> Target:
        """The target for one generation; without `features` nothing is captured (autoregressive decoding)."""
        return Target(self.model, self.draft.layer_ids if features else (), self.draft.device)

    def open_drafter(self, prompt_ids: list[int]) -> Drafter:
        """The drafter for one generation."""
        return self.draft.open(self.model, prompt_ids)


def load_pair(
    pair: str | tuple[str, str] = DEFAULT_PAIR,
    *,
    device: str | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | tuple[str | None, str | None] | None = None,
    packed: bool | None = None,
    template: dict[str, Any] | None = None,
    check: bool = True,
) -> ModelPair:
    """Load a known pair by name, or a target and a drafter given as local folders or hub ids.

    These are a tuple (target, drafter) or one string "TARGET + DRAFTER".

    `device`: "cpu", "cuda", "cuda:1", or "auto" to split the target over all GPUs (default: the GPUs if there
    are any). `dtype`: default float32 on a CPU, bfloat16 on GPUs. `revision`: hub revision of both or of
    (target, drafter). `packed`: oneDNN-packed linears (default: on a CPU in float32). `template`: arguments
    for the chat template (default: as the drafter was trained, where known). `check`: take a first look at
    the drafts, which costs about as much as drafting 32 tokens, and give a `PairWarning` where they look
    wrong. Raises `PairError`, `CheckpointError`, `UnsupportedModelError` or `DownloadError`, each with one
    sentence.
    """
    spec = find_pair(pair)
    device = choose_device(device)
    if spec.tiny:
        loaded = _load_tiny(spec, device, choose_dtype(dtype, "cpu"))
    else:
        revisions = revision if isinstance(revision, tuple) else (revision, revision)
        loaded = _load(spec, device, choose_dtype(dtype, device), revisions)
    loaded = replace(loaded, template=spec.template if template is None else template)
    pack = can_pack(loaded.model) if packed is None else packed
    if pack:
        pack_linears(loaded.model)
        if isinstance(loaded.draft, nn.Module):
            pack_linears(loaded.draft)
        loaded = replace(loaded, packed=True)
    if check and not spec.tiny:  # whose drafter is the target itself, with no weights to be wrong about
        warn_if_wrong(loaded)
    return loaded


def find_pair(pair: str | tuple[str, str]) -> PairSpec:
    """The registry's row of that name, or a row without facts for two folders or hub ids; see `load_pair`.

    Raises `PairError` for an unknown name.
    """
    if isinstance(pair, str) and " + " in pair:
        target, drafter = (part.strip() for part in pair.split(" + ", 1))
        pair = (target, drafter)
    if not isinstance(pair, str):
        target, drafter = pair
        return PairSpec(name=Path(target).name, target=target, drafter=drafter)
    if pair not in PAIRS:
        raise PairError(
            f"unknown pair {pair!r}; known are {', '.join(PAIRS)}, or name two folders or hub ids as "
            "(target, drafter) or 'TARGET + DRAFTER'"
        )
    return PAIRS[pair]


def _load_tiny(spec: PairSpec, device: str, dtype: torch.dtype) -> ModelPair:
    model = tiny_model(spec.tiny or "llama")
    model = model.to(device="cuda" if device == "auto" else device, dtype=dtype)  # pyright: ignore[reportCallIssue]
    return ModelPair(spec.name, model, byte_tokenizer(), BlurredLookahead())


def _load(
    spec: PairSpec, device: str, dtype: torch.dtype, revisions: tuple[str | None, str | None]
) -> ModelPair:
    if spec.parameters:
        memory.check_fits(spec.name, spec.parameters, dtype, device)
    target = locate(spec.target)
    config = fetch(target, lambda: AutoConfig.from_pretrained(target, revision=revisions[0]))
    if not spec.parameters:
        parameters = fetch(target, lambda: memory.parameter_count(config))
        memory.check_fits(spec.name, parameters, dtype, device)
    folder = draft_folder(locate(spec.drafter), revisions[1])
    # A drafter that does not belong to the target is refused before the target's weights are read.
    parse_config(read_config(folder), config.get_text_config(decoder=True), where=str(folder))
    tokenizer = read_tokenizer(target, config, revisions[0])
    model = read_model(target, revision=revisions[0], dtype=dtype, device=device)
    draft = load_drafter(folder, model, device=_head_device(model), dtype=dtype)
    commits = {"target": getattr(model.config, "_commit_hash", None) or revisions[0], "drafter": revisions[1]}
    return ModelPair(spec.name, model, tokenizer, draft, revisions=commits)


def _head_device(model: PreTrainedModel) -> torch.device:
    """Where the target's logits appear: the drafter lives there, beside the output head that it shares."""
    head: Any = model.get_output_embeddings()
    return model.device if head.weight.device.type == "meta" else head.weight.device
