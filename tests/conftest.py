"""What all tests share: loaded pairs, and how many threads torch takes."""

import os
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from ddtree_core.models import DownloadError, ModelPair, load_pair

ALL_THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """One thread: tiny tensors gain nothing from more, and lose much while another process runs.

    Only tests of the real model take all of them, unless pytest-xdist has set up one process per core.
    """
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    real = request.node.get_closest_marker("smollm2") is not None
    torch.set_num_threads(ALL_THREADS if alone and real else 1)


@pytest.fixture(scope="session")
def tiny_pair() -> Callable[..., ModelPair]:
    """Loads a tiny pair, each once: `tiny_pair("tiny-llama")`, `tiny_pair("tiny-qwen3", packed=False)`."""

    @cache
    def load(name: str, **options: Any) -> ModelPair:
        return load_pair(name, **options)

    return load


@pytest.fixture(scope="session")
def smollm2() -> ModelPair:
    """The default pair; tests that use it are marked `smollm2`."""
    try:
        return load_pair("smollm2-135m")
    except DownloadError as error:
        if "cannot fetch" not in str(error):
            raise  # a wrong file or a full disk is a failure; only a lacking network is not
        pytest.skip(str(error))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
