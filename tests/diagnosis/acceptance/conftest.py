"""The shipped hybrid pair, whose trained drafter the faults are injected into."""

import pytest

from ddtree_core.decoding import encode_prompt, load_prompts
from ddtree_core.diagnosis.acceptance.transcripts import Transcript, record
from ddtree_core.models import ModelPair, load_pair


@pytest.fixture(scope="session")
def hybrid() -> ModelPair:
    """The shipped pair of four million parameters, trained, with a recurrent target."""
    return load_pair("hybrid-4m")


@pytest.fixture(scope="session")
def prompts(hybrid: ModelPair) -> list[list[int]]:
    """Ids of a shipped math and a code prompt."""
    shipped = load_prompts(["math", "code"], 2)[1::2]
    return [encode_prompt(hybrid.tokenizer, prompt["messages"]) for prompt in shipped]


@pytest.fixture(scope="session")
def transcripts(hybrid: ModelPair, prompts: list[list[int]]) -> list[Transcript]:
    return record(hybrid, prompts, 16)
