"""Time a Gated-DeltaNet layer that verifies a draft tree against the library's own on a plain chain.

    python benchmarks/gated_delta.py --nodes 16 32 64 --heads 16 --head-dim 128

Prints medians in milliseconds: of the whole layer (projections, convolution, rule, norm, output), of the rule
alone, and of the commit of a path of 8 nodes; then the memory that a verified tree holds on to until it is
committed, and what a state per node would take. Trees are random: each node hangs on any earlier one. Repeats
are interleaved and take turns at going first. Times of one thread are those of its CPU, so that other work on
the machine disturbs them little; with more they are wall-clock.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, torch_chunk_gated_delta_rule
from transformers.utils import logging

from ddtree_core.models.cache import new_cache
from ddtree_core.models.gated_delta import tree_delta_rule
from ddtree_core.models.gated_delta_layers import tree_layers
from ddtree_core.trees import DraftTree

MIB = 2**20


def random_tree(nodes: int, generator: torch.Generator) -> DraftTree:
    parents = [-1, *(int(torch.randint(i, (1,), generator=generator)) for i in range(1, nodes))]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return DraftTree(torch.arange(nodes), torch.tensor(parents), torch.tensor(depths), torch.zeros(nodes))


def whole_layers(
    layer: nn.Module, config: Any, tree: DraftTree, x: Tensor, history: Tensor
) -> dict[str, Callable]:
    """The layer on the nodes as a chain, on the tree, and the commit of a path, each behind one prompt."""
    chain, ours = (new_cache(config) for _ in range(2))
    for cache in (chain, ours):
        layer(history, cache=cache)
    states: Any = ours.layers[0]

    def verify() -> None:
        with tree_layers([layer], tree):
            layer(x, cache=ours)

    def commit() -> int:
        held = states.stash.nbytes
        states.keep_path(list(range(0, len(tree), len(tree) // 8)))
        return held

    return {"chain": lambda: layer(x, cache=chain), "tree": verify, "commit": commit}


def rules(heads: int, dim: int, tree: DraftTree, generator: torch.Generator) -> dict[str, Callable]:
    """The library's chunked rule on a chain and ours on the tree, on the same numbers."""
    q, k, v = (torch.randn(1, heads, len(tree), dim, generator=generator) for _ in range(3))
    q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
    g = -torch.rand(1, heads, len(tree), generator=generator)
    state, beta = torch.randn(1, heads, dim, dim, generator=generator), g.exp()
    of_library = [t.transpose(1, 2) for t in (q, k, v, g, beta)]
    return {
        "chunk rule": lambda: torch_chunk_gated_delta_rule(*of_library, initial_state=state),
        "tree rule": lambda: tree_delta_rule(state, q, k, v, g, beta, tree.ancestor_mask),
    }


def timed(call: Callable) -> tuple[float, int | None]:
    """Milliseconds of one call and its result."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    result = call()
    return 1e3 * (clock() - start), result


def measure(layer: Any, config: Any, nodes: int, repeats: int) -> tuple[dict[str, float], int]:
    """Medians by name, and bytes held between verify and commit; the first repeats warm up."""
    generator = torch.Generator().manual_seed(nodes)
    history = torch.randn(1, 100, config.hidden_size, generator=generator)
    x = torch.randn(1, nodes, config.hidden_size, generator=generator)
    tree, held = random_tree(nodes, generator), 0
    layers = whole_layers(layer, config, tree, x, history)
    alone = rules(layer.num_v_heads, layer.head_k_dim, tree, generator)
    times: dict[str, list[float]] = {name: [] for name in (*layers, *alone)}
    for repeat in range(repeats + 2):
        for name in sorted(("chain", "tree"), reverse=repeat % 2 == 0):
            times[name].append(timed(layers[name])[0])
        seconds, held = timed(layers["commit"])
        times["commit"].append(seconds)
        for name in sorted(alone, reverse=repeat % 2 == 0):
            times[name].append(timed(alone[name])[0])
    return {name: median(values[2:]) for name, values in times.items()}, held or 0


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[16, 32, 64], help="nodes of the tree, root included"
    )
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128, help="of keys and values")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    config: Any = Qwen3_5TextConfig(
        hidden_size=args.hidden, num_hidden_layers=1, layer_types=["linear_attention"],
        linear_num_key_heads=args.heads, linear_num_value_heads=args.heads,
        linear_key_head_dim=args.head_dim, linear_value_head_dim=args.head_dim,
    )  # fmt: skip
    layer = Qwen3_5GatedDeltaNet(config, 0).eval()
    print(f"{args.heads} heads, dk = dv = {args.head_dim}, hidden size {args.hidden}, float32; "
          f"ms, {args.repeats} repeats, {args.threads} thread(s)")  # fmt: skip
    print(f"{'nodes':>5} | {'layer: chain':>12} {'tree':>7} {'ratio':>6} | {'rule: chunk':>11} {'tree':>7} "
          f"{'ratio':>6} | {'commit':>6} | {'held, MiB':>9} {'state per node':>14}")  # fmt: skip
    for nodes in args.nodes:
        t, held = measure(layer, config, nodes, args.repeats)
        states = nodes * args.heads * args.head_dim**2 * 4
        print(f"{nodes:5d} | {t['chain']:12.2f} {t['tree']:7.2f} {t['tree'] / t['chain']:5.2f}x | "
              f"{t['chunk rule']:11.2f} {t['tree rule']:7.2f} {t['tree rule'] / t['chunk rule']:5.2f}x | "
              f"{t['commit']:6.2f} | {held / MIB:9.2f} {states / MIB:14.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
