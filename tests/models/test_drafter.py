"""The drafter's cached pass equals its definition, written out token by token.

The reference below knows no cache: it computes every round anew from all context features, with masks, rotary
embeddings and softmax by formula, in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, PreTrainedModel, Qwen3Config

from ddtree_core.models import Target
from ddtree_core.models.cache import GrowingLayer
from ddtree_core.models.draft_config import DFlashConfig
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.tiny import tiny_target

VOCAB, MASK, HIDDEN, BLOCK = 50, 49, 24, 6
HEADS, GROUPS, DIM, THETA, EPS = 4, 2, 8, 1000.0, 1e-5  # 4 · 8 ≠ 24: the head dim stands on its own
IDS = (2, 0, 3)  # captured blocks, out of order, the target's last one among them
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Attention:
    """How the draft layers attend: each layer's causality in the block and window."""

    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]


KINDS = {
    "full": Attention((False, False), (None, None)),
    "causal head": Attention((True, True), (None, None)),
    "sliding causal": Attention((True, True), (9, 9)),
    "sliding non-causal": Attention((False, False), (9, 9)),
    "sliding below full": Attention((True, False), (9, None)),
    "window within the block": Attention((False, True), (3, 4)),
}


def build(kind: Attention, seed: int = 0) -> DFlashModel:
    """A random draft model of two layers with this attention."""
    body = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=DIM,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    config = DFlashConfig(body, BLOCK, MASK, IDS, 4, HIDDEN, VOCAB, causal=kind.causal, windows=kind.windows)
    model, generator = DFlashModel(config), torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        # Norm scales around 1; matrices of gain 1.5, so that attention is far from uniform.
        parameter.data = 1 + 0.3 * noise if noise.dim() == 1 else 1.5 * noise / noise.shape[-1] ** 0.5
    return model.requires_grad_(False).eval()


def target_of(seed: int = 0, **options: Any) -> PreTrainedModel:
    """A random target for these drafters: 4 blocks of hidden size 24."""
    shape: dict[str, Any] = dict(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
        max_position_embeddings=128,
    )
    return tiny_target(options.pop("kind", Qwen3Config)(**(shape | options)), seed)


def norm(x: Tensor, scale: Tensor) -> Tensor:
    return x / ((x * x).mean(-1, keepdim=True) + EPS).sqrt() * scale


def rotate(x: Tensor, position: int) -> Tensor:
    """Rotary embedding of one head: pair (i, i + D/2) turned by position · θ^(−2i/D)."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * THETA ** (-2 * i / len(x))
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def sees(query: int, key: int, causal: bool, window: int | None) -> bool:
    """Whether the slot at position `query` sees position `key`: a window hides what lies W or more away."""
    if causal and key > query:
        return False
    return window is None or (query - key < window and key - query < window)


def attend(w: dict[str, Tensor], context: Tensor, x: Tensor, causal: bool, window: int | None) -> Tensor:
    """Every slot attends to the context features, which are not normed again, and to the block's slots."""
    rows, start, out = torch.cat([context, x]), len(context), torch.zeros(len(x), HEADS * DIM).double()
    group = HEADS // GROUPS
    for g in range(GROUPS):
        part = slice(g * DIM, (g + 1) * DIM)
        keys = [
            rotate(norm(w["self_attn.k_proj.weight"][part] @ row, w["self_attn.k_norm.weight"]), p)
            for p, row in enumerate(rows)
        ]
        values = [w["self_attn.v_proj.weight"][part] @ row for row in rows]
        for head in range(g * group, (g + 1) * group):
            mine = slice(head * DIM, (head + 1) * DIM)
            for slot, row in enumerate(x):
                position = start + slot
                query = norm(w["self_attn.q_proj.weight"][mine] @ row, w["self_attn.q_norm.weight"])
                query = rotate(query, position)
                seen = [p for p in range(len(rows)) if sees(position, p, causal, window)]
                scores = torch.stack([query @ keys[p] / math.sqrt(DIM) for p in seen])
                shares = scores.exp() / scores.exp().sum()
                out[slot, mine] = sum(
                    (s * values[p] for s, p in zip(shares, seen, strict=True)), out[0, mine] * 0
                )
    return out @ w["self_attn.o_proj.weight"].T


def reference(model: DFlashModel, features: Tensor, block: Tensor) -> Tensor:
    """The block's normed hidden states after all context features, by definition, in float64."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    context = norm(features.double() @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    x = block.double()
    for i, (causal, window) in enumerate(zip(model.config.causal, model.config.windows, strict=True)):
        at = f"layers.{i}."
        w = {name.removeprefix(at): value for name, value in weights.items() if name.startswith(at)}
        x = x + attend(w, context, norm(x, w["input_layernorm.weight"]), causal, window)
        h = norm(x, w["post_attention_layernorm.weight"])
        gate, up = h @ w["mlp.gate_proj.weight"].T, h @ w["mlp.up_proj.weight"].T
        x = x + (gate / (1 + (-gate).exp()) * up) @ w["mlp.down_proj.weight"].T
    return norm(x, weights["norm.weight"])


def random_features(m: int, seed: int = 1) -> Tensor:
    return torch.randn(m, len(IDS) * HIDDEN, generator=torch.Generator().manual_seed(seed))


def embedded(target: PreTrainedModel, root: int) -> Tensor:
    """The noise block: the root, then masks, by the target's embedding."""
    table: Any = target.get_input_embeddings()
    return table(torch.tensor([root] + [MASK] * (BLOCK - 1))).detach()


