"""The decoding loop: draft, build a tree, verify it in one pass, walk it, commit the accepted path.

There is one loop. DFlash is the loop with a chain for a tree, autoregressive decoding the loop with a tree of
one node.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddtree_core.decoding.clock import Clock, NoClock
from ddtree_core.decoding.records import Round
from ddtree_core.decoding.sampling import Sampler
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models.drafter import Drafter
from ddtree_core.models.target import Target
from ddtree_core.trees import Acceptance, DraftTree, tree_walk


def rounds(
    target: Target,
    drafter: Drafter | None,
    prompt_ids: list[int],
    grow: Callable[..., DraftTree],
    sampler: Sampler,
    stopper: Stopper,
    generator: torch.Generator | None = None,
    clock: Clock | NoClock | None = None,
    accept: Callable[[DraftTree, Tensor], Acceptance] = tree_walk,
) -> Iterator[Round]:
    """Decode until the stopper has a reason; the first round yielded is the prefill.

    `grow(root, logits, vocabulary=…)` builds a tree from the drafter's logits; without a drafter a tree is
    the root alone. `target` and `drafter` are fresh and belong to this generation.
    """
    clock = clock or NoClock()
    with clock("prefill"):
        scores = target.prefill(torch.tensor(prompt_ids))
        chosen = sampler(scores.logits, generator).tolist()
    # A position's features go with the token after it: the prompt's features with all tokens but its first.
    features, tokens = scores.features, [*prompt_ids[1:], *chosen]
    kept = stopper.take(chosen)
    yield Round(
        index=0,
        tree=DraftTree.root_only(prompt_ids[-1]),
        target_tokens=chosen,
        path=[0],
        tokens=kept,
        seconds=clock.lap(),
    )

    index = 0
    while not stopper.reason:
        index, root = index + 1, tokens[-1]
        tree = DraftTree.root_only(root)
        if drafter:
            with clock("draft"):
                logits = drafter.draft(features, torch.tensor(tokens))
            with clock("tree"):
                tree = grow(root, logits, vocabulary=drafter.vocabulary)
        with clock("verify"):
            scores = target.verify(tree)
        with clock("accept"):
            chosen = sampler(scores.logits, generator).cpu()
            accepted = accept(tree, chosen)
        with clock("commit"):
            features = target.commit(accepted.path)
        tokens = accepted.tokens(tree)
        kept = stopper.take(tokens)
        yield Round(
            index=index,
            tree=tree,
            target_tokens=chosen.tolist(),
            path=accepted.path,
            tokens=kept,
            seconds=clock.lap(),
        )
