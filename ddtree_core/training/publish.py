"""A trained drafter on disk, in the published (z-lab) layout that `load_drafter` reads."""

import json
import os
import shutil
from copy import deepcopy
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor

from ddtree_core.models.drafter import DFlashModel


def finished(model: DFlashModel, scale: Float[Tensor, "width"]) -> DFlashModel:
    """A copy of a drafter in training that reads the features as they are: `scale` goes into `fc`."""
    copy = deepcopy(model).requires_grad_(False).eval()
    copy.fc.weight /= scale
    return copy


def save_drafter(
    model: DFlashModel, scale: Float[Tensor, "width"], folder: Path, dtype: torch.dtype = torch.bfloat16
) -> None:
    """Write config.json and model.safetensors; the folder appears under its name only when both are whole."""
    tensors = {
        name: tensor.to(dtype).contiguous()
        for name, tensor in finished(model, scale).state_dict().items()
        if not name.startswith(("rotary_emb", "lm_head", "embed_tokens"))  # computed, or the target's own
    }
    if model.vocabulary is not None:
        drafted = torch.zeros(model.config.body.vocab_size, dtype=torch.bool)
        drafted[model.vocabulary] = True
        tensors |= {"d2t": model.vocabulary - torch.arange(len(model.vocabulary)), "t2d": drafted}
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    save_file(tensors, unfinished / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(_published_config(model, dtype), indent=1)
    (unfinished / "config.json").write_text(text + "\n", encoding="utf-8")
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)


def _published_config(model: DFlashModel, dtype: torch.dtype) -> dict[str, object]:
    config, body = model.config, model.config.body
    kept = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "hidden_act",
        "rms_norm_eps",
        "attention_bias",
        "max_position_embeddings",
    )
    return {
        "model_type": "qwen3",
        "architectures": ["DFlashDraftModel"],
        **{name: getattr(body, name) for name in kept},
        "rope_parameters": body.rope_parameters,
        "tie_word_embeddings": False,
        "layer_types": body.layer_types,
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {
            "target_layer_ids": list(config.target_layer_ids),
            "mask_token_id": config.mask_token_id,
        },
        **({} if model.vocabulary is None else {"draft_vocab_size": len(model.vocabulary)}),
        "dtype": str(dtype).removeprefix("torch."),
    }
