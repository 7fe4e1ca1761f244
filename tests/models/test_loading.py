"""What cannot be loaded is refused in one sentence: damaged files, hub ids out of reach, devices, dtypes."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ddtree_core.models import CheckpointError, PairError, load_pair, memory
from ddtree_core.models.loading import locate
from ddtree_core.models.tiny import byte_tokenizer
from tests.models.pair_files import Folders, load, refusal, write_pair

# Drafters of random weights draft noise; but a first look at them must not fail.
pytestmark = [
    pytest.mark.filterwarnings("ignore:drafts of:ddtree_core.models.PairWarning"),
    pytest.mark.filterwarnings("error:a first look:ddtree_core.models.PairWarning"),
]


@pytest.mark.parametrize("dtype", ["float16", torch.float16, "int8", "no-such"])
@pytest.mark.parametrize("pair", ["tiny-llama", "qwen3-4b", ("target", "drafter")])
def test_other_dtypes_are_refused(pair: Any, dtype: Any) -> None:
    assert "expected float32 or bfloat16" in refusal(PairError, pair, dtype=dtype)


@pytest.mark.parametrize("pair", ["tiny-llama", "folders"])
def test_devices_that_are_not_there_are_refused(
    pair: str, on_disk: dict[str, Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = on_disk["llama"].names if pair == "folders" else pair
    assert "device 'cuda' is not there" in refusal(PairError, names, device="cuda")
    assert "device 'cuda:3' is not there" in refusal(PairError, names, device="cuda:3")
    assert "unknown device 'gpu'" in refusal(PairError, names, device="gpu")
    assert load_pair(names, device="auto").model.device.type == "cpu"  # no GPU to split it over


def cut(file: str) -> Callable[[Folders], object]:
    """Leaves the first half of a file of the target."""

    def damage(folders: Folders) -> None:
        path = folders.target / file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return damage


def rewrite(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Folders], object]:
    """Changes the target's tensors."""

    def damage(folders: Folders) -> None:
        path = folders.target / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return damage


def without_tokenizer(folders: Folders) -> None:
    for file in folders.target.glob("tokenizer*"):
        file.unlink()


def edit_vocabulary(folders: Folders, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
    """Change the token ids in the tokenizer's file."""
    file = folders.target / "tokenizer.json"
    data = json.loads(file.read_text())
    data["model"]["vocab"] = change(data["model"]["vocab"])
    file.write_text(json.dumps(data))


def shift_ids(folders: Folders) -> None:
    edit_vocabulary(folders, lambda vocab: {token: i + 1000 for token, i in vocab.items()})


def forget_words(folders: Folders) -> None:
    edit_vocabulary(folders, lambda vocab: dict(list(vocab.items())[:1]))


NORM = "model.layers.1.input_layernorm.weight"


DAMAGE: dict[str, tuple[Callable[[Folders], object], type[ValueError], str]] = {
    "weights cut": (cut("model.safetensors"), CheckpointError, "truncated or damaged"),
    "weights of bytes": (
        lambda f: (f.target / "model.safetensors").write_bytes(b"\x00" * 999),
        CheckpointError,
        "truncated or damaged",
    ),
    "weights gone": (
        lambda f: (f.target / "model.safetensors").unlink(),
        PairError,
        "no file named model.safetensors",
    ),
    "a tensor gone": (rewrite(lambda t: t.pop(NORM)), CheckpointError, f"lack {NORM}"),
    "a tensor of another shape": (
        rewrite(lambda t: t.update({NORM: torch.zeros(3)})),
        CheckpointError,
        f"lack {NORM} in the shape that its config.json tells",
    ),
    "config cut": (cut("config.json"), PairError, "config.json' is not a valid JSON file"),
    "config of text": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "llama", "hidden_size": "big"}'),
        PairError,
        "hidden_size",
    ),
    "config of an unknown model": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "no-such"}'),
        PairError,
        "no-such",
    ),
    "config of no language model": (
        lambda f: (f.target / "config.json").write_text('{"model_type": "vit"}'),
        PairError,
        "cannot load",
    ),
    "tokenizer cut": (cut("tokenizer.json"), PairError, "cannot load"),
    "tokenizer empty": (
        lambda f: (f.target / "tokenizer.json").write_text("{}"),
        PairError,
        "cannot load",
    ),
    "tokenizer gone": (without_tokenizer, PairError, "tokenizer"),
    "tokenizer of another vocabulary": (
        shift_ids,
        PairError,
        "writes token id 1220, but the target has 260",  # the space, 220 of the bytes, moved by 1000
    ),
    "tokenizer without words": (
        forget_words,
        PairError,
        "knows no word of a plain text",
    ),
    "drafter gone": (lambda f: shutil.rmtree(f.drafter), PairError, "expected a local folder or a hub id"),
    "drafter without config": (
        lambda f: (f.drafter / "config.json").unlink(),
        CheckpointError,
        "holds no config.json",
    ),
    "drafter for a target": (
        lambda f: shutil.rmtree(f.drafter) or shutil.copytree(f.target, f.drafter),
        CheckpointError,
        "not a DFlash checkpoint",
    ),
}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_folders_are_refused(
    what: str, kind: str, on_disk: dict[str, Folders], tmp_path: Path
) -> None:
    damage, error, words = DAMAGE[what]
    folders = on_disk[kind].copy(tmp_path)
    damage(folders)
    assert words in refusal(error, folders.names)


