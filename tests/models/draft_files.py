"""Tiny DFlash checkpoints in the published layouts, field by field, and stand-ins for their targets.

Written from the published facts alone, sharing no code with the loader. Numbers of layers, layer ids, block
sizes, rotary bases and positions are the published ones; hidden sizes, MLP widths, heads, the vocabulary with
the mask id in it, and windows are scaled down. What is not known of a release is filled in.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from ddtree_core.models.tiny import tiny_target

VOCAB, MASK = 96, 91
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


@dataclass(frozen=True)
class Release:
    """One published drafter: hidden sizes and MLP widths divided by 64, heads and windows made small."""

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: tuple[int, int, int]  # query heads, key/value heads, head dim
    block: int
    ids: tuple[int, ...]
    target_layers: int
    sliding: int = 0  # how many of the first layers are sliding
    window: int | None = None
    theta: float = 1e6
    positions: int = 40960
    yarn: bool = False
    causal: bool | None = None  # `is_causal` at the top level of the config

    @property
    def layer_types(self) -> list[str]:
        full = self.layers - self.sliding
        return ["sliding_attention"] * self.sliding + ["full_attention"] * full


# 32/8/128, 32/4/128 and 64/8/64 heads: the same groups, and the same width as compared with the hidden size.
DENSE, SPARSE, GPT_OSS = (8, 2, 8), (8, 1, 8), (16, 2, 4)
QWEN35: dict[str, Any] = dict(theta=1e7, positions=262144)
LAYERS_32, LAYERS_36, LAYERS_64 = (1, 8, 15, 22, 29), (1, 9, 17, 25, 33), (1, 16, 31, 46, 61)
EIGHT = (1, 5, 9, 13, 17, 21, 25, 29)
RELEASES = (
    Release("qwen3-4b", 5, 40, 152, DENSE, 16, LAYERS_36, 36),
    Release("qwen3-8b", 5, 64, 192, DENSE, 16, LAYERS_36, 36),
    Release("qwen3-coder-30b-a3b", 8, 32, 96, SPARSE, 16, (1, 12, 23, 34, 45), 48, theta=1e7),
    Release("qwen3.5-4b", 5, 40, 152, DENSE, 16, LAYERS_32, 32, **QWEN35),
    Release("qwen3.5-9b", 5, 64, 192, DENSE, 16, LAYERS_32, 32, **QWEN35),
    Release("qwen3.5-9b-retrained", 6, 64, 192, DENSE, 16, EIGHT, 32, sliding=5, window=16, **QWEN35),
    Release("qwen3.5-27b", 5, 80, 272, DENSE, 16, LAYERS_64, 64, **QWEN35),
    Release("qwen3.5-27b-retrained", 6, 80, 272, DENSE, 16, LAYERS_64, 64, sliding=5, window=16, **QWEN35),
    Release("qwen3.5-35b-a3b", 8, 32, 96, SPARSE, 16, (1, 10, 19, 28, 37), 40, **QWEN35),
    Release("qwen3.6-27b", 5, 80, 272, DENSE, 16, LAYERS_64, 64, sliding=4, window=8, **QWEN35),
    Release("qwen3.6-35b-a3b", 8, 32, 96, SPARSE, 16, (1, 10, 19, 28, 37), 40, sliding=7, window=8, **QWEN35),
    Release(
        "gpt-oss-20b",
        8,
        45,
        120,
        GPT_OSS,
        8,
        (1, 6, 11, 16, 21),
        24,
        theta=1.5e5,
        positions=131072,
        yarn=True,
    ),
    Release("llama-3.1-8b", 5, 64, 192, DENSE, 10, LAYERS_32, 32, theta=5e5, positions=131072),
    Release(
        "qwen3.8-27b",
        5,
        80,
        272,
        DENSE,
        8,
        (5, 19, 33, 47, 61),
        64,
        sliding=5,
        window=8,
        causal=False,
        **QWEN35,
    ),
)
BY_NAME = {release.name: release for release in RELEASES}


def z_lab_config(release: Release, style: str = "newer") -> dict[str, Any]:
    """A config.json of the original layout, as older or newer files place its fields."""
    nested: dict[str, Any] = {"mask_token_id": MASK, "target_layer_ids": list(release.ids)}
    raw = _body_config(release, style) | {
        "architectures": ["DFlashDraftModel"],
        "num_target_layers": release.target_layers,
        "dflash_config": nested,
    }
    (nested if style == "newer" else raw)["block_size"] = release.block
    if release.causal is not None:
        raw["is_causal"] = release.causal
    return raw


def speculators_config(release: Release, draft_vocab: int = VOCAB) -> dict[str, Any]:
    """A config.json of the `speculators` layout; its layer ids index transformers' `hidden_states`."""
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": _body_config(release, "newer"),
        "aux_hidden_state_layer_ids": [k + 1 for k in release.ids],
        "block_size": release.block,
        "mask_token_id": MASK,
        "target_hidden_size": release.hidden,
        "draft_vocab_size": draft_vocab,
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "dtype": "bfloat16",
    }


