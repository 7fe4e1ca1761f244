"""The DFlash drafter: one pass over a block of masks drafts every coming position (arXiv 2602.06036).

The draft body is a few Qwen3 blocks. A noise block `[root, MASK, …, MASK]` attends to itself and to the
target's features of the tokens before it. Live decoding drafts one block behind the features in a cache,
which the block's own keys and values leave after the pass; training drafts many blocks of texts at once.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from ddtree_core.models.borrowed import Borrowed
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
        self.tokens: int | None = None  # ids from here on are not drafted; None: there are none

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

    def borrow(self, target: PreTrainedModel) -> Borrowed:
        """Embedding and output head: the drafter's own where it has them, else the target's."""
        own = {"embedding": self.embed_tokens, "head": self.lm_head}
        return Borrowed(target, self.device, tokens=self.tokens if self.vocabulary is None else None, **own)

    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> "DFlashDrafter":
        """A drafter for one generation on `target` (the prompt reaches it through the features)."""
        return DFlashDrafter(self, target)

    def noise(self, roots: Int[Tensor, "*places"], slots: int | None = None) -> Int[Tensor, "*places slots"]:
        """The token ids of blocks `[root, MASK, …, MASK]`, of the drafter's own block size by default."""
        shape = (*roots.shape, slots or self.config.block_size)
        ids = roots.new_full(shape, self.config.mask_token_id)
        ids[..., 0] = roots
        return ids

    def forward(
        self,
        features: Float[Tensor, "texts rows width"],
        block: Float[Tensor, "texts blocks slots hidden"],
        anchors: Int[Tensor, "texts blocks"] | None = None,
        cache: Sequence[GrowingLayer] = (),
    ) -> Float[Tensor, "texts blocks slots hidden"]:
        """Hidden states of embedded noise blocks, the root of each at its anchor's position.

        A block sees the features of positions before its anchor, and itself, never another block. `cache`
        holds what earlier features gave and keeps what these give; without `anchors`, each text has one
        block, which follows all of them.
        """
        context, x, slots = self.hidden_norm(self.fc(features)), block.flatten(1, 2), block.shape[2]
        start = cache[0].get_seq_length() if cache else 0
        rows = torch.arange(start + features.shape[1], device=x.device)  # positions of all features
        root_at = len(rows) if anchors is None else anchors[..., None]
        at = root_at + torch.arange(slots, device=x.device).expand(block.shape[:3])
        rotary = self.rotary_emb(x, torch.cat([rows[start:].expand(len(x), -1), at.flatten(1)], dim=1))
        kinds = list(zip(self.config.causal, self.config.windows, strict=True))
        masks = {kind: block_mask(rows, at, *kind, behind_all=anchors is None) for kind in set(kinds)}
        layer: Any
        for layer, kind, kept in zip(self.layers, kinds, cache or [None] * len(kinds), strict=True):
            x = x + _attend(layer.self_attn, context, layer.input_layernorm(x), rotary, masks[kind], kept)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x).view(block.shape)


def block_mask(
    rows: Int[Tensor, "rows"],
    at: Int[Tensor, "texts blocks slots"],
    causal: bool,
    window: int | None,
    *,
    behind_all: bool = False,
) -> Bool[Tensor, "texts 1 blocks*slots rows+blocks*slots"] | None:
    """Which keys each slot sees: the rows before its block, and its block's slots; None for all of them.

    `rows` and `at` are positions. A causal layer hides what is ahead of the slot, a window W what is W or
    more positions away. `behind_all` says that there is one block, behind all rows.
    """
    texts, blocks, slots = at.shape
    if behind_all and not causal and (window is None or len(rows) + slots <= window):
        return None
    slot = at.flatten(1)  # (texts, blocks·slots)
    before = rows < at[..., :1].expand_as(at).flatten(1)[..., None]  # (texts, blocks·slots, rows)
    number = torch.arange(blocks, device=at.device).repeat_interleave(slots)
    own = (number[:, None] == number).expand(texts, -1, -1)
    seen = torch.cat([before, own], dim=-1)
    ahead = torch.cat([rows.expand(texts, -1), slot], dim=1)[:, None] - slot[..., None]
    if causal:
        seen &= ahead <= 0
    if window is not None:
        seen &= ahead.abs() < window
    return seen[:, None]


def _attend(
    attention: Any,
    context: Tensor,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    mask: Tensor | None,
    kept: GrowingLayer | None,
) -> Tensor:
    heads, slots = (-1, attention.head_dim), x.shape[1]
    rows = torch.cat([context, x], dim=1)  # the context is not normed again: hidden_norm has done it
    q = attention.q_norm(attention.q_proj(x).unflatten(-1, heads)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(rows).unflatten(-1, heads)).transpose(1, 2)
    v = attention.v_proj(rows).unflatten(-1, heads).transpose(1, 2)
    cos, sin = (part[:, None] for part in rotary)
    q = q * cos[:, :, -slots:] + rotate_half(q) * sin[:, :, -slots:]
    k = k * cos + rotate_half(k) * sin
    if kept is not None:
        k, v = kept.update(k, v)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attention.scaling, enable_gqa=True)
    if kept is not None:
        kept.crop(-slots)  # the blocks' own entries never stay
    return attention.o_proj(out.transpose(1, 2).flatten(2))


class DFlashDrafter:
    """One generation with a DFlash model: the cache of its context, and what it borrows from the target."""

    def __init__(self, model: DFlashModel, target: PreTrainedModel):
        self.model = model
        self.vocabulary = model.vocabulary
        self._borrowed = model.borrow(target)
        self._cache = [GrowingLayer() for _ in model.layers]

    @torch.inference_mode()
    def draft(
        self, features: Float[Tensor, "m width"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "depth vocab"]:
        """Logits of the next block_size − 1 positions; see `Drafter.draft`."""
        weight = self.model.norm.weight
        block = self._borrowed.embed(self.model.noise(tokens[-1:])).to(weight)  # (1, slots, hidden)
        hidden = self.model(features.to(weight)[None], block[None], cache=self._cache)
        return self._borrowed.logits(hidden[0, :, 1:])[0]
