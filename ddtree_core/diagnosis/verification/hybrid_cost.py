"""What a verified tree costs a linear layer: memory held until its commit, and time against a plain chain."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from ddtree_core.diagnosis.verification.hybrid_lab import shaped_tree
from ddtree_core.models.cache import new_cache
from ddtree_core.models.footprint import Footprint
from ddtree_core.models.gated_delta_layers import recurrent_layers, tree_layers
from ddtree_core.models.target import decoder_layers
from ddtree_core.trees import DraftTree

WAYS = ("held for the commit", "a state per node")
READINGS = ("library's layer, chain", "tree layer, tree")
HISTORY = 100  # tokens in front of the nodes while timing


@torch.inference_mode()
def stash_bytes(needs: Footprint, nodes: int) -> int:
    """Bytes that one linear layer of a target holds between the verify and the commit of so many nodes.

    The tree layer itself is run, on the meta device, where tensors have sizes and no numbers. Raises
    ValueError for a target without linear layers.
    """
    model: Any = needs.model
    cache: Any = new_cache(model.config)
    layers: list[Any] = recurrent_layers(decoder_layers(model), cache)
    if not layers:
        raise ValueError(
            f"{needs.pair.target} has no linear layers, so nothing is held; choose a hybrid target"
        )
    order = torch.arange(nodes)
    tree = DraftTree(order, order - 1, order, torch.zeros(nodes)).to("meta")
    with tree_layers(layers[:1], tree):
        layers[0](
            torch.empty(1, nodes, model.config.hidden_size, dtype=needs.dtype, device="meta"), cache=cache
        )
    return cache.layers[layers[0].layer_idx].stash.nbytes


def tree_memory(needs: Footprint, nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Bytes of one linear layer by nodes of the tree, for our verify and for one that keeps a state per node.

    `layers` is how many such layers the target has.
    """
    linear = [layer for layer in needs.layers if layer.state]
    return [
        {"nodes": n, "way": way, "bytes": size, "layers": len(linear)}
        for n in nodes
        for way, size in zip(WAYS, (stash_bytes(needs, n), n * linear[0].state), strict=True)
    ]


@torch.inference_mode()
def layer_costs(
    nodes: Sequence[int], *, heads: int = 16, head_dim: int = 128, hidden: int = 2048, repeats: int = 5
) -> list[dict[str, Any]]:
    """Median milliseconds of CPU time of one layer, the library's on a chain and the tree layer on a tree.

    Weights are random, in float32; chain and random tree have N nodes each. Everything takes turns within
    a repeat, and at going first, so that a machine that slows down slows all.
    """
    config: Any = Qwen3_5TextConfig(
        hidden_size=hidden,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=head_dim,
        linear_value_head_dim=head_dim,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = Qwen3_5GatedDeltaNet(config, 0).eval()
    calls = {(n, name): call for n in nodes for name, call in _readings(layer, config, n).items()}
    times: dict[tuple[int, str], list[float]] = {key: [] for key in calls}
    for repeat in range(repeats + 1):
        for key in list(calls)[:: 1 if repeat % 2 else -1]:
            start = time.process_time()
            calls[key]()
            times[key].append(1e3 * (time.process_time() - start))
    return [  # the first repeat warms up
        {"nodes": n, "reading": name, "milliseconds": median(each[1:])} for (n, name), each in times.items()
    ]


def _readings(layer: Any, config: Any, nodes: int) -> dict[str, Callable[[], Any]]:
    """The layer on the nodes as a chain and as a tree, each behind one prompt in a cache of its own."""
    generator = torch.Generator().manual_seed(nodes)
    x = torch.randn(1, HISTORY + nodes, config.hidden_size, generator=generator)
    tree = shaped_tree("random", nodes, nodes, generator)
    chain, ours = (new_cache(config) for _ in range(2))
    for cache in (chain, ours):
        layer(x[:, :HISTORY], cache=cache)

    def verify() -> None:
        with tree_layers([layer], tree):
            layer(x[:, HISTORY:], cache=ours)

    def read() -> None:
        layer(x[:, HISTORY:], cache=chain)

    return dict(zip(READINGS, (read, verify), strict=True))
