"""Columns of a saved run: what one row per round and one row per generation hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

if TYPE_CHECKING:
    from ddtree_core.decoding.records import Generation

SCHEMA_VERSION = 1
STAGES = ("draft", "tree", "verify", "accept", "commit")

_KEYS = [
    ("prompt_id", pa.string()),
    ("domain", pa.string()),
    ("pair", pa.string()),
    ("method", pa.string()),
    ("budget", pa.int32()),  # null where the method has none
    ("packed", pa.bool_()),  # null where it was not recorded
    ("temperature", pa.float64()),
]
_STAGE_SECONDS = [(f"{stage}_seconds", pa.float64()) for stage in STAGES]

ROUNDS = pa.schema(
    [
        *_KEYS,
        ("round", pa.int32()),
        ("acceptance_length", pa.int32()),  # tokens of the accepted path plus the bonus token, before any cut
        ("drafted_depth", pa.int32()),  # deepest node of the tree
        ("accepted_depth", pa.int32()),  # deepest accepted node
        ("n_nodes", pa.int32()),  # root included
        ("n_tokens", pa.int32()),  # committed, after a stop or the token limit
        ("path", pa.list_(pa.int32())),  # accepted nodes, root first
        *_STAGE_SECONDS,
    ]
)
GENERATIONS = pa.schema(
    [
        *_KEYS,
        ("n_prompt", pa.int32()),
        ("n_tokens", pa.int32()),
        ("n_rounds", pa.int32()),
        ("finish_reason", pa.string()),
        ("prefill_seconds", pa.float64()),
        *_STAGE_SECONDS,
        ("total_seconds", pa.float64()),
        ("ids", pa.list_(pa.int32())),  # new tokens
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class RunEntry:
    """A generation and the prompt it answers."""

    prompt_id: str
    domain: str
    generation: Generation
    packed: bool | None = None  # target's linear layers on packed weights


def _keys(entry: RunEntry) -> dict[str, Any]:
    made = entry.generation
    return {
        "prompt_id": entry.prompt_id,
        "domain": entry.domain,
        "pair": made.pair,
        "method": made.method,
        "budget": made.budget,
        "packed": entry.packed,
        "temperature": float(made.temperature),
    }


def _stage_seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    return {f"{stage}_seconds": float(seconds.get(stage, 0.0)) for stage in STAGES}


def rounds_table(entries: Iterable[RunEntry]) -> pd.DataFrame:
    """The rounds as `load_run` gives them, without a run to load; no rows, but columns, without rounds."""
    return pd.DataFrame(round_rows(entries), columns=ROUNDS.names)


def round_rows(entries: Iterable[RunEntry]) -> list[dict[str, Any]]:
    """Rows of `rounds.parquet`."""
    return [
        {
            **_keys(entry),
            "round": made.index,
            "acceptance_length": made.acceptance_length,
            "drafted_depth": made.drafted_depth,
            "accepted_depth": made.acceptance_length - 1,
            "n_nodes": len(made.tree),
            "n_tokens": len(made.tokens),
            "path": list(made.path),
            **_stage_seconds(made.seconds),
        }
        for entry in entries
        for made in entry.generation.rounds
    ]


def generation_row(entry: RunEntry) -> dict[str, Any]:
    """Row of `generations.parquet`."""
    made = entry.generation
    return {
        **_keys(entry),
        "n_prompt": len(made.prompt_ids),
        "n_tokens": len(made.ids),
        "n_rounds": len(made.rounds),
        "finish_reason": made.finish_reason,
        "prefill_seconds": float(made.seconds.get("prefill", 0.0)),
        **_stage_seconds(made.seconds),
        "total_seconds": float(made.seconds["total"]),
        "ids": list(made.ids),
        "text": made.text,
    }
