"""What a pair needs in memory: weights, caches by layer, and what a draft tree adds; from configs alone."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ddtree_core.models.draft_config import DFlashConfig, parse_config, read_config
from ddtree_core.models.loading import fetch
from ddtree_core.models.pair_spec import DraftShape, PairSpec
from ddtree_core.models.pairs import find_pair
from ddtree_core.models.tiny import tiny_config

GROWTH = 2  # caches of full attention double when full, so they may hold twice the rows in use


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
    def drafter_bytes(self) -> int:
        return self.draft.parameters * self.dtype.itemsize if self.draft else 0

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


def footprint(pair: str | tuple[str, str], dtype: torch.dtype = torch.bfloat16) -> Footprint:
    """What a registry pair, or a target and a drafter as folders or hub ids, needs in `dtype`.

    Registry rows need no network. Raises `PairError` for an unknown pair or a config out of reach, ValueError
    for a target with layers whose caches are not known.
    """
    spec = find_pair(pair)
    config = _target_config(spec)
    with torch.device("meta"):
        model: Any = fetch(spec.target, lambda: AutoModelForCausalLM.from_config(config, dtype=dtype))
    text = model.config
    # A shape that leaves the vision tower out would be filled up by the library.
    known = spec.shape is None or "vision_config" in spec.shape or "text_config" not in spec.shape
    vision, layers = _vision_parameters(config) if known else None, _layers(text, dtype)
    return Footprint(spec, dtype, model, _draft_shape(spec, text), layers, vision)


def _target_config(spec: PairSpec) -> PreTrainedConfig:
    if spec.tiny:
        return tiny_config(spec.tiny)
    if spec.shape:
        return AutoConfig.for_model(**copy.deepcopy(spec.shape))
    return fetch(spec.target, lambda: AutoConfig.from_pretrained(spec.target))


def _vision_parameters(config: PreTrainedConfig) -> int:
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return 0
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModel.from_config(vision).parameters())


def _draft_shape(spec: PairSpec, text: PreTrainedConfig) -> DraftShape | None:
    if spec.tiny or spec.draft_shape:
        return spec.draft_shape
    folder = Path(spec.drafter)
    if not folder.is_dir():
        folder = Path(fetch(spec.drafter, lambda: hf_hub_download(spec.drafter, "config.json"))).parent
    raw = read_config(folder)
    return shape_of(parse_config(raw, text, where=str(folder)), "speculators_model_type" in raw)


def shape_of(config: DFlashConfig, speculators: bool) -> DraftShape:
    """The shape that a draft config tells; the `speculators` layout brings both tables, and a reduced
    vocabulary rows of an output head.
    """
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
        raise ValueError(
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
