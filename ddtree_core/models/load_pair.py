"""Loads a target and its drafter and checks them against each other."""

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.draft_config import check_vocabulary, parse_config, read_config
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.first_look import PairWarning, warn_if_wrong
from ddtree_core.models.loading import (
    choose_device,
    choose_dtype,
    draft_folder,
    fetch,
    locate,
    read_model,
    read_tokenizer,
)
from ddtree_core.models.memory import check_fits
from ddtree_core.models.packed import can_pack, pack_linears
from ddtree_core.models.pair import ModelPair
from ddtree_core.models.pair_spec import PairSpec, Revisions
from ddtree_core.models.registry import DEFAULT_PAIR, find_pair
from ddtree_core.models.tiny import BlurredLookahead, byte_tokenizer, tiny_model


def load_pair(
    pair: str | tuple[str, str] = DEFAULT_PAIR,
    *,
    device: str | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | Revisions | None = None,
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
    wrong; another is given where the registry's facts are not those of the checkpoints. Raises `PairError`,
    `CheckpointError`, `UnsupportedModelError`, `OutOfMemoryError` or `DownloadError`, each with one sentence.
    """
    spec = find_pair(pair)
    device = choose_device(device)
    if spec.tiny:
        loaded = _load_tiny(spec, device, choose_dtype(dtype, "cpu"))
    else:
        revisions = revision if isinstance(revision, tuple) else (revision, revision)
        loaded = _load(spec, device, choose_dtype(dtype, device), revisions)
    if sentence := wrong_facts(spec, loaded):
        warnings.warn(sentence, PairWarning, stacklevel=2)
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


def wrong_facts(spec: PairSpec, pair: ModelPair) -> str | None:
    """One sentence where the files of a loaded pair say something else than its registry row; else None."""
    shape: dict[str, Any] = spec.shape or {}
    shape, text = shape.get("text_config", shape), pair.model.config.get_text_config(decoder=True)
    mask = pair.draft.config.mask_token_id if isinstance(pair.draft, DFlashModel) else None
    facts = {  # the row's value, None where it is not settled, and that of the files
        "target layers": (shape.get("num_hidden_layers"), text.num_hidden_layers),
        "hidden size": (shape.get("hidden_size"), text.hidden_size),
        "vocabulary": (shape.get("vocab_size"), text.vocab_size),
        "captured blocks": (spec.target_layer_ids, pair.draft.layer_ids),
        "block size": (spec.block_size, pair.draft.depth + 1),
        "mask token": (spec.mask_token_id, mask),
    }
    wrong = {name: values for name, values in facts.items() if values[0] not in (None, values[1])}
    if not wrong:
        return None
    row, files = (", ".join(f"{name} {values[i]}" for name, values in wrong.items()) for i in (0, 1))
    return (
        f"registry says {row} of {spec.name}, its checkpoints ({spec.target}; {spec.drafter}) say {files}: "
        f"the checkpoints are used, and the row should be corrected"
    )


def _load_tiny(spec: PairSpec, device: str, dtype: torch.dtype) -> ModelPair:
    model = tiny_model(spec.tiny or "llama")
    model = model.to(device="cuda" if device == "auto" else device, dtype=dtype)  # pyright: ignore[reportCallIssue]
    return ModelPair(spec.name, model, byte_tokenizer(), BlurredLookahead())


def _load(spec: PairSpec, device: str, dtype: torch.dtype, revisions: Revisions) -> ModelPair:
    check_fits(spec, dtype, device, revisions)
    target = locate(spec.target)
    config = fetch(target, lambda: AutoConfig.from_pretrained(target, revision=revisions[0]))
    folder = draft_folder(locate(spec.drafter), revisions[1])
    tokenizer = read_tokenizer(target, config, revisions[0])
    tokens = max(tokenizer.get_vocab().values()) + 1
    # A drafter that does not belong to the target is refused before the target's weights are read.
    text = config.get_text_config(decoder=True)
    drafted = parse_config(read_config(folder), text, where=str(folder))
    check_vocabulary(drafted, text.vocab_size, tokens, where=str(folder))
    model = read_model(target, revision=revisions[0], dtype=dtype, device=device)
    draft = load_drafter(folder, model, device=_head_device(model), dtype=dtype, tokens=tokens)
    commits = {"target": getattr(model.config, "_commit_hash", None) or revisions[0], "drafter": revisions[1]}
    return ModelPair(spec.name, model, tokenizer, draft, revisions=commits)


def _head_device(model: PreTrainedModel) -> torch.device:
    """Where the target's logits appear: the drafter lives there, beside the output head that it shares."""
    head: Any = model.get_output_embeddings()
    return model.device if head.weight.device.type == "meta" else head.weight.device
