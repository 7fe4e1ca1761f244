"""A corpus on disk: texts that the target wrote, with the features that a drafter reads, in shards.

A shard is one batch of prompts, a pure function of the corpus's seed and the shard's number. It appears under
its own name only when it is whole, so writing can be interrupted, continued, and divided among processes.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.decoding.batched import Written, read_texts, write_texts
from ddtree_core.decoding.prompts import encode_prompt
from ddtree_core.training.identity import CorpusError, Identity, identity
from ddtree_core.training.openings import DOMAINS, HeldOut, draw_openings, periodic, sampled, user_turn


@dataclass(frozen=True)
class Text(Written):
    """One text of a corpus."""

    domain: str


class Corpus:
    """A corpus folder, opened for reading; features stay on disk until they are touched.

    Raises `CorpusError` where there is none or it holds no shard.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        if not (folder / "corpus.json").is_file():
            raise CorpusError(f"{folder} holds no corpus.json; write a corpus into it first")
        self.identity = _stored_identity(folder / "corpus.json")
        self._shards = [load_file(path) for path in sorted(folder.glob("shard-*.safetensors"))]
        if not self._shards:
            raise CorpusError(f"{folder} holds no finished shard yet; let the writing run for longer")
        self._index = [(s, i) for s, shard in enumerate(self._shards) for i in range(len(shard["lengths"]))]
        self._starts = [_starts(shard["lengths"]) for shard in self._shards]

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Text:
        s, i = self._index[number]
        shard, start = self._shards[s], int(self._starts[s][i])
        length = int(shard["lengths"][i])
        first = start - i  # every text before this one has one row less than ids
        rows = slice(first, first + length - 1)
        return Text(
            ids=shard["ids"][start : start + length].long(),
            prompt_length=int(shard["prompt_lengths"][i]),
            features=shard["features"][rows],
            final=shard["final"][rows],
            domain=DOMAINS[int(shard["domains"][i])],
        )

    def __iter__(self) -> Iterator[Text]:
        return (self[i] for i in range(len(self)))

    @property
    def answer_tokens(self) -> int:
        """Tokens that the target wrote as answers."""
        return sum(int((shard["lengths"] - shard["prompt_lengths"]).sum()) for shard in self._shards)


def _starts(lengths: Tensor) -> Tensor:
    return lengths.long().cumsum(0) - lengths.long()


def write_corpus(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    layer_ids: Sequence[int],
    stop_ids: Sequence[int],
    shards: Iterable[int],
    seed: int = 0,
    batch: int = 96,
    max_new_tokens: int = 192,
    held_out: Sequence[str] = (),
) -> None:
    """Let the target write prompts and greedy answers: one shard per number in `shards` not yet on disk.

    `held_out` are prompts that must not appear, nor anything that reads nearly like one of them. Raises
    `CorpusError` for a folder that holds another target's corpus.
    """
    claim(folder, identity(model, tokenizer, layer_ids))
    kept_out = HeldOut(held_out)
    for shard in tqdm(
        [s for s in shards if not _shard_path(folder, s).is_file()], desc="corpus", unit="shard"
    ):
        prompts = write_prompts(model, tokenizer, batch, seed * 1_000_003 + shard, stop_ids, kept_out)
        texts = answers(
            model,
            tokenizer,
            prompts,
            layer_ids=layer_ids,
            stop_ids=stop_ids,
            max_new_tokens=max_new_tokens,
        )
        save_shard(_shard_path(folder, shard), texts)


def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[str, str]],
    *,
    layer_ids: Sequence[int],
    stop_ids: Sequence[int],
    max_new_tokens: int = 192,
) -> list[Text]:
    """The target's greedy answers to user turns given as (domain, text), each cut at its first loop."""
    written = write_texts(
        model,
        [encode_prompt(tokenizer, [{"role": "user", "content": text}]) for _, text in prompts],
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        layer_ids=layer_ids,
        finished=periodic,
    )
    return [Text(**vars(text), domain=domain) for text, (domain, _) in zip(written, prompts, strict=True)]


def write_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    seed: int,
    stop_ids: Sequence[int],
    held_out: HeldOut,
    max_tokens: int = 64,
) -> list[tuple[str, str]]:
    """At most `count` user turns as (domain, text): templates filled in, openings continued by the target.

    Turns that do not end within `max_tokens`, repeat another one or read like a held-out prompt are dropped.
    """
    openings = draw_openings(count, seed)
    before, _ = user_turn(tokenizer)
    begun = [opening for opening in openings if not opening.complete]
    pick = sampled(torch.Generator().manual_seed(seed))
    prompts = [tokenizer(before + o.text, add_special_tokens=False).input_ids for o in begun]
    turns = write_texts(model, prompts, max_new_tokens=max_tokens, stop_ids=stop_ids, pick=pick)
    texts = [(o.domain, o.text) for o in openings if o.complete]
    for opening, prompt, turn in zip(begun, prompts, turns, strict=True):
        if int(turn.ids[-1]) in stop_ids:
            texts.append((opening.domain, opening.text + str(tokenizer.decode(turn.ids[len(prompt) : -1]))))
    fresh = {text.strip(): domain for domain, text in texts}
    return [(domain, text) for text, domain in fresh.items() if text and not held_out.contains(text)]


def add_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    texts: Sequence[tuple[list[int], int, str]],
    *,
    layer_ids: Sequence[int],
    first_shard: int = 0,
    batch: int = 32,
) -> None:
    """Add finished texts, given as (ids, prompt length, domain), with the features that the target reads."""
    claim(folder, identity(model, tokenizer, layer_ids))
    for n, start in enumerate(tqdm(range(0, len(texts), batch), desc="features", unit="shard")):
        path, part = _shard_path(folder, first_shard + n), texts[start : start + batch]
        if not path.is_file():
            written = read_texts(model, [(ids, prompt) for ids, prompt, _ in part], layer_ids)
            domains = (domain for *_, domain in part)
            save_shard(path, [Text(**vars(w), domain=d) for w, d in zip(written, domains, strict=True)])


def save_shard(path: Path, texts: Sequence[Text]) -> None:
    """Write one shard; the name appears only when the file is whole."""
    tensors = {
        "ids": torch.cat([text.ids for text in texts]).int(),
        "lengths": torch.tensor([len(text.ids) for text in texts], dtype=torch.int32),
        "prompt_lengths": torch.tensor([text.prompt_length for text in texts], dtype=torch.int32),
        "domains": torch.tensor([DOMAINS.index(text.domain) for text in texts], dtype=torch.uint8),
        "features": torch.cat([text.features for text in texts]),
        "final": torch.cat([text.final for text in texts]),
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(tensors, unfinished)
    unfinished.replace(path)


def _shard_path(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard:05d}.safetensors"


def claim(folder: Path, own: Identity) -> None:
    """Make `folder` a corpus of this identity, or check that it is one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "corpus.json"
    if path.is_file():
        own.check(_stored_identity(path), folder)
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(asdict(own), indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def _stored_identity(path: Path) -> Identity:
    data = json.loads(path.read_text(encoding="utf-8"))
    return Identity(data["target"], data["tokenizer"], tuple(data["layer_ids"]))
