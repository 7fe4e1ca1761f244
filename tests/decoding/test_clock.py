"""The clock adds up time by stage; nobody's clock costs nothing."""

import time

import pytest
import torch

from ddtree_core.decoding import Clock
from ddtree_core.decoding.clock import NoClock


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """Time that only the test moves; what it reads is `now[0]`."""
    now = [100.0]
    monkeypatch.setattr("ddtree_core.decoding.clock.perf_counter", lambda: now[0])
    return now


def test_adds_up_by_stage(now):
    clock = Clock()
    for stage, seconds in (("draft", 1.0), ("verify", 2.0), ("draft", 0.5)):
        with clock(stage):
            now[0] += seconds
        now[0] += 10  # between stages: nobody's
    assert clock.lap() == {"draft": 1.5, "verify": 2.0}


def test_a_lap_starts_anew(now):
    clock = Clock()
    with clock("draft"):
        now[0] += 1
    first = clock.lap()
    with clock("draft"):
        now[0] += 3
    assert (first, clock.lap(), clock.lap()) == ({"draft": 1.0}, {"draft": 3.0}, {})


def test_measures_real_time():
    clock = Clock()
    with clock("sleep"):
        time.sleep(0.02)
    assert 0.02 <= clock.lap()["sleep"] < 1


def test_waits_for_every_gpu_at_both_ends(now, monkeypatch):
    """Work queued in a stage is part of it: 2 s that only show once the queues are drained."""
    waits, queued = [], [0.0]

    def synchronize(device: int) -> None:
        waits.append(device)
        now[0], queued[0] = now[0] + queued[0], 0.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    clock = Clock()
    queued[0] = 5.0  # from before the stage
    with clock("verify"):
        queued[0] = 2.0
    assert clock.lap() == {"verify": 2.0}
    assert waits == [0, 1, 0, 1]


def test_nobody_listens(now):
    clock = NoClock()
    with clock("draft"):
        now[0] += 1
    assert clock.lap() == {}
