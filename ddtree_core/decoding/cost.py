"""What a verify pass costs as the tree grows, measured on the pair at hand."""

from collections.abc import Sequence
from statistics import median

import torch

from ddtree_core.decoding.clock import Clock
from ddtree_core.models.pair import ModelPair
from ddtree_core.trees import chain


def verify_seconds(
    pair: ModelPair, nodes: Sequence[int], *, history: int = 200, repeats: int = 5
) -> dict[int, float]:
    """Median seconds of one verify pass over trees of each size, with `history` tokens in the cache.

    A pass costs the same for any tree of a size, so chains are measured. Sizes take turns within a repeat, so
    that a machine that slows down slows all of them.
    """
    vocabulary = pair.model.config.get_text_config(decoder=True).vocab_size
    target, clock = pair.open_target(features=True), Clock()
    generator = torch.Generator().manual_seed(0)
    target.prefill(torch.randint(vocabulary, (history,), generator=generator))
    trees = {n: chain(0, torch.randn(n - 1, vocabulary, generator=generator)) for n in nodes}
    seconds: dict[int, list[float]] = {n: [] for n in nodes}
    for _ in range(repeats + 1):
        for n, tree in trees.items():
            with clock("verify"):
                target.verify(tree)
            seconds[n].append(clock.lap()["verify"])
            target.commit([])
    return {n: median(times[1:]) for n, times in seconds.items()}  # the first pass warms up
