"""The notebooks as files: which there are, their parameters, and what their results depend on."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill

from ddtree_core.experiments.provenance import cpu_model, versions
from ddtree_core.paths import caller_path, data_dir, project_root

# How a page is put together does not change what a notebook computes.
_RENDERING = Path(__file__).parent
_YES_NO = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class Notebook:
    """A notebook file and its parameters: name → (type as annotated, default as written)."""

    path: Path
    parameters: Mapping[str, tuple[str, str]]

    @property
    def name(self) -> str:
        """File name without its ending: `03_run_ddtree`."""
        return self.path.stem


def find_notebooks(folder: Path) -> list[Notebook]:
    """Notebooks `NN_*.ipynb` of a folder in the order of their numbers, with their parameters.

    Raises ValueError if there is none, or one cannot be read.
    """
    found = []
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        try:
            inspected = papermill.inspect_notebook(path)
        except Exception as error:  # papermill and nbformat raise many kinds, all of them: not a notebook
            raise ValueError(
                f"{path} is not a notebook that can be read ({error}): restore the file"
            ) from error
        known = {name: (one["inferred_type_name"], one["default"]) for name, one in inspected.items()}
        found.append(Notebook(path, known))
    if not found:
        raise ValueError(f"no notebook like 03_name.ipynb in {folder}: run this from a complete checkout")
    return found


def select(notebooks: Sequence[Notebook], only: str | None) -> list[Notebook]:
    """Notebooks named by their number or name in a comma-separated list; all for None.

    Raises ValueError if an entry names none.
    """
    if only is None:
        return list(notebooks)
    wanted = [entry.strip() for entry in only.split(",") if entry.strip()]
    chosen = []
    for entry in wanted:
        matching = [nb for nb in notebooks if entry in (nb.name, nb.name.split("_")[0])]
        if not matching:
            raise ValueError(f"no notebook {entry!r}: there are {', '.join(nb.name for nb in notebooks)}")
        chosen += matching
    return [notebook for notebook in notebooks if notebook in chosen]


def assign(
    notebooks: Sequence[Notebook],
    given: Iterable[tuple[str, str]],
    defaults: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Typed parameters for each notebook by name, of those that it has; `given` wins over `defaults`.

    Raises ValueError if no notebook has a given parameter, or a value does not fit its annotated type.
    """
    known = sorted({name for notebook in notebooks for name in notebook.parameters})
    given = list(given)
    for name, _ in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"no notebook has a parameter {name!r}: {hint}known are {', '.join(known)}")
    texts = {**(defaults or {}), **dict(given)}
    return {
        notebook.name: {
            name: parse_value(name, texts[name], type_name)
            for name, (type_name, _) in notebook.parameters.items()
            if name in texts
        }
        for notebook in notebooks
    }


def parse_value(name: str, text: str, type_name: str) -> Any:
    """Value of a parameter from the command line by its annotation: bool, int, float, str, or a list of one.

    A list is written `8,16` or as JSON. Without an annotation JSON decides, and other text is a string.
    """
    type_name = type_name.replace(" ", "")
    try:
        if type_name.startswith("list"):
            inner = type_name[5:-1] or "None"
            as_json = text.lstrip().startswith("[")
            items = json.loads(text) if as_json else [item for item in text.split(",") if item.strip()]
            return [_scalar(item if isinstance(item, str) else json.dumps(item), inner) for item in items]
        return _scalar(text, type_name)
    except ValueError as error:
        example = {"int": "32", "float": "0.7", "bool": "true", "list[int]": "8,16", "list[str]": "chat,code"}
        hint = f", for example {example[type_name]}" if type_name in example else ""
        raise ValueError(f"parameter {name!r} takes {type_name}{hint}, not {text!r}") from error


def _scalar(text: str, type_name: str) -> Any:
    text = text.strip() if type_name != "str" else text
    if type_name == "str":
        return text
    if type_name == "bool":
        if text.lower() not in _YES_NO:
            raise ValueError("neither true nor false")
        return _YES_NO[text.lower()]
    if type_name in ("int", "float"):
        return int(text) if type_name == "int" else float(text)
    try:
        return json.loads(text)
    except ValueError:
        return text


def digest(notebook: Notebook, parameters: Mapping[str, Any]) -> str:
    """Fingerprint of all that a notebook's results depend on.

    Its cells, its parameters, the package, the prompts and weights that ship with the workbook, the versions
    of Python and the packages that decide results, and the processor: speeds of another one are not ours.
    """
    content = nbformat.read(notebook.path, as_version=4)
    cells = [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in content.cells]
    state = {
        "cells": cells,
        "parameters": dict(parameters),
        "versions": versions(),
        "cpu": cpu_model(),
        "data": str(data_dir()),
        "files": _file_digests(),
        "named": _named_digests(parameters),
    }
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _named_digests(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the files hold that parameters name; a folder counts by its place and the time of its change."""
    values = [value if isinstance(value, list) else [value] for value in parameters.values()]
    names = [
        name for value in values for text in value if isinstance(text, str) for name in text.split(" + ")
    ]
    digests = []
    for name in filter(None, map(str.strip, names)):
        try:
            path = caller_path(name)
            changed = path.stat().st_mtime_ns
        except (OSError, ValueError):  # no path, but a name or a text
            continue
        digests.append((str(path), _file_digest(path, changed) if path.is_file() else str(changed)))
    return digests


def _file_digests() -> list[tuple[str, str]]:
    package, data = project_root() / "ddtree_core", data_dir()
    code = [path for kind in ("py", "js", "css") for path in package.rglob(f"*.{kind}")]
    code = [path for path in code if not path.is_relative_to(_RENDERING)]
    shipped = [path for part in ("prompts", "models") for path in (data / part).rglob("*") if path.is_file()]
    return sorted((path.name, _file_digest(path, path.stat().st_mtime_ns)) for path in code + shipped)


@functools.cache
def _file_digest(path: Path, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
