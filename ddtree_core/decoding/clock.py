"""Time by stage, kept out of the algorithm."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

import torch


class Clock:
    """Adds up wall-clock seconds by stage: `with clock("verify"): …`; `lap()` returns them and starts anew.

    GPU work runs on after the call that starts it, so a stage waits for it at both ends.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._wait = torch.cuda.is_available()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = self._now()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + self._now() - start

    def lap(self) -> dict[str, float]:
        """Seconds by stage since the last lap."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _now(self) -> float:
        if self._wait:
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
        return perf_counter()


class NoClock:
    """Takes a clock's place where no times are wanted, and costs nothing."""

    def __call__(self, stage: str) -> AbstractContextManager[None]:
        return nullcontext()

    def lap(self) -> dict[str, float]:
        return {}
