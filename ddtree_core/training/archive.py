"""The texts of a corpus without their features: small enough to ship, enough to restore the features from."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.training.corpus import Corpus, add_texts
from ddtree_core.training.identity import CorpusError, Identity, identity
from ddtree_core.training.openings import DOMAINS, complete_answer, user_turn


@dataclass(frozen=True)
class Texts:
    """Texts that a target wrote: (token ids of prompt and answer, prompt length, domain) each."""

    rows: list[tuple[list[int], int, str]]
    target: str  # fingerprints, see `Identity`
    tokenizer: str

    def save(self, path: Path) -> None:
        """Write a compressed npz file: ids as uint16 (or int32), lengths, domains."""
        ids = np.concatenate([np.asarray(row[0]) for row in self.rows])
        arrays = {
            "ids": ids.astype(np.uint16 if ids.max() < 2**16 else np.int32),
            "lengths": np.array([len(row[0]) for row in self.rows], dtype=np.uint16),
            "prompt_lengths": np.array([row[1] for row in self.rows], dtype=np.uint16),
            "domains": np.array([DOMAINS.index(row[2]) for row in self.rows], dtype=np.uint8),
            "made_with": np.array([self.target, self.tokenizer]),
        }
        unfinished = path.with_name(f".{path.name}")
        with unfinished.open("wb") as file:
            np.savez_compressed(file, **arrays)
        unfinished.replace(path)


def load_texts(path: Path) -> Texts:
    """Texts saved by `Texts.save`; `CorpusError` where there are none."""
    if not path.is_file():
        raise CorpusError(
            f"there are no texts at {path}; write a corpus first, or name the file of another one"
        )
    with np.load(path, allow_pickle=False) as arrays:
        ends = np.cumsum(arrays["lengths"].astype(np.int64))
        parts = np.split(arrays["ids"].astype(np.int64), ends[:-1])
        rows = [
            (ids.tolist(), int(prompt), DOMAINS[domain])
            for ids, prompt, domain in zip(parts, arrays["prompt_lengths"], arrays["domains"], strict=True)
        ]
        target, tokenizer = arrays["made_with"].tolist()
    return Texts(rows, target, tokenizer)


def texts_of(corpora: Sequence[Corpus]) -> Texts:
    """The texts of one or more corpora of one target, in order."""
    rows = [(t.ids.tolist(), t.prompt_length, t.domain) for corpus in corpora for t in corpus]
    return Texts(rows, corpora[0].identity.target, corpora[0].identity.tokenizer)


def conversations(texts: Texts, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
    """User turn and answer of every text, without the chat template's tokens; `tokenizer` is the target's.

    An answer that did not end by itself loses its unfinished end, and is left out where little remains.
    """
    before, behind = user_turn(tokenizer)
    turns: list[tuple[str, str]] = []
    for ids, prompt_length, _ in texts.rows:
        user = str(tokenizer.decode(ids[:prompt_length])).removeprefix(before).removesuffix(behind)
        said = str(tokenizer.decode(ids[prompt_length:], skip_special_tokens=True))
        ended = ids[-1] == tokenizer.eos_token_id
        kept = said if ended else complete_answer(said)
        if user.strip() and kept.strip() and len(kept) >= len(said) / 4:
            turns.append((user, kept))
    return turns


def restore(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    folder: Path,
    layer_ids: Sequence[int],
) -> Corpus:
    """The corpus in `folder`, made of the texts at `path`, which the target reads once for their features.

    What is there already is not read again. Raises `CorpusError` for texts that another target wrote.
    """
    texts, own = load_texts(path), identity(model, tokenizer, layer_ids)
    own.check(Identity(texts.target, texts.tokenizer, own.layer_ids), path)
    add_texts(model, tokenizer, folder, sorted(texts.rows, key=lambda row: len(row[0])), layer_ids=layer_ids)
    return Corpus(folder)
