"""A drafter that runs as a `Wiring` says, right or wrong: for a generation, with a cache of context rows, and
from scratch at many places of a known text at once.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from ddtree_core.diagnosis.acceptance.wiring import Wiring, wiring_of
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.pair import ModelPair

Rows = tuple[Tensor, Tensor]  # rotated keys and values in one layer, (batch, groups, rows, dim)
ALLOCATED = 128  # rows by which a preallocated context cache grows
CUT = 8  # rows of the prompt that a cut context keeps


def wired(pair: ModelPair) -> "WiredDraft":
    """A pair's drafter, run as it is but through its wiring. Raises `ValueError` as `wiring_of` does."""
    wiring, draft = wiring_of(pair), pair.draft
    if isinstance(draft, WiredDraft):
        return draft
    assert isinstance(draft, DFlashModel)
    return WiredDraft(draft, wiring, pair.model)


class WiredDraft:
    """Draft weights that run as a wiring says: a `DraftModel`."""

    def __init__(self, model: DFlashModel, wiring: Wiring, target: PreTrainedModel):
        decoder: Any = target.get_decoder()
        self.model, self.wiring, self.target, self.final_norm = model, wiring, target, decoder.norm
        self.depth, self.layer_ids, self.device = model.depth, wiring.layer_ids, model.device
        self.earlier: Tensor | None = None  # features of the prompt read last, for a stale context

    def open(self, target: PreTrainedModel, prompt_ids: list[int]) -> "WiredDrafter":
        """A drafter for one generation."""
        return WiredDrafter(self)

    def rewired(self, **changes: Any) -> "WiredDraft":
        """The same weights with some fields of the wiring changed."""
        return WiredDraft(self.model, replace(self.wiring, **changes), self.target)

    def context(self, features: Float[Tensor, "n width"], start: int) -> list[Rows]:
        """Every layer's rows of context features, the first at position `start`."""
        model, wiring = self.model, self.wiring
        outputs = features.unflatten(-1, (-1, model.config.target_hidden_size))  # (n, captured, hidden)
        if wiring.normed:
            outputs = torch.cat([outputs[:, :-1], self.final_norm(outputs[:, -1:])], dim=1)
        if wiring.basis is not None:
            outputs = outputs[..., wiring.basis]
        x = self._round(outputs.flatten(1).to(model.norm.weight))
        x = self._round(model.hidden_norm(self._round(model.fc(x))))[None]  # (1, n, hidden)
        at = torch.arange(len(features), device=x.device)[None] + start + wiring.context_shift
        turns = self._turns(at, x.dtype)
        return [self._rows(layer.self_attn, x, turns) for layer in self._layers]

    def block(
        self,
        context: Sequence[Rows],
        seen: Bool[Tensor, "blocks n"],
        roots: Int[Tensor, "blocks"],
        starts: Int[Tensor, "blocks"],
        *,
        slots: int | None = None,
        added: bool = False,
    ) -> tuple[Float[Tensor, "blocks slots hidden"], list[Rows]]:
        """Hidden states of noise blocks at positions `starts`, and every layer's rows of the blocks.

        Block b sees the context rows where `seen[b]`; they are at positions 0 … n − 1. Only the first `slots`
        slots come out of the last layer. With `added`, the mask is as a preallocated cache with a boolean
        mask makes it.
        """
        wiring = self.wiring
        ids = roots[:, None].repeat(1, self.depth + 1)
        ids[:, 1 if wiring.anchor else 0 :] = wiring.mask_token_id
        x = self._round(wiring.embed(ids).to(self.model.norm.weight))  # (blocks, slots, hidden)
        at = starts[:, None] + torch.arange(x.shape[1], device=x.device)  # (blocks, slots)
        turns = self._turns(at + wiring.block_shift, x.dtype)
        before = torch.arange(seen.shape[1], device=x.device).expand(len(seen), -1)
        ahead = torch.cat([before, at], dim=1)[:, None] - at[..., None]  # (blocks, slots, keys)
        near = F.pad(seen, (0, x.shape[1]), value=True)[:, None].expand_as(ahead)
        own: list[Rows] = []
        for i, (layer, past) in enumerate(zip(self._layers, context, strict=True)):
            visible = near & (ahead <= 0) if wiring.causal[i] else near
            if (window := wiring.windows[i]) is not None:
                visible = visible & (ahead.abs() < window)
            normed = layer.input_layernorm(x)
            own.append(self._rows(layer.self_attn, normed, turns))
            if i == len(context) - 1:
                x, normed, visible = x[:, :slots], normed[:, :slots], visible[:, :slots]
            x = self._round(x + self._attend(layer.self_attn, normed, turns, past, own[-1], visible, added))
            x = self._round(x + self._round(layer.mlp(layer.post_attention_layernorm(x))))
        return self._round(self.model.norm(x)), own

    def at(
        self,
        context: Sequence[Rows],
        ids: Int[Tensor, "tokens"],
        anchors: Int[Tensor, "blocks"],
        depth: int,
    ) -> Float[Tensor, "blocks depth vocab"]:
        """Logits of the first `depth` tokens behind each of a text's tokens `anchors`.

        `context` is that of the whole text; a block sees what lies before its root.
        """
        seen = torch.arange(context[0][0].shape[2], device=ids.device) < anchors[:, None]
        hidden, _ = self.block(context, seen, ids[anchors], anchors, slots=depth + 1)
        return self.wiring.head(hidden[:, 1:])

    @property
    def _layers(self) -> list[Any]:
        return list(self.model.layers)

    def _round(self, x: Tensor) -> Tensor:
        return x.to(self.wiring.dtype).to(x.dtype)

    def _turns(self, positions: Int[Tensor, "batch rows"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every rotary pair, (batch, 1, rows, pairs)."""
        frequencies, scale = self._rotary
        angles = positions[:, None, :, None].float() * frequencies.to(positions.device)
        return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)

    @cached_property
    def _rotary(self) -> tuple[Float[Tensor, "pairs"], float]:
        """Frequency of every rotary pair, and the scale of cosines and sines."""
        body = copy.copy(self.model.config.body)
        body.rope_parameters = dict(self.wiring.rope)
        body.head_dim = int(self.wiring.rotated * body.head_dim)
        rotary: Any = Qwen3RotaryEmbedding(body)
        return rotary.inv_freq, rotary.attention_scaling

    def _rotate(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = turns
        pairs = cos.shape[-1]
        x, still = x[..., : 2 * pairs], x[..., 2 * pairs :]
        neighbours = self.wiring.interleaved
        a, b = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., :pairs], x[..., pairs:])
        a, b = a * cos - b * sin, b * cos + a * sin
        turned = torch.stack([a, b], dim=-1).flatten(-2) if neighbours else torch.cat([a, b], dim=-1)
        return torch.cat([turned, still], dim=-1)

    def _rows(
        self, attention: Any, x: Float[Tensor, "batch rows hidden"], turns: tuple[Tensor, Tensor]
    ) -> Rows:
        heads = (-1, attention.head_dim)
        k = attention.k_norm(self._round(attention.k_proj(x)).unflatten(-1, heads)).transpose(1, 2)
        v = self._round(attention.v_proj(x)).unflatten(-1, heads).transpose(1, 2)
        return self._round(self._rotate(k, turns)), v

    def _attend(
        self,
        attention: Any,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        past: Rows,
        own: Rows,
        visible: Tensor,
        added: bool,
    ) -> Tensor:
        q = attention.q_norm(self._round(attention.q_proj(x)).unflatten(-1, (-1, attention.head_dim)))
        cos, sin = (part[:, :, : x.shape[1]] for part in turns)
        q = self._round(self._rotate(q.transpose(1, 2), (cos, sin)))
        k, v = (torch.cat([p.expand(len(x), -1, -1, -1), o], dim=2) for p, o in zip(past, own, strict=True))
        mask = visible[:, None]
        if added:
            room = -k.shape[2] % ALLOCATED
            k, v = (F.pad(t, (0, 0, 0, room)) for t in (k, v))
            mask = F.pad(mask, (0, room), value=False).to(q)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=attention.scaling, enable_gqa=True
        )
        return self._round(attention.o_proj(self._round(out.transpose(1, 2).flatten(2))))


class WiredDrafter:
    """One generation with a `WiredDraft`: a `Drafter`."""

    def __init__(self, draft: WiredDraft):
        self.vocabulary = draft.model.vocabulary
        self._draft = draft
        self._cache: list[Rows] | None = None

    @torch.inference_mode()
    def draft(
        self, features: Float[Tensor, "m width"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "depth vocab"]:
        """Logits of the next positions after the root; see `models.drafter.Drafter`."""
        draft = self._draft
        if self._cache is None:
            features, self._cache = self._prompt(features), draft.context(features[:0], 0)
        self._cache = _joined(self._cache, draft.context(features, self._cache[0][0].shape[2]))
        n = self._cache[0][0].shape[2]
        roots = tokens[-1:].to(features.device)
        seen = torch.ones(1, n, dtype=torch.bool, device=features.device)
        starts = torch.full_like(roots, n)
        hidden, own = draft.block(self._cache, seen, roots, starts, added=draft.wiring.mask_added)
        if not draft.wiring.cropped:
            self._cache = _joined(self._cache, own)
        return draft.wiring.head(hidden[:, 1:])[0]

    def _prompt(self, features: Tensor) -> Tensor:
        """The rows of the prompt that arrive."""
        earlier, self._draft.earlier = self._draft.earlier, features
        match self._draft.wiring.prompt:
            case "cut":
                return features[-CUT:]
            case "empty":
                return features[:0]
            case "stale" if earlier is not None:
                return torch.cat([earlier, features[len(earlier) :]])[: len(features)]
        return features


def _joined(cache: Sequence[Rows], rows: Sequence[Rows]) -> list[Rows]:
    return [
        (torch.cat([one[0], two[0]], dim=2), torch.cat([one[1], two[1]], dim=2))
        for one, two in zip(cache, rows, strict=True)
    ]
