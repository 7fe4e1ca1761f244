"""Gated-DeltaNet layers of the library that read a draft tree instead of a sequence.

The library's layers know no tree: given one, they run over its nodes in order, and the model is silently
wrong. While `tree_layers` is open, each of them runs its projections, norm and output as always, and between
these the convolution and the delta rule over the tree. Its states are read, never written; a stash for the
commit is left in its cache layer. Prompts are read by the library's own forward.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache as cached
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.integrations.accelerate import force_accelerate_hooks

from ddtree_core.models.cache import RecurrentLayer, UnsupportedModelError
from ddtree_core.models.gated_delta import TreeStash, conv_table, tree_conv, tree_delta_rule
from ddtree_core.trees import DraftTree

# Ancestor mask (N, N) and convolution table (kernel, N) of the tree, on a device.
Placed = Callable[[torch.device, int], tuple[Tensor, Tensor]]


def _separate(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    return layer.in_proj_qkv(x), layer.in_proj_z(x), layer.in_proj_b(x), layer.in_proj_a(x)


def _interleaved(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    parts = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
    return torch.cat([part.flatten(2) for part in parts[:3]], dim=-1), *parts[3:]


# The classes that can read a tree, and how each projects its input to: rows of the convolution (batch, N,
# channels), output gate z, and the inputs b and a of rate and decay (batch, N, heads).
PROJECTIONS: dict[str, Callable[[Any, Tensor], tuple[Tensor, ...]]] = {
    "Qwen3_5GatedDeltaNet": _separate,
    "Qwen3_5MoeGatedDeltaNet": _separate,
    "Qwen3NextGatedDeltaNet": _interleaved,
}


def recurrent_layers(blocks: nn.ModuleList, cache: Cache) -> list[nn.Module]:
    """The modules of a model's decoder blocks that keep a recurrent state in `cache`, in order.

    Raises `UnsupportedModelError`, with the module's class, for one that cannot read a tree.
    """
    return [
        _delta_layer(index, blocks[index])
        for index, layer in enumerate(cache.layers)
        if isinstance(layer, RecurrentLayer)
    ]


def _delta_layer(index: int, block: nn.Module) -> nn.Module:
    for module in block.modules():
        # A module of the same name from elsewhere may compute something else.
        if type(module).__name__ in PROJECTIONS and type(module).__module__.startswith("transformers."):
            return module
    mixers = [child for child in block.children() if hasattr(child, "layer_idx")]
    raise UnsupportedModelError(
        f"layer {index} is a recurrent layer of class {type((mixers or [block])[0]).__name__}, through which "
        f"a draft tree cannot be verified; use a model whose recurrent layers are {', '.join(PROJECTIONS)}"
    )


@contextmanager
def tree_layers(layers: Iterable[nn.Module], tree: DraftTree) -> Iterator[None]:
    """Let these Gated-DeltaNet layers read the nodes of `tree` while the context is open.

    Each then gives every node what its root path would get, and leaves a `TreeStash` in its cache layer.
    """

    @cached
    def placed(device: torch.device, kernel: int) -> tuple[Tensor, Tensor]:
        on_device = tree.to(device)
        return on_device.ancestor_mask, conv_table(on_device.parents, kernel)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_replaced_forward(layer, partial(_tree_forward, layer, placed)))
        yield


@contextmanager
def _replaced_forward(layer: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Set the forward of one module, under the hooks of accelerate where it has some (these move its inputs,
    and weights that are offloaded).
    """
    name = "_old_forward" if "_old_forward" in vars(layer) else "forward"
    before = vars(layer).get(name)
    setattr(layer, name, forward)
    try:
        yield
    finally:
        if before is None:
            delattr(layer, name)
        else:
            setattr(layer, name, before)


@force_accelerate_hooks("conv1d")  # its weight is used without calling the module
def _tree_forward(layer: Any, placed: Placed, hidden_states: Tensor, cache: Cache, **_: Any) -> Tensor:
    """The layer's forward over the nodes of a tree. (batch, N, hidden) → (batch, N, hidden)."""
    rows, z, b, a = PROJECTIONS[type(layer).__name__](layer, hidden_states)
    ancestors, table = placed(rows.device, layer.conv_kernel_size)
    wide = torch.promote_types(rows.dtype, torch.float32)
    state, context = _states(layer, cache, rows, wide)
    mixed = ACT2FN[layer.activation](tree_conv(context, rows, layer.conv1d.weight.squeeze(1), table))
    queries, keys, values = _heads(layer, mixed.to(wide))
    log_decays = -layer.A_log.to(wide).exp() * F.softplus(a.to(wide) + layer.dt_bias)
    log_decays, rates = log_decays.transpose(1, 2).contiguous(), b.sigmoid().to(wide).transpose(1, 2)
    outputs, updates = tree_delta_rule(state, queries, keys, values, log_decays, rates, ancestors)
    cache.layers[layer.layer_idx].stash = TreeStash(keys, updates, log_decays, rows)
    outputs = outputs.transpose(1, 2).to(hidden_states.dtype)  # (batch, N, heads, dv)
    outputs = layer.norm(outputs.reshape(-1, layer.head_v_dim), z.reshape(-1, layer.head_v_dim))
    return layer.out_proj(outputs.reshape(*rows.shape[:2], -1))


def _states(layer: Any, cache: Cache, rows: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """State (batch, heads, dk, dv) and convolution inputs (batch, kernel, channels) in front of the tree."""
    states: Any = cache.layers[layer.layer_idx]
    if not states.is_recurrent_states_initialized[0]:  # nothing was read yet
        shape = len(rows), layer.num_v_heads, layer.head_k_dim, layer.head_v_dim
        states.lazy_initialization(recurrent_states=rows.new_zeros(shape, dtype=wide))
        states.lazy_initialization(conv_states=rows.transpose(1, 2), conv_kernel_size=layer.conv_kernel_size)
    return states.recurrent_states[0].to(wide), states.conv_states[0].transpose(1, 2)


def _heads(layer: Any, mixed: Tensor) -> list[Tensor]:
    """Queries and keys (batch, key heads, N, dk), normalised, the queries scaled too; values (batch, heads,
    N, dv).
    """
    widths = layer.key_dim, layer.key_dim, layer.value_dim
    dims = layer.head_k_dim, layer.head_k_dim, layer.head_v_dim
    queries, keys, values = (
        part.unflatten(-1, (-1, dim)).transpose(1, 2)
        for part, dim in zip(mixed.split(widths, dim=-1), dims, strict=True)
    )
    queries, keys = (t * (t.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for t in (queries, keys))
    return [queries * layer.head_k_dim**-0.5, keys, values]
