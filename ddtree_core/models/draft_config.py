"""The shape of a DFlash checkpoint, read from a config.json of either published layout and checked against
the target.

The original (z-lab) layout and the `speculators` layout leave several rules to the reader: what a layer id
means, which layers are causal inside the block, where the rotary base stands. They are applied in here, once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Qwen3Config

from ddtree_core.models.draft_fields import (
    READ_OF_BODY,
    READ_OF_DFLASH_CONFIG,
    READ_OF_ROPE,
    READ_OF_SPECULATORS,
    READ_OF_Z_LAB,
    unknown_field,
)


class CheckpointError(ValueError):
    """A draft checkpoint that cannot be used; the message tells what was wrong, what was expected, and what
    to do.
    """


@dataclass(frozen=True)
class DFlashConfig:
    """A DFlash checkpoint's shape, whatever the layout it was read from."""

    body: Qwen3Config  # the draft blocks; `vocab_size` is the target's
    block_size: int  # root and block_size − 1 masks
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # k: output of the target's block k (0-based)
    num_target_layers: int | None  # depth of the target it was trained for, where the checkpoint tells
    target_hidden_size: int
    draft_vocab_size: int  # rows of the output head
    causal: tuple[bool, ...]  # per draft layer: a slot sees only the block's earlier slots
    windows: tuple[int | None, ...]  # per draft layer: sliding window, None for full attention


def parse_config(raw: Mapping[str, Any], target: Any, where: str = "draft checkpoint") -> DFlashConfig:
    """Read a config.json of either layout and check it against the target's (text) config.

    Raises `CheckpointError` for anything that is missing, malformed, or made for another target.
    """
    speculators = raw.get("speculators_model_type") is not None
    try:
        config = _parse_speculators(raw, target, where) if speculators else _parse_z_lab(raw, target, where)
    except (AttributeError, TypeError, StrictDataclassError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(
            f"{where}: config.json holds a value that cannot be used ({reason}); fetch the checkpoint again"
        ) from error
    _check(config, target, where)
    return config


def _check(config: DFlashConfig, target: Any, where: str) -> None:
    if config.block_size < 2:
        raise CheckpointError(
            f"{where}: block_size is {config.block_size}, expected at least 2 (the root and one drafted "
            f"token)"
        )
    if config.num_target_layers not in (None, target.num_hidden_layers):
        raise CheckpointError(
            f"{where}: drafter was trained for {config.num_target_layers} target layers, this target has "
            f"{target.num_hidden_layers}; "
            "use the target it was trained for"
        )
    if config.target_hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{where}: drafter was trained for hidden size {config.target_hidden_size}, this target has "
            f"{target.hidden_size}; "
            "use the target it was trained for"
        )
    beyond = [k for k in config.target_layer_ids if not 0 <= k < target.num_hidden_layers]
    if beyond or not config.target_layer_ids:
        raise CheckpointError(
            f"{where}: target layer ids {list(config.target_layer_ids)} must lie in "
            f"0..{target.num_hidden_layers - 1}"
        )
    rows = min(config.body.vocab_size, target.vocab_size)
    if not 0 <= config.mask_token_id < rows:
        raise CheckpointError(
            f"{where}: mask token id {config.mask_token_id} is outside the vocabulary of {rows}"
        )


def check_vocabulary(config: DFlashConfig, target_rows: int, tokens: int | None, where: str) -> None:
    """Raise `CheckpointError` unless drafter and target share a vocabulary, however their tables are padded.

    `tokens` is the number of ids that the tokenizer can give; where it is not known (None), the tables must
    be equally long.
    """
    rows = config.body.vocab_size
    if rows == target_rows or (tokens is not None and tokens <= min(rows, target_rows)):
        return
    also = "" if tokens is None else f" and its tokenizer {tokens} tokens"
    raise CheckpointError(
        f"{where}: drafter has a vocabulary of {rows}, this target has {target_rows}{also}; use the target "
        f"it was trained for"
    )


def default_layer_ids(num_target_layers: int, n: int = 5) -> tuple[int, ...]:
    """The published first releases' choice of n captured blocks, for a config that names none: 1 … N − 3,
    evenly spread.
    """
    return tuple(round(1 + i * (num_target_layers - 4) / (n - 1)) for i in range(n))


def _parse_z_lab(raw: Mapping[str, Any], target: Any, where: str) -> DFlashConfig:
    inner = raw.get("dflash_config") or {}
    _check_fields(raw, READ_OF_BODY | READ_OF_Z_LAB, where)
    _check_fields(inner, READ_OF_DFLASH_CONFIG, where)
    body = _body(raw, where)
    depth = raw.get("num_target_layers") or inner.get("num_target_layers")
    ids = inner.get("target_layer_ids") or raw.get("target_layer_ids")
    ids = ids or default_layer_ids(depth or target.num_hidden_layers)
    causal = _first(raw.get("is_causal"), inner.get("is_causal"), inner.get("causal"), True)
    sliding = [kind == "sliding_attention" for kind in body.layer_types or ()]
    return DFlashConfig(
        body=body,
        block_size=_integer(_first(raw.get("block_size"), inner.get("block_size")), "block_size", where),
        mask_token_id=_integer(
            _first(inner.get("mask_token_id"), raw.get("mask_token_id")), "dflash_config.mask_token_id", where
        ),
        target_layer_ids=tuple(_integer(k, "target_layer_ids", where) for k in ids),
        num_target_layers=depth,
        target_hidden_size=raw.get("target_hidden_size") or body.hidden_size,
        draft_vocab_size=raw.get("draft_vocab_size") or body.vocab_size,
        # A causal head makes every layer causal in the block; otherwise full layers are bidirectional.
        causal=tuple(bool(inner.get("causal_head")) or (s and bool(causal)) for s in sliding),
        windows=_windows(raw, body, where),
    )


