"""Tiny pairs on disk, and how tests load them."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddtree_core.models import ModelPair, load_pair
from ddtree_core.models.tiny import MASK_TOKEN_ID, byte_tokenizer, tiny_config, tiny_target
from tests.models.draft_files import Release, body_tensors, write_checkpoint, z_lab_config

# For the tiny targets: 4 blocks of hidden size 64, the last one among those read.
DRAFTER = Release("tiny", 2, 64, 48, (8, 2, 8), 6, (0, 2, 3), 4)


@dataclass(frozen=True)
class Folders:
    """A target and a drafter on disk."""

    target: Path
    drafter: Path

    @property
    def names(self) -> tuple[str, str]:
        return str(self.target), str(self.drafter)

    def copy(self, to: Path) -> "Folders":
        """Copies to be damaged."""
        shutil.copytree(self.target, to / "target")
        shutil.copytree(self.drafter, to / "drafter")
        return Folders(to / "target", to / "drafter")


def write_pair(folder: Path, kind: str, **saving: Any) -> Folders:
    target = folder / "target"
    tiny_target(tiny_config(kind)).save_pretrained(target, **saving)
    byte_tokenizer().save_pretrained(target)
    inner = {"mask_token_id": MASK_TOKEN_ID, "target_layer_ids": list(DRAFTER.ids)}
    config = z_lab_config(DRAFTER, "older") | {"vocab_size": 260, "dflash_config": inner}
    return Folders(target, write_checkpoint(folder / "drafter", config, body_tensors(DRAFTER)))


def refusal(error: type[ValueError], pair: Any, **options: Any) -> str:
    """The message with which a pair is refused; one sentence."""
    with pytest.raises(error) as caught:
        load_pair(pair, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def load(pair: Any, **options: Any) -> ModelPair:
    """On the CPU, also where there are GPUs."""
    return load_pair(pair, device="cpu", **options)
