"""Caches of a target: what a verify pass leaves, and how a commit keeps the accepted path.

In attention layers a verify pass appends one row per tree node behind the history; a commit moves the rows of
the accepted path to the front and forgets the others. Positions are already rotated into the keys by depth,
so rows can be moved without being recomputed. Recurrent layers keep their state until a path is committed,
which then moves it along that path.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

from ddtree_core.models.gated_delta import TreeStash, path_state


class UnsupportedModelError(ValueError):
    """A model on which this package cannot verify trees; the message names the layer."""


class GrowingLayer(DynamicLayer):
    """A full-attention cache layer over a buffer that doubles when full.

    The library's layer concatenates history and new rows at every update, a copy of the whole history per
    round. Here `update` writes the new rows in place and `keys`, `values` are views of the buffer, so the
    cost of a round does not depend on the history.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        self._buffers = [states[:, :, :0] for states in (key_states, value_states)]
        self.keys, self.values = self._buffers

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        have, new = self.keys.shape[2], key_states.shape[2]
        if have + new > self._buffers[0].shape[2]:
            self._buffers = [_grown(kept, have + new) for kept in (self.keys, self.values)]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, have : have + new] = states
        self.keys, self.values = (buffer[:, :, : have + new] for buffer in self._buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Any) -> None:
        super().reorder_cache(beam_idx)
        assert self.keys is not None
        assert self.values is not None
        self._buffers = [self.keys, self.values]  # full, so the next update makes room again


def _grown(kept: Tensor, rows: int) -> Tensor:
    batch, heads, have, dim = kept.shape
    buffer = kept.new_empty(batch, heads, max(64, 2 * rows), dim)
    buffer[:, :, :have] = kept
    return buffer


class RecurrentLayer(LinearAttentionLayer):
    """The recurrent state and the last convolution inputs of a layer, and what a verified tree may add.

    A verify pass reads both and writes neither: it leaves a `stash`.
    """

    stash: TreeStash | None = None

    def keep_path(self, path: list[int]) -> None:
        """Move the states along the nodes on `path` and drop the stash; RuntimeError without one."""
        if self.stash is None:
            raise RuntimeError(
                "a recurrent layer read the tree as a sequence and holds no path of it; verify trees with "
                "the layers of `tree_layers`"
            )
        if path:
            kept = self.stash[torch.tensor(path, device=self.stash.rows.device)]
            state: Any = self.recurrent_states[0]
            # Both write in place, the second keeping as many rows as the convolution reads.
            self.update_recurrent_state(path_state(state, kept.keys, kept.updates, kept.log_decays))
            self.update_conv_state(kept.rows.transpose(1, 2))
        self.stash = None


def new_cache(config: PreTrainedConfig) -> Cache:
    """An empty cache for a model of this config, with only layers that a tree can be verified on.

    Raises `UnsupportedModelError` for a model with any other kind of layer (chunked, shared, compressed …). A
    recurrent layer may still be of a class that cannot read a tree: see `recurrent_layers`.
    """
    cache = DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[index] = GrowingLayer()
        elif type(layer) is LinearAttentionLayer:
            cache.layers[index] = RecurrentLayer()
        elif type(layer) is not DynamicSlidingWindowLayer or "chunked_attention" in _layer_types(config):
            kind = (_layer_types(config) or [type(layer).__name__] * len(cache.layers))[index]
            raise UnsupportedModelError(
                f"{config.model_type} has {kind} layers ({type(layer).__name__} at layer {index}), on which "
                f"a draft tree cannot be verified; use a model whose layers are full or sliding-window "
                f"attention or Gated DeltaNet"
            )
    return cache


def _layer_types(config: PreTrainedConfig) -> list[str]:
    return list(getattr(config.get_text_config(decoder=True), "layer_types", None) or [])


def sliding_window(cache: Cache) -> int | None:
    """The window W of the cache's sliding layers (a query sees W positions, itself included), or None without
    such layers.
    """
    windows = {layer.sliding_window for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)}
    if len(windows) > 1:
        raise UnsupportedModelError(
            f"sliding layers with several windows {sorted(windows)} are not supported, one window is"
        )
    return windows.pop() if windows else None


def layer_kinds(cache: Cache) -> set[str]:
    """The mask kinds that the cache's layers need: a subset of {"full_attention", "sliding_attention"}."""
    return {
        "sliding_attention" if isinstance(layer, DynamicSlidingWindowLayer) else "full_attention"
        for layer in cache.layers
        if not isinstance(layer, RecurrentLayer)
    }


def open_tree(cache: Cache) -> None:
    """Let every layer keep its whole history plus the nodes that the next forward pass appends."""
    for layer in cache.layers:
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.record_past = True  # otherwise `update` drops rows that the accepted path still needs


def keep_path(cache: Cache, history: int, path: list[int]) -> None:
    """Keep the first `history` positions and the rows of the nodes on `path` (m node indices, root first);
    drop the rest.
    """
    for layer in cache.layers:
        if isinstance(layer, RecurrentLayer):
            layer.keep_path(path)
        elif isinstance(layer, DynamicSlidingWindowLayer):
            _keep_path_sliding(layer, history, path)
        else:
            _keep_path_full(layer, history, path)


def _keep_path_full(layer: Any, history: int, path: list[int]) -> None:
    end = history + len(path)
    for name in ("keys", "values"):
        rows = getattr(layer, name)
        if path != list(range(len(path))):  # otherwise the path already lies in front, in order
            nodes = torch.tensor(path, dtype=torch.long, device=rows.device) + history
            rows[:, :, history:end] = rows.index_select(2, nodes)
        setattr(layer, name, rows[:, :, :end])


def _keep_path_sliding(layer: DynamicSlidingWindowLayer, history: int, path: list[int]) -> None:
    before = min(history, layer.sliding_window - 1)  # history rows in front of the nodes
    kept = (list(range(before)) + [before + node for node in path])[-(layer.sliding_window - 1) :]
    assert layer.keys is not None
    assert layer.values is not None
    rows = torch.tensor(kept, dtype=torch.long, device=layer.keys.device)
    layer.keys, layer.values = layer.keys.index_select(2, rows), layer.values.index_select(2, rows)
    layer.cumulative_length = history + len(path)
    layer.record_past = False
