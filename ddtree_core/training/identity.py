"""What a corpus was made with, so that no drafter is trained on another target's texts."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase


class CorpusError(ValueError):
    """A corpus that is missing, empty, or made for another target; the message tells what to do."""


@dataclass(frozen=True)
class Identity:
    """What a corpus was made with; training on it with anything else would teach the wrong thing."""

    target: str  # fingerprint of the target's weights
    tokenizer: str  # fingerprint of the tokenizer's vocabulary and chat template
    layer_ids: tuple[int, ...]  # blocks of the target whose outputs are the features

    def check(self, other: "Identity", where: Path) -> None:
        """Raise `CorpusError` naming the first part in which a corpus in `where` differs from this one."""
        for name, own in asdict(self).items():
            if own != (found := getattr(other, name)):
                raise CorpusError(
                    f"the corpus in {where} was made with another {name.replace('_', ' ')} ({found}, "
                    f"expected {own}); write a new corpus with this target into another folder"
                )


def identity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, layer_ids: Sequence[int]
) -> Identity:
    """The identity of a target, from its norm weights and embedding, its tokenizer and the captured blocks.

    Weights are compared as bfloat16, so that one target loaded in float32 and in bfloat16 is the same one.
    """
    target = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # packed linears have no parameters, norms always do
            target.update(name.encode() + _bytes(parameter))
    embedding: Any = model.get_input_embeddings()
    target.update(_bytes(embedding.weight[::97]))
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items())) + str(tokenizer.chat_template)
    words = hashlib.sha256(vocabulary.encode())
    return Identity(target.hexdigest()[:16], words.hexdigest()[:16], tuple(layer_ids))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().bfloat16().contiguous().view(torch.uint8).numpy().tobytes()
