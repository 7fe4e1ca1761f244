"""Time `best_first` and its ancestor mask against a plain heap, side by side.

    python benchmarks/tree_build.py --depth 15 --vocab 151936 --budgets 16 64 256 1024

Prints medians in milliseconds for two drafters: an undecided one (random logits) and a confident one (one
token of each position raised, so that trees grow deep). "Scores" is top-k and normalisation; "select + mask"
is what follows, up to a DraftTree, invariants checked, and its ancestor mask; "whole" is both. The heap
version, tests/trees/heap_reference.py, works on Python floats and fills the mask row by row in NumPy. Each
repeat draws new logits and runs both versions on them, taking turns at going first; times are those of the
thread's CPU, so that other work on the machine disturbs them little.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ddtree_core.trees import DraftTree, best_first
from ddtree_core.trees.build import _select, _top_tokens
from tests.trees import heap_reference

Times = dict[str, float]


def timed(call: Callable, *args):
    """Milliseconds of this thread and result of one call."""
    start = time.thread_time()
    result = call(*args)
    return 1e3 * (time.thread_time() - start), result


def run_heap(logits: torch.Tensor, budget: int) -> Times:
    def select(log_probs: list[list[float]], ids: list[list[int]]) -> torch.Tensor:
        *fields, mask = heap_reference.tensors(heap_reference.select(0, log_probs, ids, budget))
        DraftTree(*fields)
        return mask

    scores, ranked = timed(heap_reference.scores, logits, budget)
    rest, _ = timed(select, *ranked)
    return {"scores": scores, "rest": rest, "whole": scores + rest}


def run_ours(logits: torch.Tensor, budget: int) -> Times:
    scores, tokens = timed(_top_tokens, logits[:budget], None, budget)
    rest, _ = timed(lambda: _select(0, tokens, budget).ancestor_mask)
    whole, _ = timed(lambda: best_first(0, logits, budget).ancestor_mask)
    return {"scores": scores, "rest": rest, "whole": whole}


def draw(depth: int, vocab: int, confident: bool, generator: torch.Generator) -> torch.Tensor:
    """Random logits (depth, vocab); a confident drafter's greedy tokens have probabilities around 0.9."""
    logits = 3 * torch.randn(depth, vocab, generator=generator)
    if confident:
        logits[:, 0] = logits.logsumexp(-1) + 2 + torch.randn(depth, generator=generator)
    return logits


def measure(args: argparse.Namespace, budget: int, confident: bool) -> dict[str, Times]:
    """Medians per version and part."""
    versions = {"heap": run_heap, "ours": run_ours}
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in versions}
    generator = torch.Generator().manual_seed(budget)
    for repeat in range(args.repeats + 1):
        logits = draw(args.depth, args.vocab, confident, generator)
        for name in sorted(versions, reverse=repeat % 2 == 0):
            for part, value in versions[name](logits, budget).items():
                times[name][part].append(value)
    # The first repeat warms up.
    return {name: {part: median(v[1:]) for part, v in parts.items()} for name, parts in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depth", type=int, default=15, help="draft positions")
    parser.add_argument("--vocab", type=int, default=151_936, help="columns of the logits")
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 64, 256, 1024], help="draft nodes")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"ms, depth {args.depth}, vocabulary {args.vocab}, {args.repeats} repeats, {args.threads} threads")
    print(f"{'drafter':9} {'budget':>6} | {'scores':^15} | {'select + mask':^23} | {'whole':^22}")
    print(f"{'':16} | {'heap':>7} {'ours':>7} | {'heap':>7} {'ours':>7} {'ratio':>7} | "
          f"{'heap':>7} {'ours':>7} {'ratio':>6}")  # fmt: skip
    for confident in (False, True):
        for budget in args.budgets:
            t = measure(args, budget, confident)
            heap, ours = t["heap"], t["ours"]
            ratio = {part: heap[part] / ours[part] for part in heap}
            print(f"{'confident' if confident else 'undecided':9} {budget:6d} | "
                  f"{heap['scores']:7.2f} {ours['scores']:7.2f} | "
                  f"{heap['rest']:7.3f} {ours['rest']:7.3f} {ratio['rest']:6.2f}x | "
                  f"{heap['whole']:7.2f} {ours['whole']:7.2f} {ratio['whole']:5.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