def _body_config(release: Release, style: str) -> dict[str, Any]:
    query, key_value, dim = release.heads
    rope = YARN if release.yarn else {"rope_type": "default"}
    raw: dict[str, Any] = {
        "model_type": "qwen3",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": release.hidden,
        "intermediate_size": release.mlp,
        "num_hidden_layers": release.layers,
        "num_attention_heads": query,
        "num_key_value_heads": key_value,
        "head_dim": dim,
        "layer_types": release.layer_types,
        "max_position_embeddings": release.positions,
        "max_window_layers": release.layers,
        "rms_norm_eps": 1e-6,
        "sliding_window": release.window,
        "tie_word_embeddings": False,
        "use_sliding_window": release.window is not None,
        "vocab_size": VOCAB,
    }
    if style == "newer":
        return raw | {"dtype": "bfloat16", "rope_parameters": rope | {"rope_theta": release.theta}}
    scaling = rope if release.yarn else None
    return raw | {"torch_dtype": "bfloat16", "rope_scaling": scaling, "rope_theta": release.theta}


def body_tensors(release: Release, seed: int = 0) -> dict[str, Tensor]:
    """The 3 + 11·L tensors of a draft body: random bfloat16 weights."""
    (query, key_value, dim), hidden = release.heads, release.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(release.ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(release.layers):
        at = f"layers.{i}."
        shapes |= {
            at + "input_layernorm.weight": (hidden,),
            at + "post_attention_layernorm.weight": (hidden,),
            at + "self_attn.q_proj.weight": (query * dim, hidden),
            at + "self_attn.k_proj.weight": (key_value * dim, hidden),
            at + "self_attn.v_proj.weight": (key_value * dim, hidden),
            at + "self_attn.o_proj.weight": (hidden, query * dim),
            at + "self_attn.q_norm.weight": (dim,),
            at + "self_attn.k_norm.weight": (dim,),
            at + "mlp.gate_proj.weight": (release.mlp, hidden),
            at + "mlp.up_proj.weight": (release.mlp, hidden),
            at + "mlp.down_proj.weight": (hidden, release.mlp),
        }
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(shape, generator) for name, shape in shapes.items()}


def vocabulary_tensors(hidden: int, kept: Tensor, seed: int = 1) -> dict[str, Tensor]:
    """What the `speculators` layout adds: own tables, and the maps between draft ids and token ids.

    `kept` are the token ids of the draft vocabulary, ascending; d2t holds offsets.
    """
    generator = torch.Generator().manual_seed(seed)
    mapped = torch.zeros(VOCAB, dtype=torch.bool)
    mapped[kept] = True
    return {
        "embed_tokens.weight": _random((VOCAB, hidden), generator),
        "lm_head.weight": _random((len(kept), hidden), generator),
        "t2d": mapped,
        "d2t": kept - torch.arange(len(kept)),
    }


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:  # the scale of a norm
        values = 1 + 0.2 * torch.randn(shape, generator=generator)
    else:
        values = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    return values.to(torch.bfloat16)


def write_checkpoint(
    folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int = 1
) -> Path:
    """Write config.json and the weights, in one file or in shards with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    files = {f"model-{i + 1:05}-of-{shards:05}.safetensors": names[i::shards] for i in range(shards)}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file, metadata={"format": "pt"})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    weight_map = {name: file for file, held in files.items() for name in held}
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


@lru_cache
def stand_in(layers: int, hidden: int, vocab: int = VOCAB) -> PreTrainedModel:
    """A target of this depth, hidden size and vocabulary, and of next to nothing else; not to be changed."""
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    return tiny_target(config)
