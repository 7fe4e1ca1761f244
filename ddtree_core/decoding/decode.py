"""The decoding loop: draft, build a tree, verify it in one pass, walk it, commit the accepted path.

There is one loop. DFlash is the loop with a chain for a tree, autoregressive decoding the loop with a tree of
one node.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

import torch

from ddtree_core.decoding.clock import Clock, NoClock
from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.decoding.records import Generation, Round
from ddtree_core.decoding.sampling import Sampler
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models.pairs import ModelPair
from ddtree_core.trees import DraftTree, best_first, chain, tree_walk

METHODS = ("ddtree", "dflash", "autoregressive")
DEFAULT_BUDGET = 16
MAX_BUDGET = 4096  # one verify pass takes budget² mask entries; the literature stops at 1,024


def decode(
    pair: ModelPair,
    prompt: Prompt,
    method: str = "ddtree",
    *,
    budget: int | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: Sequence[int | str] | None = None,
    generator: torch.Generator | None = None,
    clock: Clock | None = None,
) -> Iterator[Round]:
    """Generate text round by round; the rounds' `tokens` joined are the new tokens.

    `prompt` is text, chat messages or ids. `budget` is the number of draft nodes of a "ddtree" tree (default
    16). `stop` adds token ids and strings to the pair's own stop tokens. `generator` seeds sampling; `clock`
    listens to the stages. Arguments are checked before any work starts: `ValueError` with one sentence.
    """
    prompt_ids = encode_prompt(pair.tokenizer, prompt, **pair.template)
    budget = check_request(pair, prompt_ids, method, budget, max_new_tokens, stop or ())
    return _rounds(
        pair,
        prompt_ids,
        method,
        budget,
        sampler or Sampler(),
        _stopper(pair, stop, max_new_tokens),
        generator,
        clock or NoClock(),
    )


def generate(
    pair: ModelPair,
    prompt: Prompt,
    method: str = "ddtree",
    *,
    budget: int | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: Sequence[int | str] | None = None,
    generator: torch.Generator | None = None,
) -> Generation:
    """Generate a whole text; arguments as for `decode`."""
    prompt_ids = encode_prompt(pair.tokenizer, prompt, **pair.template)
    budget = check_request(pair, prompt_ids, method, budget, max_new_tokens, stop or ())
    sampler, stopper = sampler or Sampler(), _stopper(pair, stop, max_new_tokens)
    start = perf_counter()
    prefill, *rounds = _rounds(pair, prompt_ids, method, budget, sampler, stopper, generator, Clock())
    total = perf_counter() - start
    stages = {stage for r in rounds for stage in r.seconds}
    seconds = {stage: sum(r.seconds.get(stage, 0.0) for r in rounds) for stage in sorted(stages)}
    return Generation(
        pair=pair.name,
        method=method,
        budget=budget if method == "ddtree" else None,
        prompt_ids=prompt_ids,
        ids=stopper.ids,
        text=stopper.text(),
        rounds=tuple(rounds),
        seconds=seconds | prefill.seconds | {"total": total},
        finish_reason=stopper.reason or "length",
        temperature=sampler.temperature,
    )


def _rounds(
    pair: ModelPair,
    prompt_ids: list[int],
    method: str,
    budget: int,
    sampler: Sampler,
    stopper: Stopper,
    generator: torch.Generator | None,
    clock: Clock | NoClock,
) -> Iterator[Round]:
    target = pair.open_target(features=method != "autoregressive")
    drafter = None if method == "autoregressive" else pair.open_drafter(prompt_ids)
    grow = partial(best_first, budget=budget) if method == "ddtree" else chain

    with clock("prefill"):
        ids = torch.tensor(prompt_ids)
        scores = target.prefill(ids)
        chosen = sampler(scores.logits, generator).tolist()
    features, tokens = scores.features, [*prompt_ids[1:], *chosen]
    yield Round(0, DraftTree.root_only(prompt_ids[-1]), chosen, [0], stopper.take(chosen), clock.lap())

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
            chosen = sampler(scores.logits, generator)
            accepted = tree_walk(tree, chosen)
        with clock("commit"):
            features = target.commit(accepted.path)
        tree = tree.to("cpu")
        tokens = [*tree.token_ids[accepted.path[1:]].tolist(), accepted.bonus]
        yield Round(index, tree, chosen.tolist(), accepted.path, stopper.take(tokens), clock.lap())


def check_request(
    pair: ModelPair,
    prompt_ids: list[int],
    method: str,
    budget: int | None,
    max_new_tokens: int,
    stop: Sequence[int | str],
) -> int:
    """Check a request before work starts and return its budget; `ValueError` with one sentence."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(METHODS)}")
    budget = DEFAULT_BUDGET if budget is None else budget
    if not 0 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget is {budget}, expected 0 to {MAX_BUDGET} draft nodes (16 to 64 is usual)")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, expected at least 1")
    if any(s == "" for s in stop):
        raise ValueError("a stop string is empty; expected text, or leave it out")
    positions = pair.max_positions
    if positions and len(prompt_ids) >= positions:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens, but {pair.name} has {positions} positions; shorten "
            f"the prompt"
        )
    if positions and len(prompt_ids) + max_new_tokens > positions:
        raise ValueError(
            f"prompt ({len(prompt_ids)} tokens) and max_new_tokens ({max_new_tokens}) exceed the "
            f"{positions} positions of {pair.name}; "
            f"at most {positions - len(prompt_ids)} new tokens fit"
        )
    return budget


def _stopper(pair: ModelPair, stop: Sequence[int | str] | None, max_new_tokens: int) -> Stopper:
    stop = [stop] if isinstance(stop, (int, str)) else stop or ()
    ids = [s for s in stop if isinstance(s, int)]
    return Stopper(
        pair.tokenizer, (*pair.stop_ids, *ids), [s for s in stop if isinstance(s, str)], max_new_tokens
    )
