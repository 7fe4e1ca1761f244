"""Training batches: a few texts of a corpus, and random anchors in each of their answers.

The batch of a step is a pure function of seed and step, so a resumed training sees what an uninterrupted one
would have seen.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddtree_core.training.corpus import Corpus


def like_length(step: int, count: int, size: int, seed: int) -> list[int]:
    """Places of `size` neighbours among `count` texts sorted by length: a pure function of step and seed.

    In count // size steps every text is drawn once, but for a remainder; each epoch groups them anew.
    """
    per_epoch = count // size
    epoch, place = divmod(step, per_epoch)
    shuffle = torch.Generator().manual_seed(seed * 100_003 + epoch)
    # Rotated by a random offset, the sorted texts fall into other groups in every epoch.
    offset = int(torch.randint(count, (1,), generator=shuffle))
    start = offset + size * int(torch.randperm(per_epoch, generator=shuffle)[place])
    return [(start + i) % count for i in range(size)]


@dataclass(frozen=True)
class Batch:
    """Texts padded behind to the longest, with anchors: token a is the root of its block."""

    ids: Int[Tensor, "texts n"]  # −1 behind a text's end
    features: Float[Tensor, "texts rows width"]  # rows = n − 1
    final: Float[Tensor, "texts rows hidden"]
    anchors: Int[Tensor, "texts anchors"]


class Batches:
    """Draws batches from the texts `numbers` of a corpus, texts of like length together."""

    def __init__(self, corpus: Corpus, numbers: list[int], texts: int, anchors: int, seed: int):
        # A root needs an answer token behind it: answers of one token teach nothing.
        usable = [n for n in numbers if len(corpus[n].ids) - corpus[n].prompt_length >= 2]
        if len(usable) < texts:
            raise ValueError(
                f"{len(usable)} texts of {len(numbers)} have an answer to learn from, a batch takes {texts}; "
                f"write more texts or take smaller batches"
            )
        self.corpus, self.texts, self.anchors, self.seed = corpus, texts, anchors, seed
        self._by_length = sorted(usable, key=lambda n: len(corpus[n].ids))

    @property
    def pool(self) -> int:
        """Texts to draw from."""
        return len(self._by_length)

    @property
    def per_epoch(self) -> int:
        """Steps in which every text is drawn once."""
        return self.pool // self.texts

    def __getitem__(self, step: int) -> Batch:
        members = like_length(step, self.pool, self.texts, self.seed)
        generator = torch.Generator().manual_seed((self.seed + 1) * 1_000_003 + step)
        return self.collate([self._by_length[i] for i in members], generator)

    def collate(self, numbers: list[int], generator: torch.Generator) -> Batch:
        """These texts, with `anchors` random anchors each."""
        texts = [self.corpus[n] for n in numbers]
        longest = max(len(text.ids) for text in texts)
        ids = torch.full((len(texts), longest), -1)
        width, hidden = texts[0].features.shape[1], texts[0].final.shape[1]
        features = torch.zeros(len(texts), longest - 1, width)
        final = torch.zeros(len(texts), longest - 1, hidden)
        anchors = torch.empty(len(texts), self.anchors, dtype=torch.long)
        for row, text in enumerate(texts):
            n = len(text.ids)
            ids[row, :n], features[row, : n - 1], final[row, : n - 1] = text.ids, text.features, text.final
            drawn = torch.rand(self.anchors, generator=generator) * (n - 1 - text.prompt_length)
            anchors[row] = text.prompt_length + drawn.long()
        return Batch(ids, features, final, anchors)
