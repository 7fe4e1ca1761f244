"""A target and its drafter, loaded and checked against each other."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ddtree_core.models import memory
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.draft_config import CheckpointError, parse_config, read_config
from ddtree_core.models.drafter import Drafter, DraftModel
from ddtree_core.models.packed import can_pack, pack_linears
from ddtree_core.models.registry import DEFAULT_PAIR, PAIRS, PairSpec
from ddtree_core.models.smollm2 import DownloadError, smollm2_folder
from ddtree_core.models.target import Target, check_supported
from ddtree_core.models.tiny import BlurredLookahead, byte_tokenizer, tiny_model
from ddtree_core.paths import data_dir


class PairError(ValueError):
    """A pair that is unknown, cannot be fetched or does not fit together; the message tells what to do."""


@dataclass(frozen=True, eq=False)
class ModelPair:
    """A loaded target and drafter that belong together, with their tokenizer."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft: DraftModel
    packed: bool = False  # linears run through oneDNN-packed weights
    revisions: dict[str, str | None] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)  # arguments for the chat template

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def max_positions(self) -> int | None:
        """Positions that the target was made for, prompt and answer together."""
        return getattr(self.model.config.get_text_config(decoder=True), "max_position_embeddings", None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text, as in `generate`: the generation config's, else the tokenizer's."""
        config = self.model.generation_config
        ids: Any = (
            self.tokenizer.eos_token_id
            if config is None or config.eos_token_id is None
            else config.eos_token_id
        )
        return () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)

    def open_target(self, features: bool = True) -> Target:
        """The target for one generation; without `features` nothing is captured (autoregressive decoding)."""
        return Target(self.model, self.draft.layer_ids if features else (), self.draft.device)

    def open_drafter(self, prompt_ids: list[int]) -> Drafter:
        """The drafter for one generation."""
        return self.draft.open(self.model, prompt_ids)


def load_pair(
    pair: str | tuple[str, str] = DEFAULT_PAIR,
    *,
    device: str | None = None,
    dtype: torch.dtype | str | None = None,
    revision: str | tuple[str | None, str | None] | None = None,
    packed: bool | None = None,
    template: dict[str, Any] | None = None,
) -> ModelPair:
    """Load a known pair by name, or a target and a drafter given as local folders or hub ids.

    These are a tuple (target, drafter) or one string "TARGET + DRAFTER".

    `device`: "cpu", "cuda", "cuda:1", or "auto" to split the target over all GPUs (default: the GPUs if there
    are any). `dtype`: default float32 on a CPU, bfloat16 on GPUs. `revision`: hub revision of both or of
    (target, drafter). `packed`: oneDNN-packed linears (default: on a CPU in float32). `template`: arguments
    for the chat template (default: as the drafter was trained, where known). Raises `PairError`,
    `CheckpointError`, `UnsupportedModelError` or `DownloadError`, each with one sentence.
    """
    spec = find_pair(pair)
    device = _device(device)
    if spec.tiny:
        loaded = _load_tiny(spec, device, _dtype(dtype, "cpu"))
    else:
        revisions = revision if isinstance(revision, tuple) else (revision, revision)
        loaded = _load(spec, device, _dtype(dtype, device), revisions)
    loaded = replace(loaded, template=spec.template if template is None else template)
    pack = can_pack(loaded.model) if packed is None else packed
    if not pack:
        return loaded
    pack_linears(loaded.model)
    if isinstance(loaded.draft, nn.Module):
        pack_linears(loaded.draft)
    return replace(loaded, packed=True)


def find_pair(pair: str | tuple[str, str]) -> PairSpec:
    """The registry's row of that name, or a row without facts for two folders or hub ids; see `load_pair`.

    Raises `PairError` for an unknown name.
    """
    if isinstance(pair, str) and " + " in pair:
        target, drafter = (part.strip() for part in pair.split(" + ", 1))
        pair = (target, drafter)
    if not isinstance(pair, str):
        target, drafter = pair
        return PairSpec(name=Path(target).name, target=target, drafter=drafter)
    if pair not in PAIRS:
        raise PairError(
            f"unknown pair {pair!r}; known are {', '.join(PAIRS)}, or name two folders or hub ids as "
            "(target, drafter) or 'TARGET + DRAFTER'"
        )
    return PAIRS[pair]


def _device(device: str | None) -> str:
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


def _dtype(dtype: torch.dtype | str | None, device: str) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device == "cpu" else torch.bfloat16
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found not in (torch.float32, torch.bfloat16):
        raise PairError(
            f"dtype {dtype} is not supported, expected float32 or bfloat16 (float16 ruins drafters)"
        )
    return found


def _load_tiny(spec: PairSpec, device: str, dtype: torch.dtype) -> ModelPair:
    model = tiny_model(spec.tiny or "llama")
    model = model.to(device="cuda" if device == "auto" else device, dtype=dtype)  # pyright: ignore[reportCallIssue]
    return ModelPair(spec.name, model, byte_tokenizer(), BlurredLookahead())


def _load(
    spec: PairSpec, device: str, dtype: torch.dtype, revisions: tuple[str | None, str | None]
) -> ModelPair:
    if spec.parameters:
        memory.check_fits(spec.name, spec.parameters, dtype, device)
    own = spec.name == DEFAULT_PAIR
    target = str(smollm2_folder()) if own else spec.target
    config = fetch(target, lambda: AutoConfig.from_pretrained(target, revision=revisions[0]))
    if not spec.parameters:
        parameters = fetch(target, lambda: memory.parameter_count(config))
        memory.check_fits(spec.name, parameters, dtype, device)
    draft_folder = (
        data_dir() / "models" / "smollm2-135m-dflash" if own else _draft_folder(spec.drafter, revisions[1])
    )
    # A drafter that does not belong to the target is refused before the target's weights are read.
    parse_config(read_config(draft_folder), config.get_text_config(decoder=True), where=str(draft_folder))
    tokenizer = fetch(target, lambda: AutoTokenizer.from_pretrained(target, revision=revisions[0]))
    _check_tokenizer(tokenizer, config, target)
    model = _load_target(target, revision=revisions[0], dtype=dtype, device_map=_device_map(device))
    draft = load_drafter(draft_folder, model, device=_head_device(model), dtype=dtype)
    commits = {"target": getattr(model.config, "_commit_hash", None) or revisions[0], "drafter": revisions[1]}
    return ModelPair(spec.name, model, tokenizer, draft, revisions=commits)


def _load_target(target: str, **options: Any) -> PreTrainedModel:
    """The language model; of a multimodal checkpoint (Qwen3.5, 3.6) the library reads no vision tower."""
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
    model, info = fetch(target, lambda: AutoModelForCausalLM.from_pretrained(target, **options))
    # The library fills what it does not find with random numbers.
    if lacking := sorted(info["missing_keys"]) + sorted(name for name, *_ in info["mismatched_keys"]):
        raise CheckpointError(
            f"the weights in {target} lack {', '.join(lacking[:4])}{' …' if len(lacking) > 4 else ''} in the "
            f"shape that its config.json tells; fetch them again"
        )
    check_supported(model)
    return model.eval()


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, target: str) -> None:
    vocabulary = config.get_text_config(decoder=True).vocab_size
    # Vocabularies are padded, but never to twice the size: that few tokens mean that its files are missing.
    if not vocabulary <= 2 * len(tokenizer) <= 2 * vocabulary:
        raise PairError(
            f"the tokenizer of {target} has {len(tokenizer)} tokens, but target and drafter have "
            f"{vocabulary}; use the tokenizer that the pair was made for"
        )


def _device_map(device: str) -> str | dict[str, str] | None:
    return None if device == "cpu" else "auto" if device == "auto" else {"": device}


def _head_device(model: PreTrainedModel) -> torch.device:
    """Where the target's logits appear: the drafter lives there, beside the output head that it shares."""
    head: Any = model.get_output_embeddings()
    return model.device if head.weight.device.type == "meta" else head.weight.device


def _draft_folder(drafter: str, revision: str | None) -> Path:
    if Path(drafter).is_dir():
        return Path(drafter)
    patterns = ["*.json", "*.safetensors"]
    return Path(
        fetch(drafter, lambda: snapshot_download(drafter, revision=revision, allow_patterns=patterns))
    )


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


__all__ = ["DEFAULT_PAIR", "PAIRS", "DownloadError", "ModelPair", "PairError", "PairSpec", "load_pair"]
