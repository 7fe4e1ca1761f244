"""A tree verified in one pass gives every node what its root path gives when the model reads it on its own.

The right values come from the library's own forward pass, without a cache, over history + root path: it knows
nothing of trees, nor of our masks, positions and caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma3TextConfig,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from ddtree_core.models import Target, UnsupportedModelError
from ddtree_core.models import target as target_module
from ddtree_core.models.target import decoder_layers
from ddtree_core.models.tiny import tiny_target
from ddtree_core.trees import DraftTree

VOCAB, WINDOW = 97, 7
BLOCKS = (3, 0, 2)  # captured blocks, out of order, the last one among them
SHAPE: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    initializer_range=0.2,  # the usual 0.02 gives nearly flat attention, which would hide a wrong mask
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
    tie_word_embeddings=False,
)
MIXED: dict[str, Any] = dict(
    sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2, **SHAPE
)
ROPE: dict[str, Any] = dict(rope_type="default", rope_theta=10_000.0)
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE),
    "qwen3-sliding": Qwen3Config(use_sliding_window=True, **MIXED),
    "mistral": MistralConfig(sliding_window=WINDOW, **SHAPE),
    "gpt-oss": GptOssConfig(num_local_experts=4, num_experts_per_tok=2, rope_parameters=ROPE, **MIXED),
    "gemma3": Gemma3TextConfig(**MIXED),
}
LAYOUTS = [(name, how) for name in CONFIGS for how in ("eager", "sdpa") if (name, how) != ("gpt-oss", "sdpa")]
# Of values of size 1 (logits) and 2 to 4 (features); 1.3e-5 and 4.1e-5 were measured.
TOLERANCE = {"logits": 3e-5, "features": 1e-4}


def build(name: str, attention: str = "sdpa") -> PreTrainedModel:
    """A tiny random model of this layout; the seed fixes its weights."""
    model = tiny_target(CONFIGS[name])
    for parameter, value in model.named_parameters():
        if parameter.endswith("sinks"):
            nn.init.uniform_(value, 0.0, 2.0, generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation(attention)
    return model


def grow(parents: list[int], generator: torch.Generator) -> DraftTree:
    """A tree of this shape with random tokens, distinct among siblings."""
    tokens, depths = torch.randint(VOCAB, (len(parents),), generator=generator).tolist(), [0]
    used: dict[int, set[int]] = {parent: set() for parent in parents}
    for node, parent in enumerate(parents[1:], start=1):
        order = torch.randperm(VOCAB, generator=generator).tolist()
        tokens[node] = next(token for token in order if token not in used[parent])
        used[parent].add(tokens[node])
        depths.append(depths[parent] + 1)
    return DraftTree(
        torch.tensor(tokens), torch.tensor(parents), torch.tensor(depths), torch.zeros(len(parents))
    )


def trees(generator: torch.Generator) -> Iterator[DraftTree]:
    """Chains, stars, random trees and a bushy one, of 2 to 64 nodes, then nine single tokens."""

    def random(n: int) -> list[int]:
        return [-1, *(int(torch.randint(i, (1,), generator=generator)) for i in range(1, n))]

    chain, bushy = list(range(-1, 15)), [-1, *((i - 1) // 4 for i in range(1, 64))]
    shapes = [
        chain[:2],
        random(33),
        [-1] + [0] * 63,
        chain,
        random(9),
        bushy,
        random(64),
        chain,
        [-1] + [0] * 4,
    ]
    for parents in [*shapes, *([-1] for _ in range(9))]:
        yield grow(parents, generator)


@torch.inference_mode()
def read_alone(model: PreTrainedModel, history: list[int], tree: DraftTree) -> dict[str, Tensor]:
    """Logits (N, vocab) and features (N, width) with every root path read from the start of the text.

    The N sequences are rows of one batch, padded on the right, where causal attention never looks.
    """
    sequences = [history + tree.token_ids[tree.path(node)].tolist() for node in range(len(tree))]
    ids = torch.zeros(len(tree), max(map(len, sequences)), dtype=torch.long)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    outputs: dict[int, Tensor] = {}

    def keep(k: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, out: Any) -> None:
            outputs[k] = out[0] if isinstance(out, tuple) else out

        return hook

    handles = [decoder_layers(model)[k].register_forward_hook(keep(k)) for k in BLOCKS]
    logits = model(input_ids=ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    last = torch.arange(len(tree)), torch.tensor([len(sequence) - 1 for sequence in sequences])
    return {"logits": logits[last], "features": torch.cat([outputs[k][last] for k in BLOCKS], dim=-1)}


@dataclass
class Session:
    """Rounds of verify and commit on one target, each compared with `read_alone`."""

    model: PreTrainedModel
    prompt_length: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.history = torch.randint(VOCAB, (self.prompt_length,), generator=self.generator).tolist()
        self.target = Target(self.model, BLOCKS)
        self.worst = {"logits": 0.0, "features": 0.0}  # largest absolute differences so far

    def prefill(self) -> None:
        chain = grow(list(range(-1, self.prompt_length - 1)), self.generator)
        prompt = DraftTree(torch.tensor(self.history), chain.parents, chain.depths, chain.log_probs)
        expected = read_alone(self.model, [], prompt)
        scores = self.target.prefill(prompt.token_ids)
        self.compare(scores, {"logits": expected["logits"][-1:], "features": expected["features"]})

    def round(self, tree: DraftTree) -> None:
        expected = read_alone(self.model, self.history, tree)
        scores = self.target.verify(tree)
        self.compare(scores, expected)
        path = tree.path(int(torch.randint(len(tree), (1,), generator=self.generator)))
        assert torch.equal(self.target.commit(path), scores.features[path])
        self.history += tree.token_ids[path].tolist()
        assert self.target.length == len(self.history)

    def run(self) -> dict[str, float]:
        self.prefill()
        for tree in trees(self.generator):
            self.round(tree)
        return self.worst

    def compare(self, scores: target_module.Scores, expected: dict[str, Tensor]) -> None:
        for name, right in expected.items():
            got = getattr(scores, name)
            assert got.shape == right.shape
            self.worst[name] = max(self.worst[name], float((got - right).abs().max()))


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


def test_a_first_tree_needs_no_history():
    session = Session(build("qwen3-sliding"), prompt_length=0)
    for tree in trees(session.generator):
        session.round(tree)
    assert session.worst["logits"] <= TOLERANCE["logits"]


@pytest.mark.parametrize("prompt_length", [0, 25])
def test_committing_no_node_forgets_the_tree(prompt_length):
    session = Session(build("qwen3-sliding"), prompt_length)
    if prompt_length:
        session.prefill()
    for tree in trees(session.generator):
        session.target.verify(tree)
        assert session.target.commit([]).shape == (0, len(BLOCKS) * SHAPE["hidden_size"])
        session.round(tree)
    assert session.worst["logits"] <= TOLERANCE["logits"]


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
    monkeypatch.setattr(target_module, part, wrong)
    assert Session(build(name, attention)).run()["logits"] > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_masks_are_additive_in_the_dtype_of_the_model(name, dtype):
    model, seen = build(name).to(dtype), []

    def spy(_module: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        seen.extend(mask.values() if isinstance(mask, dict) else [] if mask is None else [mask])

    model.register_forward_pre_hook(spy, with_kwargs=True)
    target = Target(model)
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


LINEAR: dict[str, Any] = dict(
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8
)
MOE: dict[str, Any] = dict(
    num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16, shared_expert_intermediate_size=16
)
CHUNKED: dict[str, Any] = dict(intermediate_size_mlp=64, num_local_experts=2, attention_chunk_size=8)
REFUSED = [
    (
        Qwen3NextConfig(**SHAPE, **LINEAR, **MOE),
        r"^qwen3_next has linear_attention layers \(LinearAttentionLayer",
    ),
    (
        Qwen3_5TextConfig(**SHAPE, **LINEAR),
        r"^qwen3_5_text has linear_attention layers \(LinearAttentionLayer",
    ),
    (
        Llama4TextConfig(**SHAPE, **CHUNKED),
        r"^llama4_text has chunked_attention layers \(DynamicSlidingWindow",
    ),
]


@pytest.mark.parametrize(("config", "sentence"), REFUSED, ids=["qwen3-next", "qwen3.5", "llama4"])
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
