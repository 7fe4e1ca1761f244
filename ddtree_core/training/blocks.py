"""The drafter's pass for training: many noise blocks of one text at once.

A block at anchor a is the noise block whose root is token a: it sees the features of positions before a and
itself, never another block. All blocks of a text share its projected features, so the pass costs what the
blocks cost. The result equals one `DFlashDrafter.draft` per anchor.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import rotate_half

from ddtree_core.models.drafter import DFlashModel, block_mask


def draft_blocks(
    model: DFlashModel,
    features: Float[Tensor, "texts rows width"],
    block: Float[Tensor, "texts anchors slots hidden"],
    anchors: Int[Tensor, "texts anchors"],
) -> Float[Tensor, "texts anchors slots hidden"]:
    """Hidden states of every slot of every block; `block` holds the embedded roots and masks.

    Rows of `features` at or behind an anchor are not seen by its block, so texts may be padded behind.
    """
    context, x = model.hidden_norm(model.fc(features)), block
    slots = x.shape[2]
    at = anchors[..., None] + torch.arange(slots, device=x.device)  # (texts, anchors, slots) positions
    rows = torch.arange(features.shape[1], device=x.device)
    of_rows = model.rotary_emb(x, rows[None])
    of_slots = model.rotary_emb(x, at.flatten(1))
    layer: Any
    for layer, causal, window in zip(model.layers, model.config.causal, model.config.windows, strict=True):
        seen = rows < anchors[..., None, None]  # (texts, anchors, 1, rows)
        if window is not None:
            seen = seen & (at[..., None] - rows < window)
        own = block_mask(slots, slots, causal, window, x.device)
        x = x + _attend(layer.self_attn, context, layer.input_layernorm(x), of_rows, of_slots, seen, own)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.norm(x)


def _attend(
    attention: Any,
    context: Tensor,
    x: Tensor,
    of_rows: tuple[Tensor, Tensor],
    of_slots: tuple[Tensor, Tensor],
    seen: Tensor,
    own: Tensor | None,
) -> Tensor:
    texts, count, slots, _ = x.shape
    heads, dim = (-1, attention.head_dim), attention.head_dim
    q = attention.q_norm(attention.q_proj(x).unflatten(-1, heads)).flatten(1, 2).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(x).unflatten(-1, heads)).flatten(1, 2).transpose(1, 2)
    v = attention.v_proj(x).unflatten(-1, heads).flatten(1, 2).transpose(1, 2)
    past_k = attention.k_norm(attention.k_proj(context).unflatten(-1, heads)).transpose(1, 2)
    past_v = attention.v_proj(context).unflatten(-1, heads).transpose(1, 2)  # (texts, groups, rows, dim)
    q, k, past_k = _rotated(q, of_slots), _rotated(k, of_slots), _rotated(past_k, of_rows)
    groups = k.shape[1]
    q = q.unflatten(1, (groups, -1)) * attention.scaling  # (texts, groups, share, anchors·slots, dim)
    share = q.shape[2]
    far = (q.flatten(2, 3) @ past_k.transpose(-1, -2)).unflatten(2, (share, count, slots))
    far = far.masked_fill(~seen[:, None, None], float("-inf"))
    blocks_q = q.unflatten(3, (count, slots))  # (texts, groups, share, anchors, slots, dim)
    blocks_k, blocks_v = (t.unflatten(2, (count, slots))[:, :, None] for t in (k, v))
    near = blocks_q @ blocks_k.transpose(-1, -2)  # (…, slots, slots)
    if own is not None:
        near = near.masked_fill(~own, float("-inf"))
    weights = torch.cat([far, near], dim=-1).softmax(-1)
    rows = far.shape[-1]
    out = (weights[..., :rows].flatten(2, 4) @ past_v).unflatten(2, (share, count, slots))
    out = out + weights[..., rows:] @ blocks_v
    out = out.permute(0, 3, 4, 1, 2, 5).reshape(texts, count, slots, groups * share * dim)
    return attention.o_proj(out)


def _rotated(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part[:, None] for part in rotary)
    return x * cos + rotate_half(x) * sin
