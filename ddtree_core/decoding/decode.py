"""Text from a pair: a request, checked in full, then the loop."""

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import signature
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from ddtree_core.decoding.clock import Clock
from ddtree_core.decoding.loop import rounds
from ddtree_core.decoding.records import Generation, Round
from ddtree_core.decoding.request import Request
from ddtree_core.decoding.sampling import Sampler

P = ParamSpec("P")
T = TypeVar("T")


class Decoding(Iterator[Round]):
    """A text in the making: each step does one round, and `ids`, `text` and `finish_reason` follow."""

    def __init__(self, request: Request, clock: Clock | None = None):
        drafting = request.method != "autoregressive"
        self.request = request
        self._stopper = request.stopper()
        self._rounds = rounds(
            request.pair.open_target(features=drafting),
            request.pair.open_drafter(request.prompt_ids) if drafting else None,
            request.prompt_ids,
            request.grow,
            request.sampler or Sampler(),
            self._stopper,
            request.generator,
            clock or request.clock,
        )

    def __next__(self) -> Round:
        return next(self._rounds)

    @property
    def ids(self) -> list[int]:
        """New tokens so far, a final stop token included."""
        return list(self._stopper.ids)

    @property
    def text(self) -> str:
        """The new text so far, without the stop token or stop string that ended it."""
        return self._stopper.text()

    @property
    def finish_reason(self) -> str | None:
        """None while the text goes on, then "stop" or "length"."""
        return self._stopper.reason


def _takes_fields_of(request: Callable[P, Request]) -> Callable[[Callable[[Request], T]], Callable[P, T]]:
    """Call a function of a request with the request's fields, so that they are listed in one place."""

    def decorate(run: Callable[[Request], T]) -> Callable[P, T]:
        @wraps(run)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return run(request(*args, **kwargs))

        shown: Any = call  # help and completion show the fields
        shown.__signature__ = signature(request).replace(return_annotation=signature(run).return_annotation)
        return call

    return decorate


@_takes_fields_of(Request)
def decode(request: Request) -> Decoding:
    """Generate text round by round; arguments are the fields of `Request`.

    They are checked at the call (`ValueError` with one sentence); work starts with the first round, which is
    the prefill. The rounds' `tokens` joined are the new tokens.
    """
    return Decoding(request)


@_takes_fields_of(Request)
def generate(request: Request) -> Generation:
    """Generate a whole text; arguments and errors as for `decode`."""
    run = Decoding(request, clock=request.clock or Clock())
    start = perf_counter()
    prefill, *verified = run
    total = perf_counter() - start
    stages = sorted({stage for made in verified for stage in made.seconds})
    seconds = {stage: sum(made.seconds.get(stage, 0.0) for made in verified) for stage in stages}
    return Generation(
        pair=request.pair.name,
        method=request.method,
        budget=request.budget,
        prompt_ids=request.prompt_ids,
        ids=run.ids,
        text=run.text,
        rounds=tuple(verified),
        seconds=seconds | prefill.seconds | {"total": total},
        finish_reason=str(run.finish_reason),
        temperature=request.sampler.temperature if request.sampler else 0.0,
    )
