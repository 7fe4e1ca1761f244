"""Time the target's forward pass with stock and with oneDNN-packed linears, side by side.

    python benchmarks/packed_linears.py --pair smollm2-135m --cached 200 --tokens 1 4 8 16 32 64

Prints medians in milliseconds. A pass verifies a chain of so many tokens behind the cached ones and commits
none of them. Repeats are interleaved (stock, packed, stock, packed, ...), so that a change of the machine's
load meets both.
"""

import argparse
import time
from statistics import median

import torch

from ddtree_core.models import DEFAULT_PAIR, ModelPair, Target, load_pair
from ddtree_core.trees import DraftTree


def chain(tokens: int, vocabulary: int, generator: torch.Generator) -> DraftTree:
    ids = torch.randint(vocabulary, (tokens,), generator=generator)
    depths = torch.arange(tokens)
    return DraftTree(ids, depths - 1, depths, torch.zeros(tokens))


def prefilled(pair: ModelPair, cached: int) -> Target:
    """A target that has read a prompt of `cached` tokens, the same for both."""
    target = pair.open_target(features=False)
    vocabulary = len(pair.tokenizer)
    target.prefill(torch.randint(vocabulary, (cached,), generator=torch.Generator().manual_seed(0)))
    return target


def timed(target: Target, tree: DraftTree) -> float:
    """Milliseconds of one pass."""
    start = time.perf_counter()
    target.verify(tree)
    milliseconds = 1e3 * (time.perf_counter() - start)
    target.commit([])
    return milliseconds


def measure(targets: list[Target], vocabulary: int, tokens: int, repeats: int) -> list[float]:
    """Median milliseconds of each target on the same chains; the first repeat warms up."""
    generator = torch.Generator().manual_seed(tokens)
    trees = [chain(tokens, vocabulary, generator) for _ in range(repeats + 1)]
    times = [[timed(target, tree) for target in targets] for tree in trees]
    return [median(column) for column in zip(*times[1:], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pair", default=DEFAULT_PAIR)
    parser.add_argument("--cached", type=int, default=200, help="tokens read before")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pairs = [
        load_pair(args.pair, device="cpu", dtype=torch.float32, packed=packed) for packed in (False, True)
    ]
    targets = [prefilled(pair, args.cached) for pair in pairs]
    print(f"{args.pair}, {args.cached} tokens cached, {args.repeats} repeats, {args.threads} thread(s); ms")
    print(f"{'tokens':>6} | {'stock':>7} {'packed':>7} {'ratio':>6}")
    for tokens in args.tokens:
        stock, packed = measure(targets, len(pairs[0].tokenizer), tokens, args.repeats)
        print(f"{tokens:6d} | {stock:7.1f} {packed:7.1f} {stock / packed:5.2f}x", flush=True)


if __name__ == "__main__":
    main()
