"""The target: prefill a prompt, verify a draft tree in one forward pass, commit the accepted path.

What differs between architectures stays in here (masks, positions, caches, devices); the decoding loop never
asks what the target is.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ddtree_core.models.attention import (
    full_mask,
    multimodal_positions,
    sliding_mask,
    tree_positions,
)
from ddtree_core.models.cache import (
    UnsupportedModelError,
    keep_path,
    layer_kinds,
    new_cache,
    open_tree,
    sliding_window,
)
from ddtree_core.models.capture import captured
from ddtree_core.models.gated_delta_layers import recurrent_layers, tree_layers
from ddtree_core.models.probe import tolerance, tree_distance
from ddtree_core.trees import DraftTree


@dataclass(frozen=True)
class Scores:
    """What one pass of the target gives for each position it read."""

    logits: Float[Tensor, "N vocab"]  # of a prompt only the last token's, N = 1
    features: Float[Tensor, "rows width"]  # outputs of the captured blocks; width 0 where none are captured


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder blocks of a causal language model, in order."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModelError(
            f"{type(model).__name__} shows no list of decoder layers; expected a decoder with `.layers`"
        )
    return layers


_probed: WeakSet[PreTrainedModel] = WeakSet()  # models that verified a tree exactly


def check_supported(model: PreTrainedModel) -> None:
    """Raise `UnsupportedModelError`, in one sentence, unless draft trees can be verified on this model.

    Its caches, recurrent layers and attention are looked at; then, once for each model, it verifies a tree
    and one of its paths (see `probe`), which finds what ignores positions or masks, whatever its class.
    """
    cache = new_cache(model.config)
    sliding_window(cache)
    recurrent_layers(decoder_layers(model), cache)
    implementation = model.config.get_text_config(decoder=True)._attn_implementation
    if implementation not in ("sdpa", "eager"):
        raise UnsupportedModelError(
            f"attention implementation {implementation!r} takes no tree mask; load the target with "
            f"attn_implementation='sdpa' or 'eager'"
        )
    if model not in _probed:
        _probed.add(model)  # the probe opens a target, too
        try:
            _check_exact(model)
        except BaseException:
            _probed.discard(model)
            raise


def _check_exact(model: PreTrainedModel) -> None:
    name = type(model).__name__
    try:
        distance = tree_distance(Target(model), model.config.get_text_config(decoder=True).vocab_size)
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} cannot read a small draft tree ({type(error).__name__}: {error}), so none can be "
            f"verified on it; use another target"
        ) from error
    if not isfinite(distance):
        raise UnsupportedModelError(
            f"{name} gives logits that are NaN, infinite or all alike; its weights are damaged or overflow "
            f"in {model.dtype}: fetch them again, or load it in float32"
        )
    if distance > (most := tolerance(model.dtype)):
        raise UnsupportedModelError(
            f"{name} ignores the positions or the mask of a draft tree: a path in a tree and the path alone "
            f"differ by {distance:.2g} of the logits' spread, expected at most {most:g}; use another target"
        )


class Target:
    """One generation on a target model: its cache, and the tree being verified.

    `layer_ids` are decoder blocks (0-based) whose outputs are captured as features, in that order;
    `feature_device` is where features are brought (default: where the last captured block lives).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layer_ids: Sequence[int] = (),
        feature_device: torch.device | None = None,
    ):
        check_supported(model)
        self.model = model
        self.layer_ids = tuple(layer_ids)
        self.length = 0  # committed tokens in the cache
        self._feature_device = feature_device
        self._cache: Cache = new_cache(model.config)
        self._kinds, self._window = layer_kinds(self._cache), sliding_window(self._cache)
        self._layers = decoder_layers(model)
        self._recurrent = recurrent_layers(self._layers, self._cache)
        self._pending: Scores | None = None

    @torch.inference_mode()
    def prefill(self, ids: Int[Tensor, "n"]) -> Scores:
        """Read the prompt (n token ids): logits (1, vocab) after its last token, features (n, width) of every
        token.
        """
        if self.length:
            raise RuntimeError("this target has already read a prompt; make a new Target for another one")
        if self._rope_delta is not None:
            base: Any = self.model.base_model
            base.rope_deltas = None  # of an earlier prompt with images
        scores = self._forward(ids, logits_to_keep=1)
        self.length = len(ids)
        return scores

    @torch.inference_mode()
    def verify(self, tree: DraftTree) -> Scores:
        """Read all N nodes in one pass: logits (N, vocab), each those of history + the node's root path, and
        features (N, width).

        Must be followed by `commit`.
        """
        if self._pending is not None:
            raise RuntimeError(
                "a tree is waiting to be committed; call commit(path) before verifying another one"
            )
        open_tree(self._cache)
        tree = tree.to(self.model.device)
        with self._tree_layers(tree):
            self._pending = self._forward(
                tree.token_ids, position_ids=self._positions(tree), attention_mask=self._masks(tree)
            )
        return self._pending

    @torch.inference_mode()
    def commit(self, path: list[int]) -> Float[Tensor, "m width"]:
        """Keep the nodes on `path` (m nodes of the verified tree, root first; [] for none) in the caches and
        return their features.
        """
        if self._pending is None:
            raise RuntimeError("there is no verified tree to commit; call verify(tree) first")
        keep_path(self._cache, self.length, path)
        features = self._pending.features
        if path != list(range(len(features))):
            features = features[torch.tensor(path, dtype=torch.long, device=features.device)]
        self.length += len(path)
        self._pending = None
        return features

    def _tree_layers(self, tree: DraftTree) -> AbstractContextManager[None]:
        """While this is open, recurrent layers read the tree; attention layers see masks and positions."""
        return tree_layers(self._recurrent, tree)

    def _positions(self, tree: DraftTree) -> Tensor:
        positions, delta = tree_positions(tree, self.length), self._rope_delta
        return positions if delta is None else multimodal_positions(positions, delta)

    @property
    def _rope_delta(self) -> Tensor | None:
        """How far images in the prompt have moved the rotary positions behind them; kept on the model."""
        return getattr(self.model.base_model, "rope_deltas", None)

    def _masks(self, tree: DraftTree) -> Tensor | dict[str, Tensor]:
        masks = {}
        if "full_attention" in self._kinds:
            masks["full_attention"] = full_mask(tree, self.length, self.model.dtype)
        if self._window is not None:
            masks["sliding_attention"] = sliding_mask(tree, self.length, self._window, self.model.dtype)
        # Models with one kind of layer take that mask as it is; models with both take one by layer type.
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _forward(self, ids: Tensor, **kwargs: object) -> Scores:
        with captured([self._layers[k] for k in self.layer_ids]) as outputs:
            out = self.model(
                input_ids=ids.to(self.model.device)[None], cache=self._cache, use_cache=True, **kwargs
            )
        return Scores(out.logits[0], self._features(outputs, len(ids)))

    def _features(self, outputs: list[Tensor], n: int) -> Tensor:
        if not outputs:
            return torch.empty(n, 0)
        device = self._feature_device or outputs[-1].device
        return torch.cat([output[0].to(device) for output in outputs], dim=-1)
