"""What a pair needs in memory: weights, caches by layer, and what a draft tree adds; from configs alone."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ddtree_core.models.cache import UnsupportedModelError
from ddtree_core.models.draft_config import DFlashConfig, parse_config, read_config
from ddtree_core.models.loading import fetch, locate
from ddtree_core.models.pair_spec import DraftShape, PairSpec, Revisions
from ddtree_core.models.registry import find_pair
from ddtree_core.models.tiny import tiny_config

GIB = 2**30
CONTEXT = 4096  # tokens of prompt and answer, where nothing else is said
BUDGET = 64  # nodes of a draft tree, likewise
# An allowance per device, not a measurement: CUDA context, cuBLAS workspaces, the activations of a prefill.
RESERVE = 1 * GIB
GROWTH = 2  # caches of full attention double when full, so they may hold twice the rows in use


@dataclass(frozen=True)
class Memory:
    """Bytes that a pair takes while it decodes, by part; printed in GiB."""

    weights: int = 0  # of the target
    drafter: int = 0
    caches: int = 0  # of target and drafter, behind the whole context
    tree: int = 0  # what verifying a tree adds
    reserve: int = 0

    @property
    def total(self) -> int:
        return sum(vars(self).values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in vars(self).items())
        return f"{self.total / GIB:.1f} GiB ({parts})"


PARTS = tuple(field.name for field in fields(Memory))


@dataclass(frozen=True)
class LayerMemory:
    """Bytes that one decoder layer keeps during a generation, besides its weights."""

    kind: str  # "full_attention", "sliding_attention" or "linear_attention"
    per_token: int = 0  # a row of keys and values
    window: int | None = None  # a sliding layer keeps window − 1 rows
    state: int = 0  # recurrent state and last convolution inputs, whatever the context
    per_node: int = 0  # of a tree that is being verified

    def cache(self, context: int) -> int:
        """Bytes behind a context of so many tokens."""
        rows = GROWTH * context if self.window is None else min(context, self.window - 1)
        return self.state + rows * self.per_token


@dataclass(frozen=True, eq=False)
class Footprint:
    """What a pair needs, whatever the devices: counts of parameters, and bytes."""

    pair: PairSpec
    dtype: torch.dtype
    model: PreTrainedModel  # the target on the meta device: shapes without weights
    draft: DraftShape | None  # None: a drafter without weights
    layers: tuple[LayerMemory, ...]  # of the target
    vision_parameters: int | None  # in the target's checkpoint, never loaded; None where not known

    @property
    def target_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def target_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    @property
    def drafter_bytes(self) -> int:
        return self.draft.parameters * self.dtype.itemsize if self.draft else 0

    def memory(self, context: int = CONTEXT, budget: int = BUDGET, devices: int = 1) -> Memory:
        """What a generation of `context` tokens with trees of `budget` nodes takes, over all devices."""
        whole = self.memory_of(self.target_bytes, range(len(self.layers)), True, context, budget)
        return replace(whole, reserve=devices * RESERVE)

    def memory_of(self, weights: int, layers: Iterable[int], head: bool, context: int, budget: int) -> Memory:
        """What a device with these layers takes, without its reserve; the drafter lies beside the head."""
        kept = [self.layers[i] for i in layers]
        return Memory(
            weights,
            drafter=self.drafter_bytes * head,
            caches=sum(layer.cache(context) for layer in kept) + self.draft_cache(context) * head,
            tree=budget * (sum(layer.per_node for layer in kept) + self.logits_per_node * head),
        )

    @property
    def draft_per_token(self) -> int:
        """Bytes of the draft cache per committed token."""
        return self.draft.context_values * self.dtype.itemsize if self.draft else 0

    def draft_cache(self, context: int) -> int:
        """Bytes of the draft cache behind a context of so many tokens."""
        return GROWTH * context * self.draft_per_token

    @property
    def per_token(self) -> int:
        """Bytes of the target's keys and values per token, as long as no window is full."""
        return sum(layer.per_token for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state and convolution inputs, whatever the context."""
        return sum(layer.state for layer in self.layers)

    @property
    def logits_per_node(self) -> int:
        """Bytes of a node's logits, in float32 as they are sampled from."""
        return 4 * self.model.config.vocab_size

    def tree_bytes(self, budget: int) -> int:
        """Bytes that a verify pass of so many nodes adds over all devices: stash, rows and logits."""
        return budget * (sum(layer.per_node for layer in self.layers) + self.logits_per_node)


def footprint(
    pair: str | tuple[str, str] | PairSpec,
    dtype: torch.dtype = torch.bfloat16,
    revisions: Revisions = (None, None),
) -> Footprint:
    """What a registry pair, or a target and a drafter as folders or hub ids, needs in `dtype`.

    Registry rows need no network; of others the two config.json are read. Raises `PairError` for an unknown
    pair or a config out of reach, `CheckpointError` for a drafter of another target, `UnsupportedModelError`
    for layers whose caches are not known.
    """
    spec = find_pair(pair)
    config = _target_config(spec, revisions[0])
    with torch.device("meta"):
        model: Any = fetch(spec.target, lambda: AutoModelForCausalLM.from_config(config, dtype=dtype))
    text = model.config
    # A shape that leaves the vision tower out would be filled up by the library.
    known = spec.shape is None or "vision_config" in spec.shape or "text_config" not in spec.shape
    vision, layers = _vision_parameters(config) if known else None, _layers(text, dtype)
    return Footprint(spec, dtype, model, _draft_shape(spec, text, revisions[1]), layers, vision)


def _target_config(spec: PairSpec, revision: str | None) -> PreTrainedConfig:
    if spec.tiny:
        return tiny_config(spec.tiny)
    if spec.shape:
        return AutoConfig.for_model(**copy.deepcopy(spec.shape))
    target = locate(spec.target)
    return fetch(target, lambda: AutoConfig.from_pretrained(target, revision=revision))


def _vision_parameters(config: PreTrainedConfig) -> int:
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return 0
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModel.from_config(vision).parameters())


