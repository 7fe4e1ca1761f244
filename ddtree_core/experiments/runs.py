"""Run folders: how results pass from one notebook to the next, and to whoever checks them later.

A run is `data/runs/<run_id>/` with `rounds.parquet`, `generations.parquet` and `run.json`. It appears whole
or not at all: the files are written beside it and moved into place, so a killed notebook leaves earlier runs
as they were. Moving and reading wait for each other, so that of several writers each leaves a whole run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from ddtree_core.experiments.provenance import describe, provenance
from ddtree_core.experiments.schema import (
    GENERATIONS,
    ROUNDS,
    SCHEMA_VERSION,
    RunEntry,
    generation_row,
    round_rows,
)
from ddtree_core.paths import data_dir

__all__ = ["Run", "RunEntry", "check_run_folder", "list_runs", "load_run", "save_run"]

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LOCK_SECONDS = 60  # a folder is moved or read in much less
_TABLES = {"rounds": ROUNDS, "generations": GENERATIONS}


@dataclass(frozen=True)
class Run:
    """A saved run: one row per round, one row per generation, and where they come from."""

    rounds: pd.DataFrame
    generations: pd.DataFrame
    info: dict[str, Any]

    @property
    def caption(self) -> str:
        """Number of prompts, hardware, versions and commit, for the foot of a figure."""
        return describe(self.info, n=f"n = {self.generations['prompt_id'].nunique()} prompts")


def check_run_folder(run_id: str, root: Path | None = None) -> Path:
    """Return the folder of `run_id` after making sure that it can be written; call it before decoding.

    Raises ValueError if the name could leave the runs folder or the folder cannot be written.
    """
    folder = _folder(run_id, root)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{run_id}.", dir=folder.parent):
            pass
        if folder.exists():
            with _locked(folder.parent):  # else another writer may be between its two renames
                if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
                    raise PermissionError(f"{folder} is not a folder that this user may change")
    except OSError as error:
        raise ValueError(
            f"run {run_id!r} cannot be written under {folder.parent} ({error.strerror or error}): "
            "free the place, or set DDTREE_DATA to a folder that can be written"
        ) from error
    return folder


def save_run(
    run_id: str,
    generations: Iterable[RunEntry],
    *,
    parameters: Mapping[str, Any] | None = None,
    models: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> Path:
    """Save a run under `run_id` in place of an earlier one of that name and return its folder.

    `models` holds names and revisions; `extra` joins `run.json` as it is. `root` defaults to `data/runs`.
    Raises ValueError as `check_run_folder` does.
    """
    folder = check_run_folder(run_id, root)
    entries = list(generations)
    rows = {"rounds": round_rows(entries), "generations": [generation_row(entry) for entry in entries]}
    info = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        **provenance(),
        "models": dict(models or {}),
        "parameters": dict(parameters or {}),
        **dict(extra or {}),
    }
    partial = Path(tempfile.mkdtemp(prefix=f".{run_id}.", suffix=".partial", dir=folder.parent))
    try:
        for name, schema in _TABLES.items():
            stamped = schema.with_metadata({"schema_version": str(SCHEMA_VERSION)})
            table = pa.Table.from_pylist(rows[name], schema=stamped)
            pq.write_table(table, partial / f"{name}.parquet", compression="zstd")
        text = json.dumps(info, indent=2, ensure_ascii=False, default=str)
        (partial / "run.json").write_text(text + "\n", encoding="utf-8")
        partial.chmod(0o755)  # mkdtemp's folders are private, a run is to be read by others
        with _locked(folder.parent):
            _swap(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return folder


def load_run(run_id: str, root: Path | None = None) -> Run:
    """Load a saved run; nullable integer columns keep their nulls.

    Raises ValueError if there is no such run, a file of it is missing or damaged, or it was written with
    another schema version.
    """
    folder = _folder(run_id, root)
    with _locked(folder.parent):
        if not folder.exists():
            folder = _previous(folder)  # a save was killed between its two renames
        if not folder.exists():
            saved = ", ".join(list_runs(root)) or "none"
            raise ValueError(
                f"no run {run_id!r} under {folder.parent}: run the notebook that saves it, "
                f"or choose one of the saved runs ({saved})"
            )
        try:
            info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            tables = {name: pq.read_table(folder / f"{name}.parquet") for name in _TABLES}
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ValueError(
                f"run {run_id!r} is incomplete or damaged ({error}): run the notebook that saves it again"
            ) from error
    found = {str(info.get("schema_version")), *map(_version_of, tables.values())}
    if found != {str(SCHEMA_VERSION)}:
        raise ValueError(
            f"run {run_id!r} was written with schema version {' and '.join(sorted(found))}, "
            f"this package reads version {SCHEMA_VERSION}: run the notebook that saves it again"
        )
    return Run(_frame(tables["rounds"]), _frame(tables["generations"]), info)


def list_runs(root: Path | None = None) -> list[str]:
    """Names of the saved runs, sorted."""
    runs = root if root is not None else data_dir() / "runs"
    names = {path.parent.name for path in runs.glob("*/run.json")}
    return sorted(name for name in names if not name.startswith("."))


def _folder(run_id: str, root: Path | None) -> Path:
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"run_id {run_id!r} cannot name a folder: use 1 to 100 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit"
        )
    return (root if root is not None else data_dir() / "runs") / run_id


def _previous(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


@contextmanager
def _locked(runs: Path) -> Iterator[None]:
    """No other process moves or reads a run meanwhile; a folder that cannot be written needs no lock."""
    if not os.access(runs, os.W_OK):
        yield
        return
    try:
        with FileLock(runs / ".lock", timeout=LOCK_SECONDS):
            yield
    except Timeout as error:
        raise ValueError(
            f"another process has been holding {runs / '.lock'} for {LOCK_SECONDS} s: end it, and try again"
        ) from error


def _swap(partial: Path, folder: Path) -> None:
    """Put `partial` where `folder` is; at every moment one whole run can be loaded."""
    previous = _previous(folder)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    partial.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)


def _version_of(table: pa.Table) -> str:
    return (table.schema.metadata or {}).get(b"schema_version", b"none").decode()


def _frame(table: pa.Table) -> pd.DataFrame:
    nullable = {pa.int32(): pd.Int32Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=nullable.get)