def _parse_speculators(raw: Mapping[str, Any], target: Any, where: str) -> DFlashConfig:
    kind = raw["speculators_model_type"]
    if kind != "dflash" or raw.get("sample_from_anchor"):
        raise CheckpointError(
            f"{where}: speculators model type {kind!r} is not supported, expected 'dflash' without "
            f"sample_from_anchor"
        )
    nested = _required(raw.get("transformer_layer_config"), "transformer_layer_config", where)
    _check_fields(raw, READ_OF_SPECULATORS, where)
    _check_fields(nested, READ_OF_BODY, where)
    body = _body(nested, where)
    ids = _required(raw.get("aux_hidden_state_layer_ids"), "aux_hidden_state_layer_ids", where)
    causal = not raw.get("sliding_window_non_causal", False)
    return DFlashConfig(
        body=body,
        block_size=_integer(raw.get("block_size"), "block_size", where),
        mask_token_id=_integer(raw.get("mask_token_id"), "mask_token_id", where),
        # They index hidden_states, whose entry 0 is the embedding.
        target_layer_ids=tuple(_integer(k, "aux_hidden_state_layer_ids", where) - 1 for k in ids),
        num_target_layers=raw.get("num_target_layers"),
        target_hidden_size=raw.get("target_hidden_size") or target.hidden_size,
        draft_vocab_size=raw.get("draft_vocab_size") or body.vocab_size,
        causal=tuple(causal and layer == "sliding_attention" for layer in body.layer_types or ()),
        windows=_windows(nested, body, where),
    )


def _check_fields(fields: Mapping[str, Any], read: frozenset[str], where: str) -> None:
    if unknown := unknown_field(fields, read):
        raise CheckpointError(
            f"{where}: config.json says {unknown}, which this loader does not understand and which may "
            f"change the drafts; take a checkpoint of a known layout, or remove the field if it does nothing"
        )


def _body(raw: Mapping[str, Any], where: str) -> Qwen3Config:
    fields = {
        k: v
        for k, v in raw.items()
        if k not in ("model_type", "architectures", "dflash_config", "quantization_config")
    }
    # Drafters rotate the whole head; a target's partial or multimodal rotary that a converter left in does
    # not carry over. Both fields must go: the library would let an old `rope_scaling` win.
    scaling, parameters = fields.pop("rope_scaling", None) or {}, fields.pop("rope_parameters", None) or {}
    _check_fields({**scaling, **parameters}, READ_OF_ROPE, where)
    rope = {
        k: v
        for k, v in {**scaling, **parameters}.items()
        if k not in ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    }
    fields.pop("partial_rotary_factor", None)
    rope.setdefault("rope_theta", fields.pop("rope_theta", None))
    kind = rope.setdefault("rope_type", rope.pop("type", "default"))
    rope["rope_type"] = "default" if kind == "mrope" else kind
    _required(rope["rope_theta"], "rope_theta", where)
    return Qwen3Config(**fields, rope_parameters=rope)


def _windows(raw: Mapping[str, Any], body: Qwen3Config, where: str) -> tuple[int | None, ...]:
    kinds = body.layer_types or ()
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise CheckpointError(
            f"{where}: draft layers of type {', '.join(unknown)} are not supported, expected full_attention "
            f"or sliding_attention"
        )
    sliding = [kind == "sliding_attention" for kind in kinds]
    window = _integer(raw.get("sliding_window"), "sliding_window", where) if any(sliding) else None
    return tuple(window if s else None for s in sliding)


def _first(*values: Any) -> Any:
    """The first value that is given; None where none is."""
    return next((value for value in values if value is not None), None)


def _required(value: Any, name: str, where: str) -> Any:
    if value is None:
        raise CheckpointError(
            f"{where}: config.json has no {name}; this is not a DFlash checkpoint of a known layout"
        )
    return value


def _integer(value: Any, name: str, where: str) -> int:
    if type(_required(value, name, where)) is not int:
        raise CheckpointError(f"{where}: {name} in config.json is {value!r}, expected a whole number")
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """The checkpoint's config.json; `CheckpointError` where there is none or it is not JSON."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no config.json; expected the folder of a DFlash checkpoint")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not even text
        raise CheckpointError(f"{path} is not valid JSON ({error}); fetch the checkpoint again") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} is not valid (no JSON object); fetch the checkpoint again")
    return raw


def declared_dtype(raw: Mapping[str, Any]) -> torch.dtype:
    """The dtype that a config.json declares; float32 where it declares none."""
    nested = raw.get("transformer_layer_config") or {}  # of the `speculators` layout
    named = _first(*(d.get(k) for d in (raw, nested) for k in ("dtype", "torch_dtype"))) or "float32"
    return getattr(torch, str(named).removeprefix("torch."), torch.float32)
