"""Tiny random models of every layout, random trees, and rounds of verify and commit held against the library.

The right values come from the library's own forward pass over history + root path, which knows nothing of
trees, nor of our masks, positions, hooks and caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3NextConfig,
)

from ddtree_core.models import Target
from ddtree_core.models.target import Scores, decoder_layers
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
# With weights of 0.2, recurrent layers amplify rounding until the library's own readings differ by 5e-4.
HYBRID: dict[str, Any] = SHAPE | dict(
    initializer_range=0.08,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
)
EXPERTS: dict[str, Any] = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16
)
HYBRIDS: dict[str, PreTrainedConfig] = {
    "qwen3_5": Qwen3_5TextConfig(**HYBRID),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(**HYBRID, **EXPERTS),
    "qwen3_next": Qwen3NextConfig(**HYBRID, **EXPERTS),
    "qwen3_next-dense": Qwen3NextConfig(**HYBRID, num_experts=0),
}


def build(name: str, attention: str = "sdpa") -> PreTrainedModel:
    """A tiny random model of this layout; the seed fixes its weights."""
    model = tiny_target((CONFIGS | HYBRIDS)[name])
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


@torch.inference_mode()
def read_step_by_step(
    model: PreTrainedModel, history: list[int], tree: DraftTree, prompt_length: int | None = None
) -> dict[str, Tensor]:
    """Logits (N, vocab) with every root path read behind the history one token at a time, as plain decoding
    does; `prompt_length` tokens of the history (default: all) are read at once.

    The N paths are rows of one batch; a row whose path has ended goes on with padding that nobody looks at.
    """
    prompt, before = history[:prompt_length], torch.tensor(history)[len(history[:prompt_length]) :]
    paths = [torch.cat([before, tree.token_ids[tree.path(node)]]) for node in range(len(tree))]
    ids = nn.utils.rnn.pad_sequence(paths, batch_first=True)
    cache, steps = DynamicCache(config=model.config), []
    if prompt:
        model(input_ids=torch.tensor([prompt] * len(tree)), cache=cache, use_cache=True)
    for token in ids.split(1, dim=1):
        steps.append(model(input_ids=token, cache=cache, use_cache=True).logits[:, 0])
    return {"logits": torch.stack(steps, dim=1)[torch.arange(len(tree)), len(before) + tree.depths]}


@dataclass
class Session:
    """Rounds of verify and commit on one target, each compared with what `reference` reads."""

    model: PreTrainedModel
    prompt_length: int = 25
    seed: int = 0
    reference: Callable[..., dict[str, Tensor]] = read_alone
    kind: Callable[..., Target] = Target

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.history = torch.randint(VOCAB, (self.prompt_length,), generator=self.generator).tolist()
        self.target = self.kind(self.model, BLOCKS)
        self.worst = {"logits": 0.0, "features": 0.0}  # largest absolute differences so far

    def prefill(self) -> None:
        chain = grow(list(range(-1, self.prompt_length - 1)), self.generator)
        prompt = DraftTree(torch.tensor(self.history), chain.parents, chain.depths, chain.log_probs)
        expected = read_alone(self.model, [], prompt)
        scores = self.target.prefill(prompt.token_ids)
        self.compare(scores, {"logits": expected["logits"][-1:], "features": expected["features"]})

    def round(self, tree: DraftTree) -> None:
        expected = self.reference(self.model, self.history, tree)
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

    def compare(self, scores: Scores, expected: dict[str, Tensor]) -> None:
        for name, right in expected.items():
            got = getattr(scores, name)
            assert got.shape == right.shape
            self.worst[name] = max(self.worst[name], float((got - right).abs().max()))
