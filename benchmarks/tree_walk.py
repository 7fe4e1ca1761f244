"""Time the walk over batches of requests: a loop over `tree_walk` against both forms of `walk_batch`.

    python benchmarks/tree_walk.py --requests 1 32 256 --nodes 64

Prints medians in microseconds per batch, and checks first that all agree. The trees are best-first trees of a
confident drafter (random logits, one token of each position raised), and at each node the target chooses one
of the children with probability 0.8. A server that loops over `tree_walk` has a DraftTree per request, so
these are built beforehand. On a GPU (taken if there is one) times are wall-clock and include the wait for the
result; on a CPU they are those of the thread, so that other work on the machine disturbs them little. Triton
is timed on a GPU only: its interpreter tells nothing.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ddtree_core.trees import DraftTree, best_first, tree_walk, walk_batch


def draw(requests: int, nodes: int, depth: int, seed: int) -> tuple[list[DraftTree], list[torch.Tensor]]:
    """Best-first trees and the target's tokens (nodes,) for each."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    trees, targets = [], []
    for _ in range(requests):
        logits = 3 * torch.randn(depth, 1000, generator=generator)
        logits[:, 0] = logits.logsumexp(-1) + 2 + torch.randn(depth, generator=generator)
        tree = best_first(0, logits, nodes - 1)
        children = [tree.children(node) for node in range(nodes)]
        chosen = [rng.choice(c) if c and rng.random() < 0.8 else 0 for c in children]
        trees.append(tree)
        targets.append(tree.token_ids[chosen])
    return trees, targets


def versions(trees: list[DraftTree], targets: list[torch.Tensor], depth: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name, on the device of the targets."""
    device = targets[0].device
    flat = {
        "token_ids": torch.cat([tree.token_ids for tree in trees]).to(device),
        "parents": torch.cat([tree.parents for tree in trees]).to(device),
        "cu_nodes": torch.tensor([0, *map(len, trees)], device=device).cumsum(0),
        "target_tokens": torch.cat(targets),
    }
    calls: dict[str, Callable[[], Any]] = {
        "loop": lambda: [tree_walk(*pair) for pair in zip(trees, targets, strict=True)],
        "torch": lambda: walk_batch(**flat, max_length=depth + 1, backend="torch"),
    }
    if device.type == "cuda" and find_spec("triton"):
        calls["triton"] = lambda: walk_batch(**flat, max_length=depth + 1, backend="triton")
    return calls


def timed(call: Callable[[], Any], gpu: bool) -> float:
    """Microseconds of one call."""
    clock = time.perf_counter if gpu else time.thread_time
    start = clock()
    call()
    if gpu:
        torch.cuda.synchronize()
    return 1e6 * (clock() - start)


def measure(requests: int, args: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Median time of each version, and the mean acceptance length of the batch."""
    gpu = args.device == "cuda"
    trees, targets = draw(requests, args.nodes, args.depth, seed=requests)
    calls = versions(trees, [target.to(args.device) for target in targets], args.depth)
    walks = calls["loop"]()
    for name in calls.keys() - {"loop"}:
        assert calls[name]().to_list() == walks, f"the {name} form disagrees with tree_walk"
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(args.repeats):
        for name in sorted(calls, reverse=repeat % 2 == 0):
            times[name].append(timed(calls[name], gpu))
    mean = sum(walk.length for walk in walks) / requests
    return {name: median(values) for name, values in times.items()}, mean


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--nodes", type=int, default=64, help="nodes of each tree, root included")
    parser.add_argument("--depth", type=int, default=15, help="draft positions")
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} threads"
    print(f"us per batch on {where}; {args.nodes} nodes per tree, {args.repeats} repeats")
    print(f"{'requests':>8} {'accepted':>8} | {'loop':>9} {'torch':>9} {'triton':>9} | loop / torch")
    for requests in args.requests:
        times, mean = measure(requests, args)
        triton = f"{times['triton']:9.1f}" if "triton" in times else f"{'-':>9}"
        print(f"{requests:8d} {mean:8.2f} | {times['loop']:9.1f} {times['torch']:9.1f} {triton} | "
              f"{times['loop'] / times['torch']:11.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