@pytest.mark.usefixtures("offline")
def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folders = write_pair(tmp_path, "qwen3", max_shard_size="200KB")
    shard = sorted(folders.target.glob("model-*-of-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(PairError, folders.names)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("pair", "named"),
    [
        (("no-such/target", "no-such/drafter"), "no-such/target"),
        (("no such/target!", "no-such/drafter"), "no such/target!"),
        ("no-such/target + no-such/drafter", "no-such/target"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
    ],
)
def test_hub_ids_out_of_reach_are_told_at_once(
    pair: Any, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1e12)
    start = time.perf_counter()
    message = refusal(PairError, pair)
    assert f"cannot load {named}" in message
    assert "a hub id that this machine can reach" in message
    assert time.perf_counter() - start < 5


@pytest.mark.usefixtures("offline")
def test_a_drafter_out_of_reach_is_named(on_disk: dict[str, Folders]) -> None:
    message = refusal(PairError, (on_disk["llama"].names[0], "no-such/drafter"))
    assert "cannot load no-such/drafter" in message


@pytest.mark.usefixtures("offline")
def test_a_tokenizer_may_have_more_tokens_than_the_tables_have_rows(
    on_disk: dict[str, Folders], tmp_path: Path
) -> None:
    folders = on_disk["llama"].copy(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|more|>", "<|and more|>"])
    tokenizer.save_pretrained(folders.target)
    pair = load(folders.names, check=False)
    assert (len(pair.tokenizer), pair.vocab_size) == (262, 260)


@pytest.mark.usefixtures("offline")
def test_a_tokenizer_may_leave_ids_out(on_disk: dict[str, Folders], tmp_path: Path) -> None:
    """Of 256 bytes 128 are kept: letters, digits and spaces; the ids of the others are nobody's."""
    folders = on_disk["llama"].copy(tmp_path)
    known = set(byte_tokenizer()("The 3 words of a prompt.").input_ids)
    edit_vocabulary(
        folders, lambda vocab: {token: i for token, i in vocab.items() if i % 2 == 0 or i in known}
    )
    pair = load(folders.names, check=False)
    assert len(pair.tokenizer) < 260 / 2 + 24
    assert pair.vocab_size == 260


def test_folders_are_found_from_where_the_user_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "drafter").mkdir(parents=True)
    monkeypatch.setenv("DDTREE_CALLER", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert locate("./org/drafter") == locate("org/drafter") == str(tmp_path / "org" / "drafter")
    assert locate("./not-there") == str(tmp_path / "not-there")  # no hub id begins like this
    assert locate("~/drafter") == str(tmp_path / "home" / "drafter")
    assert locate("org/model") == "org/model"
    assert locate("z-lab/Qwen3-4B-DFlash-b16") == "z-lab/Qwen3-4B-DFlash-b16"
