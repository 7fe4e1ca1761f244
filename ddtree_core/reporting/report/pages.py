"""The pages of the report, made from the executed notebooks in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from ddtree_core.reporting.report.export import (
    Card,
    Progress,
    exporter,
    first_picture,
    notebook_page,
    overview_page,
    title_and_claim,
)
from ddtree_core.reporting.report.notebook_source import Notebook, digest

STAMP = "workbook"  # key of the notebook metadata that tells how an executed notebook came about


def read_executed(path: Path) -> NotebookNode | None:
    """An executed notebook of the report; None if there is none, or it is damaged or not from here."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError, nbformat.ValidationError):
        return None
    return notebook if STAMP in notebook.metadata else None


def render_pages(
    notebooks: Sequence[Notebook],
    reports: Path,
    progress: Mapping[str, Progress],
    pages: Sequence[str] | None = None,
) -> int:
    """Render the front page and those of finished notebooks; the number of finished notebooks.

    `progress` tells by name which notebooks are not done in the latest report; `pages` names the notebooks
    whose pages are made (default: all, since they link to each other).
    """
    executed = {nb.name: read_executed(reports / f"{nb.name}.ipynb") for nb in notebooks}
    finished = {name: notebook for name, notebook in executed.items() if notebook is not None}
    cards = [_card(nb, finished.get(nb.name), progress.get(nb.name)) for nb in notebooks]
    html = exporter()
    for name in finished if pages is None else pages:
        notebook = finished[name]
        page = notebook_page(html, notebook, name, cards, run_facts(notebook.metadata[STAMP]))
        _write(reports / f"{name}.html", page)
    latest = max(
        (nb.metadata[STAMP] for nb in finished.values()), key=lambda stamp: stamp["time"], default={}
    )
    facts = [("Latest run" if name == "Run" else name, text) for name, text in run_facts(latest)]
    _write(reports / "index.html", overview_page(html, cards, facts))
    return len(finished)


def run_facts(stamp: Mapping[str, Any]) -> list[tuple[str, str]]:
    """When, how, on what and with which code a notebook was run, as name and text."""
    if not stamp:
        return []
    hard, code = stamp["hardware"], stamp["commit"]
    gpus = "; ".join(f"{gpu['name']} with {gpu['memory_gib']} GiB" for gpu in hard["gpus"]) or "no GPU"
    commit = "none"
    if code:
        commit = code["id"] + (", with local changes" if code["dirty"] else "")
    cpu = f"{hard['cpu']}, {hard['cores']} cores, {hard['threads']} threads, {hard['memory_gib']} GiB"
    installed = (f"{name} {version}" for name, version in stamp["versions"].items() if version)
    return [
        ("Run", f"{_when(stamp)} in {_duration(stamp['seconds'])}"),
        ("Command", stamp["command"]),
        ("Hardware", f"{cpu}; {gpus}"),
        ("Versions", ", ".join(installed)),
        ("Commit", commit),
    ]


def _card(notebook: Notebook, executed: NotebookNode | None, progress: Progress | None) -> Card:
    source = executed if executed is not None else nbformat.read(notebook.path, as_version=4)
    title, claim = title_and_claim(source)
    title = title or notebook.name
    if executed is None:
        return Card(notebook.name, title, claim, progress=progress)
    stamp = executed.metadata[STAMP]
    facts = [f"{_duration(stamp['seconds'])} on {stamp['hardware']['cpu']}", _when(stamp)]
    if stamp["commit"]:
        facts.append(f"commit {stamp['commit']['id'][:8]}{' + changes' if stamp['commit']['dirty'] else ''}")
    return Card(
        notebook.name,
        title,
        claim,
        finished=True,
        stale=stamp["digest"] != digest(notebook, stamp["given"]),
        progress=progress,
        facts=facts,
        parameters=stamp["parameters"],
        thumbnail=first_picture(executed),
    )


def _when(stamp: Mapping[str, Any]) -> str:
    return datetime.fromisoformat(stamp["time"]).strftime("%Y-%m-%d %H:%M UTC")


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
