"""The DFlash drafter: one pass over a block of masks gives a distribution for every coming position (arXiv
2602.06036).

The draft body is a few Qwen3 blocks. Every block attends to the target's features of the committed tokens,
projected once into the draft cache, and to the noise block `[root, MASK, …, MASK]`; the block's own keys and
values are dropped after the pass.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from ddtree_core.models.cache import GrowingLayer
from ddtree_core.models.draft_config import DFlashConfig


class Drafter(Protocol):
    """What the decoding loop asks of a drafter during one generation."""

    @property
    def vocabulary(self) -> Int[Tensor, "vocab"] | None:
        """Target token id of each logits column; None where the column is the token id."""
        ...

    def draft(
        self, features: Float[Tensor, "m width"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "depth vocab"]:
        """Logits of the next `depth` positions after the root.

        `features` belong to the m positions committed since the last call and `tokens` are the m tokens that
        follow each of them, so the last one is the root.
        """
        ...


class DraftModel(Protocol):
    """Draft weights that open a `Drafter` per generation."""

    @property
    def depth(self) -> int: ...
    @property
    def layer_ids(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> torch.device: ...
    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> Drafter: ...


class DFlashModel(nn.Module):
    """The weights of a DFlash drafter, under the tensor names of the published checkpoints."""

    def __init__(self, config: DFlashConfig, *, own_head: bool = False, own_embedding: bool = False):
        super().__init__()
        body, hidden = config.body, config.body.hidden_size
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.target_hidden_size, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps=body.rms_norm_eps)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(body, i) for i in range(body.num_hidden_layers))
        self.norm = Qwen3RMSNorm(hidden, eps=body.rms_norm_eps)
        self.rotary_emb: nn.Module = Qwen3RotaryEmbedding(body)
        # None: the target's own frozen tables are used.
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False) if own_head else None
        self.embed_tokens = nn.Embedding(body.vocab_size, hidden) if own_embedding else None
        self.vocabulary: Tensor | None = None

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    @property
    def depth(self) -> int:
        """Tokens drafted by one pass."""
        return self.config.block_size - 1

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The target's blocks whose outputs are the features."""
        return self.config.target_layer_ids

    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> "DFlashDrafter":
        """A drafter for one generation on `target` (the prompt reaches it through the features)."""
        return DFlashDrafter(self, target)

    def forward(
        self,
        context: Float[Tensor, "m width"],
        block: Float[Tensor, "slots hidden"],
        cache: list[GrowingLayer],
    ) -> Float[Tensor, "slots hidden"]:
        """Append the m context features to the draft cache and run the block over everything in it."""
        context, x = self.hidden_norm(self.fc(context))[None], block[None]  # (1, m, H), (1, slots, H)
        start = cache[0].get_seq_length()
        keys = start + context.shape[1] + x.shape[1]
        rotary = self.rotary_emb(x, torch.arange(start, keys, device=x.device)[None])
        layer: Any
        for layer, kept, causal, window in zip(
            self.layers, cache, self.config.causal, self.config.windows, strict=True
        ):
            mask = block_mask(keys, x.shape[1], causal, window, x.device)
            x = x + _attend(layer.self_attn, context, layer.input_layernorm(x), rotary, kept, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)[0]


def block_mask(
    keys: int, slots: int, causal: bool, window: int | None, device: torch.device
) -> Tensor | None:
    """Which of `keys` positions, the block's `slots` last, each slot sees: (slots, keys) bool, or None for
    all of them.

    A window W hides keys W or more positions behind the slot and, in a bidirectional layer, W or more ahead.
    """
    if not causal and (window is None or keys <= window):
        return None
    position = torch.arange(keys, device=device)
    ahead = position[None] - position[-slots:, None]  # (slots, keys): key position − slot position
    visible = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    return visible if window is None else visible & (ahead.abs() < window)


def _attend(
    attention: Any,
    context: Tensor,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    kept: GrowingLayer,
    mask: Tensor | None,
) -> Tensor:
    heads = (-1, attention.head_dim)
    rows = torch.cat([context, x], dim=1)  # the context is not normed again: hidden_norm has done it
    q = attention.q_norm(attention.q_proj(x).unflatten(-1, heads)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(rows).unflatten(-1, heads)).transpose(1, 2)
    v = attention.v_proj(rows).unflatten(-1, heads).transpose(1, 2)
    cos, sin = rotary
    slots = x.shape[1]
    q, _ = apply_rotary_pos_emb(q, q, cos[:, -slots:], sin[:, -slots:])
    k, _ = apply_rotary_pos_emb(k, k, cos, sin)
    k, v = kept.update(k, v)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attention.scaling, enable_gqa=True)
    kept.crop(-slots)  # the block's own entries never stay
    return attention.o_proj(out.transpose(1, 2).flatten(2))


class DFlashDrafter:
    """One generation with a DFlash model: its context cache, and the embedding and output head it shares with
    the target.
    """

    def __init__(self, model: DFlashModel, target: PreTrainedModel):
        self.model = model
        self.vocabulary = model.vocabulary
        self._embed: Any = model.embed_tokens or target.get_input_embeddings()
        self._head: Any = model.lm_head or target.get_output_embeddings()
        self._softcap = getattr(target.config.get_text_config(decoder=True), "final_logit_softcapping", None)
        self._cache = [GrowingLayer() for _ in model.layers]

    @torch.inference_mode()
    def draft(
        self, features: Float[Tensor, "m width"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "depth vocab"]:
        """Logits of the next block_size − 1 positions; see `Drafter.draft`."""
        model, weight = self.model, self.model.norm.weight
        block = tokens.new_full((model.config.block_size,), model.config.mask_token_id)
        block[0] = tokens[-1]
        embedded = self._embed(block[None].to(input_device(self._embed, model.device)))[0].to(weight)
        hidden = model(features.to(weight), embedded, self._cache)
        logits = self._head(hidden[None, 1:].to(input_device(self._head, model.device)))[0].to(model.device)
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap


def input_device(module: nn.Module, default: torch.device) -> torch.device:
    """Where a module of the target wants its input; offloaded and packed ones take it from anywhere."""
    device = next((p.device for p in module.parameters()), default)
    return default if device.type == "meta" else device
