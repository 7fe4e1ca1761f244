"""DFlash checkpoints on disk → `DFlashModel`, in the original (z-lab) and in the `speculators` layout.

Every rule that the two layouts leave to the reader is applied in here, once, and a checkpoint that does not
fit is refused in one sentence before any weight is used.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from ddtree_core.models.borrowed import head_rows
from ddtree_core.models.draft_config import (
    CheckpointError,
    DFlashConfig,
    check_vocabulary,
    declared_dtype,
    parse_config,
    read_config,
)
from ddtree_core.models.drafter import DFlashModel


def load_drafter(
    folder: Path,
    target: PreTrainedModel,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    tokens: int | None = None,
) -> DFlashModel:
    """Load the DFlash checkpoint in `folder` for `target`, checked against it.

    `tokens` is the number of ids that the target's tokenizer can give. Where it is known, the vocabularies
    may be padded to different lengths; no id beyond it is drafted then.

    Raises `CheckpointError` for a checkpoint that is damaged, incomplete or made for another target, and for
    float16.
    """
    raw = read_config(folder)
    config = parse_config(raw, target.config.get_text_config(decoder=True), where=str(folder))
    if torch.float16 in (dtype, declared_dtype(raw)):
        raise CheckpointError(
            f"{folder}: float16 makes DFlash drafters useless (acceptance collapses); use bfloat16 or "
            f"float32 instead"
        )
    rows = target.config.get_text_config(decoder=True).vocab_size
    check_vocabulary(config, rows, tokens, where=str(folder))
    tensors = _read_tensors(folder)
    offsets, mapped = tensors.pop("d2t", None), tensors.pop("t2d", None)
    config, vocabulary = _vocabulary(config, offsets, mapped, folder)
    with torch.device("meta"):
        model = DFlashModel(
            config, own_head="lm_head.weight" in tensors, own_embedding="embed_tokens.weight" in tensors
        )
    _check_tensors(model, tensors, folder)
    model.load_state_dict(tensors, assign=True)
    if config.body.vocab_size != rows:
        model.tokens = tokens
    if vocabulary is not None:
        model.lm_head = model.lm_head or head_rows(target, vocabulary)
        model.vocabulary = vocabulary.to(device)
    # The rotary frequencies are computed, not stored, and stay float32 whatever the weights are.
    model.rotary_emb = nn.Identity()
    model = model.to(device=device, dtype=dtype).requires_grad_(False).eval()
    model.rotary_emb = Qwen3RotaryEmbedding(config.body).to(device)
    return model


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    # In transformers' own order: the single file, then the shards of an index.
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not single.is_file() and not index.is_file():
        raise CheckpointError(
            f"{folder} holds no {single.name} and no {index.name}; fetch the checkpoint again"
        )
    files = [single] if single.is_file() else sorted({folder / name for name in _weight_map(index).values()})
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{file} is missing, truncated or damaged ({error}); fetch the checkpoint again"
            ) from error
    if any(t.dtype == torch.float16 for t in tensors.values()):
        raise CheckpointError(
            f"{folder}: the weights are float16, expected bfloat16 or float32; convert from the original "
            f"weights"
        )
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged ({error}); fetch the checkpoint again") from error


def _vocabulary(
    config: DFlashConfig, offsets: Tensor | None, mapped: Tensor | None, folder: Path
) -> tuple[DFlashConfig, Tensor | None]:
    """Target token id of every output row; `d2t` holds offsets: target id = draft id + d2t[draft id]."""
    if offsets is None:
        if config.draft_vocab_size != config.body.vocab_size:
            raise CheckpointError(
                f"{folder}: draft_vocab_size is {config.draft_vocab_size} of {config.body.vocab_size}, but "
                f"there is no d2t tensor that maps draft ids to token ids"
            )
        return config, None
    vocabulary = torch.arange(len(offsets)) + offsets.long()
    valid = len(offsets) == config.draft_vocab_size and bool(
        ((vocabulary >= 0) & (vocabulary < config.body.vocab_size)).all()
    )
    if not valid or len(vocabulary.unique()) != len(vocabulary):
        raise CheckpointError(
            f"{folder}: d2t must hold {config.draft_vocab_size} offsets to distinct token ids below "
            f"{config.body.vocab_size}"
        )
    if mapped is not None and not torch.equal(mapped.nonzero().flatten(), vocabulary.sort().values):
        raise CheckpointError(f"{folder}: t2d and d2t name different token ids; fetch the checkpoint again")
    return replace(config, draft_vocab_size=len(vocabulary)), vocabulary


def _check_tensors(model: DFlashModel, tensors: Mapping[str, Tensor], folder: Path) -> None:
    expected = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        parts = [
            f"{what} {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for what, names in (("missing", missing), ("unknown", extra))
            if names
        ]
        raise CheckpointError(
            f"{folder}: {' and '.join(parts)} among its tensors; expected just those of a DFlash draft body"
        )
    ids, width = len(model.config.target_layer_ids), tensors["fc.weight"].shape[-1]
    if width != ids * model.config.target_hidden_size:
        raise CheckpointError(
            f"{folder}: fc.weight reads {width} features, but {ids} layer ids × hidden size "
            f"{model.config.target_hidden_size} give {ids * model.config.target_hidden_size}; config and "
            f"weights do not belong together"
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(
                f"{folder}: {name} has shape {tuple(tensors[name].shape)}, expected {shape} from config.json"
            )