@pytest.mark.parametrize("context", [1, 3, 4, 7, 20])  # 3 and the block just fill the window of 9; 4 do not
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_equals_the_definition(kind: str, context: int) -> None:
    model, features = build(KINDS[kind]), random_features(context)
    block = torch.randn(BLOCK, HIDDEN, generator=torch.Generator().manual_seed(2))
    found = model(features[None], block[None, None], cache=[GrowingLayer() for _ in model.layers])[0, 0]
    torch.testing.assert_close(found.double(), reference(model, features, block), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_growing_contexts_equal_one_pass_over_all_of_it(kind: str) -> None:
    model, target = build(KINDS[kind]), target_of()
    head: Any = target.get_output_embeddings()
    drafter, all_features = model.open(target, []), random_features(23)
    done = 0
    for committed, root in ((7, 3), (1, 11), (3, 0), (2, MASK), (6, 20), (4, 8)):
        features = all_features[done : done + committed]
        tokens = torch.tensor([5] * (committed - 1) + [root])
        logits = drafter.draft(features, tokens)
        done += committed
        hidden = reference(model, all_features[:done], embedded(target, root))
        expected = hidden[1:] @ head.weight.double().T  # slot 0 is the root's own
        assert logits.shape == (BLOCK - 1, VOCAB)
        torch.testing.assert_close(logits.double(), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_keeps_context_features_only(kind: str) -> None:
    model = build(KINDS[kind])
    cache = [GrowingLayer() for _ in model.layers]
    done = 0
    for committed in (5, 1, 70, 4):  # past the first buffer of 64 rows
        features = random_features(committed, seed=committed)
        kept = [layer.keys[:, :, :done].clone() for layer in cache if layer.keys is not None]
        model(features[None], torch.ones(1, 1, BLOCK, HIDDEN), cache=cache)
        done += committed
        assert [layer.get_seq_length() for layer in cache] == [done, done]
        for before, layer in zip(kept, cache, strict=False):
            assert layer.keys is not None
            assert torch.equal(before, layer.keys[:, :, : before.shape[2]])


def test_the_noise_block_is_the_root_and_masks() -> None:
    model, target = build(KINDS["full"]), target_of()
    seen: list[list[int]] = []
    table: Any = target.get_input_embeddings()
    drafter = model.open(target, [4, 5, 6])
    table.register_forward_hook(lambda module, args, output: seen.append(args[0].flatten().tolist()))
    drafter.draft(random_features(3), torch.tensor([5, 6, 17]))
    drafter.draft(random_features(1), torch.tensor([MASK]))  # a committed mask token is a root like any other
    assert seen == [[17] + [MASK] * 5, [MASK] * 6]


def test_the_targets_softcap_and_embedding_scale_are_applied() -> None:
    target = target_of(
        kind=Gemma2Config, final_logit_softcapping=3.0, query_pre_attn_scalar=8, tie_word_embeddings=True
    )
    head: Any = target.get_output_embeddings()
    model, features = build(KINDS["full"]), random_features(6)
    block = embedded(target, 7)
    plain = head.weight[torch.tensor([7])] * HIDDEN**0.5  # Gemma scales by the root of the width
    torch.testing.assert_close(block[:1], plain, atol=1e-3, rtol=1e-3)
    logits = model.open(target, []).draft(features, torch.arange(2, 8))
    uncapped = reference(model, features, block)[1:] @ head.weight.double().T
    assert uncapped.abs().max() > 3.0
    torch.testing.assert_close(logits.double(), 3.0 * torch.tanh(uncapped / 3.0), atol=TOLERANCE, rtol=0)


def outputs_of(model: PreTrainedModel, layers: Sequence[int], ids: Tensor) -> tuple[list[Tensor], Any]:
    """The outputs of these blocks, taken by hooks, and the library's own hidden states."""
    taken: dict[int, Tensor] = {}
    for k in layers:
        block: Any = model.get_decoder().layers[k]  # pyright: ignore[reportCallIssue, reportIndexIssue, reportOptionalSubscript, reportAttributeAccessIssue]
        block.register_forward_hook(lambda module, args, out, k=k: taken.update({k: out}))
    run: Any = model
    states = run(ids[None], output_hidden_states=True).hidden_states
    return [taken[k][0] for k in layers], states


def test_the_last_blocks_feature_is_its_own_output() -> None:
    ids = torch.arange(1, 15)
    features = Target(target_of(), IDS).prefill(ids).features
    model = target_of()  # the same weights
    blocks, states = outputs_of(model, IDS, ids)
    torch.testing.assert_close(features, torch.cat(blocks, dim=-1))
    torch.testing.assert_close(features[:, :HIDDEN], states[2 + 1][0])
    last = features[:, 2 * HIDDEN :]
    final_norm: Any = model.get_decoder().norm  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    assert (last - states[-1][0]).abs().max() > 0.1  # the library's last entry is already past the final norm
    torch.testing.assert_close(final_norm(last), states[-1][0])


def test_a_draft_from_captured_features_equals_the_definition() -> None:
    target, model = target_of(), build(KINDS["sliding below full"])
    head: Any = target.get_output_embeddings()
    ids = torch.arange(1, 15)
    features = Target(target, model.layer_ids, model.device).prefill(ids).features
    logits = model.open(target, ids.tolist()).draft(features, torch.cat([ids[1:], torch.tensor([30])]))
    hidden = reference(model, features, embedded(target, 30))
    torch.testing.assert_close(logits.double(), hidden[1:] @ head.weight.double().T, atol=TOLERANCE, rtol=0)