def _draft_shape(spec: PairSpec, text: PreTrainedConfig, revision: str | None) -> DraftShape | None:
    if spec.tiny or spec.draft_shape:
        return spec.draft_shape
    folder = Path(locate(spec.drafter))
    if not folder.is_dir():
        file = fetch(spec.drafter, lambda: hf_hub_download(spec.drafter, "config.json", revision=revision))
        folder = Path(file).parent
    raw = read_config(folder)
    return shape_of(parse_config(raw, text, where=str(folder)), "speculators_model_type" in raw)


def shape_of(config: DFlashConfig, speculators: bool) -> DraftShape:
    """The shape of a draft config: `speculators` brings both tables, a reduced vocabulary rows of a head."""
    body: Any = config.body
    head = config.draft_vocab_size if speculators or config.draft_vocab_size < body.vocab_size else 0
    return DraftShape(
        body.num_hidden_layers,
        body.hidden_size,
        body.intermediate_size,
        body.num_attention_heads,
        body.num_key_value_heads,
        body.head_dim,
        captured=len(config.target_layer_ids),
        table_rows=head + (body.vocab_size if speculators else 0),
    )


def _layers(text: Any, dtype: torch.dtype) -> tuple[LayerMemory, ...]:
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return tuple(_layer(text, kind, dtype.itemsize) for kind in kinds)


def _layer(text: Any, kind: str, itemsize: int) -> LayerMemory:
    if kind == "linear_attention" and hasattr(text, "linear_num_value_heads"):
        return _linear_layer(text, itemsize)
    if kind not in ("full_attention", "sliding_attention"):
        raise UnsupportedModelError(
            f"{text.model_type} has {kind} layers, whose caches are not known here; expected full or "
            f"sliding-window attention or Gated DeltaNet"
        )
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    row = 2 * text.num_key_value_heads * head_dim * itemsize
    return LayerMemory(kind, row, text.sliding_window if kind == "sliding_attention" else None, 0, row)


def _linear_layer(text: Any, itemsize: int) -> LayerMemory:
    """States and stash are float32, the convolution's inputs in the model's dtype."""
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    channels = 2 * keys + values
    state = 4 * values * text.linear_key_head_dim + itemsize * channels * text.linear_conv_kernel_dim
    node = 4 * (keys + values + text.linear_num_value_heads) + itemsize * channels
    return LayerMemory("linear_attention", state=state, per_node=node)
