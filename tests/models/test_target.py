"""A tree verified in one pass gives every node what its root path gives when the model reads it on its own.

The right values come from the library's own forward pass, without a cache, over history + root path: it knows
nothing of trees, nor of our masks, positions and caches.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import FalconH1Config, Lfm2Config, Llama4TextConfig, OlmoHybridConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from ddtree_core.models import Target, UnsupportedModelError
from ddtree_core.models import target as target_module
from ddtree_core.models.target import check_supported, decoder_layers
from ddtree_core.models.tiny import tiny_target
from ddtree_core.trees import DraftTree
from tests.models.tree_sessions import (
    BLOCKS,
    CONFIGS,
    HYBRIDS,
    SHAPE,
    VOCAB,
    Session,
    build,
    grow,
    read_alone,
    trees,
)

LAYOUTS = [(name, how) for name in CONFIGS for how in ("eager", "sdpa") if (name, how) != ("gpt-oss", "sdpa")]
# Of values of size 1 (logits) and 2 to 4 (features); 1.3e-5 and 4.1e-5 were measured.
TOLERANCE = {"logits": 3e-5, "features": 1e-4}
HYBRID_TOLERANCE = 1e-4  # of the logits of recurrent layers, see test_gated_delta


@pytest.mark.parametrize(("name", "attention"), LAYOUTS)
@pytest.mark.parametrize("prompt_length", [3, 25], ids=["within-window", "beyond-window"])
def test_every_node_equals_its_root_path_read_alone(name, attention, prompt_length):
    worst = Session(build(name, attention), prompt_length).run()
    assert worst["logits"] <= TOLERANCE["logits"], worst
    assert worst["features"] <= TOLERANCE["features"], worst


@pytest.mark.parametrize(("name", "norm"), [("llama", LlamaRMSNorm), ("qwen3-sliding", Qwen3RMSNorm)])
def test_in_float64_only_rounding_is_left(name, norm, monkeypatch):
    def forward(self: Any, x: Tensor) -> Tensor:  # the library's norm rounds to float32 whatever the model is
        return self.weight * x * (x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()

    monkeypatch.setattr(norm, "forward", forward)
    worst = Session(build(name).double()).run()
    assert worst["logits"] <= 2e-13, worst  # measured 2e-14
    assert worst["features"] <= 2e-13, worst  # measured 5e-14


@pytest.mark.parametrize("name", ["qwen3-sliding", "qwen3_5", "qwen3_next"])
def test_a_first_tree_needs_no_history(name):
    session = Session(build(name), prompt_length=0)
    for tree in trees(session.generator):
        session.round(tree)
    assert session.worst["logits"] <= (HYBRID_TOLERANCE if name in HYBRIDS else TOLERANCE["logits"])


@pytest.mark.parametrize("name", ["qwen3-sliding", "qwen3_5"])
@pytest.mark.parametrize("prompt_length", [0, 25])
def test_committing_no_node_forgets_the_tree(name, prompt_length):
    session = Session(build(name), prompt_length)
    if prompt_length:
        session.prefill()
    for tree in trees(session.generator):
        session.target.verify(tree)
        assert session.target.commit([]).shape == (0, len(BLOCKS) * SHAPE["hidden_size"])
        session.round(tree)
    assert session.worst["logits"] <= (HYBRID_TOLERANCE if name in HYBRIDS else TOLERANCE["logits"])


def no_window(tree: DraftTree, history: int, window: int, dtype: torch.dtype) -> Tensor:
    return target_module.full_mask(tree, min(history, window - 1), dtype)


def no_tree(tree: DraftTree, history: int, dtype: torch.dtype) -> Tensor:
    seen = torch.ones(len(tree), history + len(tree)).tril(history).bool()
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]


def no_depths(tree: DraftTree, history: int) -> Tensor:
    return torch.arange(history, history + len(tree))[None]


def boolean(tree: DraftTree, history: int, dtype: torch.dtype) -> Tensor:
    return REAL_FULL_MASK(tree, history, dtype) == 0


REAL_FULL_MASK = target_module.full_mask


@pytest.mark.parametrize(
    ("name", "attention", "part", "wrong"),
    [
        ("mistral", "sdpa", "sliding_mask", no_window),
        ("gemma3", "eager", "sliding_mask", no_window),
        ("llama", "sdpa", "full_mask", no_tree),
        ("llama", "sdpa", "tree_positions", no_depths),
        ("llama", "eager", "full_mask", boolean),
    ],
)
def test_the_comparison_notices_a_missing_part(name, attention, part, wrong, monkeypatch):
    model = build(name, attention)
    check_supported(model)  # before the part is broken, else its probe would refuse the model
    monkeypatch.setattr(target_module, part, wrong)
    assert Session(model).run()["logits"] > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_masks_are_additive_in_the_dtype_of_the_model(name, dtype):
    model, seen = build(name).to(dtype), []

    def spy(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        seen.extend(mask.values() if isinstance(mask, dict) else [] if mask is None else [mask])

    target = Target(model)
    model.register_forward_pre_hook(spy, with_kwargs=True)
    target.prefill(torch.arange(12))
    scores = target.verify(grow([-1, 0, 0, 1], torch.Generator().manual_seed(0)))
    assert {mask.dtype for mask in seen} == {dtype}
    assert {mask.max().item() for mask in seen} == {0.0}
    assert len(seen) == (2 if name == "gemma3" else 1)
    assert bool(scores.logits.isfinite().all())


def test_bfloat16_differs_by_its_rounding_only():
    session = Session(build("qwen3-sliding").bfloat16())
    tree = grow([-1, 0, 0, 1, 1, 2, 3], session.generator)
    session.target.prefill(torch.tensor(session.history))
    got, right = (
        session.target.verify(tree).logits,
        read_alone(session.model, session.history, tree)["logits"],
    )
    # Logits reach 4, where neighbouring bfloat16 values lie 0.03 apart; up to 0.05 was measured.
    assert float((got - right).abs().max()) <= 0.1


def test_history_is_not_copied_on_commit():
    session = Session(build("llama"))
    session.target.prefill(torch.tensor(session.history))
    layers: Any = session.target._cache.layers
    before = [(layer.keys.clone(), layer.values.clone()) for layer in layers]
    session.target.verify(grow([-1, 0, 0, 0, 3], session.generator))
    places = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers]
    session.target.commit([0, 3, 4])
    assert [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in layers] == places
    for layer, (keys, values) in zip(layers, before, strict=True):
        assert layer.keys.shape[2] == 25 + 3
        assert torch.equal(layer.keys[:, :, :25], keys)
        assert torch.equal(layer.values[:, :, :25], values)


def test_the_buffer_moves_only_when_it_doubles():
    target = Target(build("llama"))
    target.prefill(torch.arange(10))
    layer: Any = target._cache.layers[0]
    places = set()
    for token in range(200):
        target.verify(DraftTree.root_only(token % VOCAB))
        target.commit([0])
        places.add(layer.keys.data_ptr())
    assert target.length == 210
    assert len(places) <= 3  # room for 64 rows, then 130, then 262


def test_only_the_blocks_asked_for_are_captured():
    model = build("llama")
    assert Target(model).prefill(torch.arange(5)).features.shape == (5, 0)
    assert Target(model, (2,)).prefill(torch.arange(5)).features.shape == (5, 48)
    assert not any(layer._forward_hooks for layer in decoder_layers(model))


def test_hooks_are_removed_when_a_pass_fails():
    model = build("llama")
    with pytest.raises(IndexError):
        Target(model, BLOCKS).prefill(torch.tensor([VOCAB]))
    assert not any(layer._forward_hooks for layer in decoder_layers(model))


class TestOrderOfCalls:
    @pytest.fixture
    def target(self) -> Target:
        target = Target(build("llama"))
        target.prefill(torch.arange(5))
        return target

    def test_two_trees_at_once(self, target):
        target.verify(DraftTree.root_only(1))
        with pytest.raises(RuntimeError, match=r"^a tree is waiting to be committed; call commit\(path\)"):
            target.verify(DraftTree.root_only(1))

    def test_commit_without_a_tree(self, target):
        with pytest.raises(RuntimeError, match=r"^there is no verified tree to commit; call verify\(tree\)"):
            target.commit([0])

    def test_a_tree_is_committed_once(self, target):
        target.verify(DraftTree.root_only(1))
        target.commit([0])
        with pytest.raises(RuntimeError, match=r"^there is no verified tree to commit"):
            target.commit([0])

    def test_a_second_prompt(self, target):
        with pytest.raises(RuntimeError, match=r"^this target has already read a prompt; make a new Target"):
            target.prefill(torch.arange(5))


CHUNKED: dict[str, Any] = dict(intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=8)
REFUSED = [
    (
        Llama4TextConfig(**SHAPE, **CHUNKED),
        r"^llama4_text has chunked_attention layers \(DynamicSlidingWindow",
    ),
    (
        FalconH1Config(**SHAPE, mamba_n_heads=4, mamba_d_ssm=32),
        r"^falcon_h1 has hybrid layers \(LinearAttentionAndFull",
    ),
    # Its rule is the gated delta rule too, with other projections and rates up to 2.
    (
        OlmoHybridConfig(**SHAPE),
        "^layer 0 is a recurrent layer of class OlmoHybridGatedDeltaNet, through which a",
    ),
    (
        Lfm2Config(**SHAPE, layer_types=["full_attention", "conv"] * 2),
        "^layer 1 is a recurrent layer of class Lfm2ShortConv, through which a draft tree cannot be verified",
    ),
]


@pytest.mark.parametrize(("config", "sentence"), REFUSED, ids=["llama4", "falcon-h1", "olmo-hybrid", "lfm2"])
def test_other_kinds_of_layer_are_refused_by_name(config, sentence):
    with pytest.raises(UnsupportedModelError, match=sentence) as error:
        Target(tiny_target(config))
    assert "\n" not in str(error.value)


def test_attention_without_masks_is_refused():
    model = build("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        UnsupportedModelError, match="'flash_attention_2' takes no tree mask; load the target with"
    ):
        Target(model)
