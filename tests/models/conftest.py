"""Pairs on disk, and machines without a network or without reading weights."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from tests.models.pair_files import Folders, write_pair


@pytest.fixture(scope="session")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folders]:
    return {kind: write_pair(tmp_path_factory.mktemp(kind), kind) for kind in ("llama", "qwen3")}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **options: Any) -> None:
        raise AssertionError("the target's weights were read")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", stop)
