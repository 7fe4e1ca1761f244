"""Targets and draft folders from the hub or from disk, with one sentence for whatever goes wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ddtree_core.models.draft_config import CheckpointError
from ddtree_core.models.registry import DEFAULT_PAIR, PAIRS, PairError
from ddtree_core.models.smollm2 import smollm2_folder
from ddtree_core.models.target import check_supported
from ddtree_core.paths import caller_path, data_dir, looks_like_path


def locate(source: str) -> str:
    """Where a registry's target or drafter lies: a folder on this machine, or the hub id that it is."""
    if source == PAIRS[DEFAULT_PAIR].target:
        return str(smollm2_folder())
    if source.startswith("data/models/"):
        return str(data_dir() / source.removeprefix("data/"))
    path = caller_path(source)
    return str(path) if looks_like_path(source) or path.is_dir() else source


def load_target(
    source: str, *, device: str | None = None, dtype: torch.dtype | str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A target alone, with its tokenizer: a registered pair's by name, a local folder or a hub id.

    Options and errors are those of `load_pair`; linears are not packed.
    """
    device = choose_device(device)
    target = locate(PAIRS[source].target if source in PAIRS else source)
    config = fetch(target, lambda: AutoConfig.from_pretrained(target))
    tokenizer = read_tokenizer(target, config)
    return read_model(target, dtype=choose_dtype(dtype, device), device=device), tokenizer


def read_tokenizer(
    target: str, config: PreTrainedConfig, revision: str | None = None
) -> PreTrainedTokenizerBase:
    tokenizer = fetch(target, lambda: AutoTokenizer.from_pretrained(target, revision=revision))
    rows = config.get_text_config(decoder=True).vocab_size
    # The number of its tokens says nothing: tables are padded, ids left out, tokens added that no row has.
    ids = tokenizer("The 3 words of a prompt.", add_special_tokens=False).input_ids
    if not set(ids) - {tokenizer.unk_token_id}:
        raise PairError(f"the tokenizer of {target} knows no word of a plain text; fetch its files again")
    if (largest := max(ids)) >= rows:
        raise PairError(
            f"the tokenizer of {target} writes token id {largest}, but the target has {rows}; use the "
            f"tokenizer that it was made with"
        )
    return tokenizer


def read_model(
    target: str, *, revision: str | None = None, dtype: torch.dtype, device: str
) -> PreTrainedModel:
    """The language model; of a multimodal checkpoint (Qwen3.5, 3.6) the library reads no vision tower."""
    options = {"revision": revision, "dtype": dtype, "device_map": _device_map(device)}
    model, info = fetch(
        target,
        lambda: AutoModelForCausalLM.from_pretrained(
            target, output_loading_info=True, ignore_mismatched_sizes=True, **options
        ),
    )
    # The library fills what it does not find with random numbers.
    if lacking := sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"]):
        raise CheckpointError(
            f"the weights in {target} lack {', '.join(lacking[:4])}{' …' if len(lacking) > 4 else ''} in the "
            f"shape that its config.json tells; fetch them again"
        )
    check_supported(model)
    return model.eval()


def _device_map(device: str) -> str | dict[str, str] | None:
    return None if device == "cpu" else "auto" if device == "auto" else {"": device}


def draft_folder(drafter: str, revision: str | None) -> Path:
    if Path(drafter).is_dir():
        return Path(drafter)
    patterns = ["*.json", "*.safetensors"]
    return Path(
        fetch(drafter, lambda: snapshot_download(drafter, revision=revision, allow_patterns=patterns))
    )


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids that end a text, as in `generate`: the generation config's, else the tokenizer's."""
    config = model.generation_config
    ids: Any = (
        tokenizer.eos_token_id if config is None or config.eos_token_id is None else config.eos_token_id
    )
    return () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)


def choose_device(device: str | None) -> str:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device in (None, "auto"):
        return "cpu" if not gpus else "auto" if device or gpus > 1 else "cuda"
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise PairError(f"unknown device {device!r}; expected 'cpu', 'cuda', 'cuda:1' or 'auto'") from error
    if found.type == "cuda" and (found.index or 0) >= gpus:
        raise PairError(
            f"device {device!r} is not there ({gpus} GPUs are); use 'cpu', or 'auto' for any GPUs"
        )
    return device


def choose_dtype(dtype: torch.dtype | str | None, device: str) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device == "cpu" else torch.bfloat16
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.bfloat16):
        raise PairError(
            f"dtype {dtype} is not supported, expected float32 or bfloat16 (float16 ruins drafters)"
        )
    return found


def fetch(source: str, load: Callable[[], Any]) -> Any:
    """What `load` gives, with the libraries' errors turned into one sentence."""
    try:
        return load()
    except SafetensorError as error:
        raise CheckpointError(
            f"the weights in {source} are truncated or damaged ({error}); fetch them again"
        ) from error
    except Exception as error:  # damaged files surface as errors of every kind
        lines = str(error).strip().splitlines() or [""]
        usual = isinstance(error, (OSError, ValueError))
        reason = lines[0] if usual else f"{type(error).__name__}: {lines[-1].strip()}"
        raise PairError(
            f"cannot load {source} ({reason}); expected a local folder or a hub id that this machine can "
            f"reach (log in for gated models)"
        ) from error
