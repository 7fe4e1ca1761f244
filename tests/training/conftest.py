"""What the training tests share: a tiny target without packed linears, and a small corpus that it wrote."""

from pathlib import Path
from typing import Any

import pytest

from ddtree_core.decoding.batched import write_texts
from ddtree_core.models import ModelPair
from ddtree_core.models.tiny import BlurredLookahead, byte_tokenizer, tiny_config, tiny_target
from ddtree_core.training.corpus import Corpus, Text, claim, save_shard
from ddtree_core.training.identity import identity

LAYER_IDS = (0, 1, 2)


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    """A tiny pair whose target has habits: its embedding outweighs its layers, so what it says next depends
    above all on the last token, and a drafter can learn it from little text.
    """
    config = tiny_config("llama")
    config.initializer_range = 0.05
    model = tiny_target(config)
    embedding: Any = model.get_input_embeddings()
    embedding.weight.data *= 10
    return ModelPair("tiny-habits", model, byte_tokenizer(), BlurredLookahead())


@pytest.fixture(scope="session")
def corpus(pair: ModelPair, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """192 texts: prompts of 3 to 8 ids and greedy answers of 40."""
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(pair, folder)
    return Corpus(folder)


def make_corpus(pair: ModelPair, folder: Path, texts: int = 192, answer: int = 40) -> None:
    """A corpus of prompts that count bytes up from different starts, written by the pair's target."""
    claim(folder, identity(pair.model, pair.tokenizer, LAYER_IDS))
    prompts = [list(range(20 + i, 23 + i + i % 6)) for i in range(texts)]
    written = write_texts(pair.model, prompts, max_new_tokens=answer, stop_ids=(), layer_ids=LAYER_IDS)
    domains = ["chat", "code", "math"] * (texts // 3)
    rows = [Text(**vars(w), domain=d) for w, d in zip(written, domains, strict=True)]
    save_shard(folder / "shard-00000.safetensors", rows)
