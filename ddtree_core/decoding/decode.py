"""Text from a pair: requests checked in full before any work, then the loop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from time import perf_counter
from typing import Any

import torch

from ddtree_core.decoding.clock import Clock
from ddtree_core.decoding.loop import rounds
from ddtree_core.decoding.prompts import Prompt, encode_prompt
from ddtree_core.decoding.records import Generation, Round
from ddtree_core.decoding.sampling import Sampler
from ddtree_core.decoding.stopping import Stopper
from ddtree_core.models.pair import ModelPair
from ddtree_core.trees import MAX_BUDGET, best_first, chain

Stop = int | str | Sequence[int | str]
METHODS = ("ddtree", "dflash", "autoregressive")
DEFAULT_BUDGET = 16


def decode(
    pair: ModelPair,
    prompt: Prompt,
    method: str = "ddtree",
    *,
    budget: int | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: Stop | None = None,
    generator: torch.Generator | None = None,
    clock: Clock | None = None,
) -> Iterator[Round]:
    """Generate text round by round; the rounds' `tokens` joined are the new tokens.

    `prompt` is text, chat messages or ids. `budget` is the number of draft nodes of a "ddtree" tree (default
    16). `stop` adds token ids and strings to the pair's own stop tokens. `generator` seeds sampling; `clock`
    listens to the stages. Arguments are checked before any work starts: `ValueError` with one sentence.
    """
    run = _start(pair, prompt, method, budget, sampler, max_new_tokens, stop, generator, clock)
    return run.rounds


def generate(
    pair: ModelPair,
    prompt: Prompt,
    method: str = "ddtree",
    *,
    budget: int | None = None,
    sampler: Sampler | None = None,
    max_new_tokens: int = 128,
    stop: Stop | None = None,
    generator: torch.Generator | None = None,
) -> Generation:
    """Generate a whole text; arguments as for `decode`."""
    run = _start(pair, prompt, method, budget, sampler, max_new_tokens, stop, generator, Clock())
    start = perf_counter()
    prefill, *verified = run.rounds
    total = perf_counter() - start
    stages = sorted({stage for made in verified for stage in made.seconds})
    seconds = {stage: sum(made.seconds.get(stage, 0.0) for made in verified) for stage in stages}
    return Generation(
        pair=pair.name,
        method=method,
        budget=run.budget if method == "ddtree" else None,
        prompt_ids=run.prompt_ids,
        ids=run.stopper.ids,
        text=run.stopper.text(),
        rounds=tuple(verified),
        seconds=seconds | prefill.seconds | {"total": total},
        finish_reason=run.stopper.reason or "length",
        temperature=run.sampler.temperature,
    )


@dataclass(frozen=True)
class _Run:
    """A checked request whose rounds have not begun."""

    prompt_ids: list[int]
    budget: int
    sampler: Sampler
    stopper: Stopper
    rounds: Iterator[Round]


def _start(
    pair: ModelPair,
    prompt: Prompt,
    method: str,
    budget: int | None,
    sampler: Sampler | None,
    max_new_tokens: int,
    stop: Stop | None,
    generator: torch.Generator | None,
    clock: Clock | None,
) -> _Run:
    prompt_ids = encode_prompt(pair.tokenizer, prompt, **pair.template)
    budget = check_request(pair, prompt_ids, method, budget, max_new_tokens)
    sampler, stopper = sampler or Sampler(), _stopper(pair, stop, max_new_tokens)
    drafting = method != "autoregressive"
    made = rounds(
        pair.open_target(features=drafting),
        pair.open_drafter(prompt_ids) if drafting else None,
        prompt_ids,
        partial(best_first, budget=budget) if method == "ddtree" else chain,
        sampler,
        stopper,
        generator,
        clock,
    )
    return _Run(prompt_ids, budget, sampler, stopper, made)


def check_request(
    pair: ModelPair,
    prompt_ids: list[int],
    method: str,
    budget: int | None,
    max_new_tokens: int,
) -> int:
    """Check a request before work starts and return its budget; `ValueError` with one sentence."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of {', '.join(METHODS)}")
    budget = DEFAULT_BUDGET if budget is None else budget
    for name, value in (("budget", budget), ("max_new_tokens", max_new_tokens)):
        if not isinstance(value, Integral):
            raise ValueError(f"{name} is {value!r}, expected a whole number")
    if not 0 <= budget <= MAX_BUDGET:
        raise ValueError(f"budget is {budget}, expected 0 to {MAX_BUDGET} draft nodes (16 to 64 is usual)")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, expected at least 1")
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


def _stopper(pair: ModelPair, stop: Stop | None, max_new_tokens: int) -> Stopper:
    given = [] if stop is None else [stop] if isinstance(stop, (int, str)) else list(stop)
    for item in given:
        if not isinstance(item, (Integral, str)):
            raise ValueError(f"stop holds {item!r}, expected token ids and strings")
        if item == "":
            raise ValueError("a stop string is empty; expected text, or leave it out")
    ids = [int(item) for item in given if isinstance(item, Integral)]
    strings = [item for item in given if isinstance(item, str)]
    # Special tokens do not show in the text, so one that is named as a stop string goes by its id.
    tokenizer: Any = pair.tokenizer
    special: dict[str, int] = tokenizer.get_added_vocab()
    ids += [special[string] for string in strings if string in special]
    return Stopper(tokenizer, (*pair.stop_ids, *ids), strings, max_new_tokens)
