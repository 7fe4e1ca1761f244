"""vLLM's files for the tests that run or read them, fetched once per version."""

from collections.abc import Callable

import pytest

from ddtree_core.diagnosis.vllm.source import VllmSource, VllmSourceError, obtain


@pytest.fixture(scope="session")
def vllm() -> Callable[[str], VllmSource]:
    """`vllm("0.19.1")`; tests that use it are marked `vllm`."""

    def load(version: str) -> VllmSource:
        try:
            return obtain(version)
        except VllmSourceError as error:
            if "cannot fetch" not in str(error):
                raise  # a wrong file or a full disk is a failure; only a lacking network is not
            pytest.skip(str(error))

    return load
