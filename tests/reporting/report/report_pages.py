"""Small notebooks for the tests of the report, and what a page of it asks a browser to load."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ddtree_core.reporting.figures import memory_bars
from ddtree_core.reporting.report.pages import STAMP

PARAMETERS = (
    'pair: str = "tiny"  # target and drafter\n'
    "budgets: list[int] = [8, 16]  # draft-tree nodes\n"
    "temperature: float = 0.0  # 0 is greedy\n"
    "fast: bool = False"
)
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
TREE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="300" height="80" viewBox="0 0 300 80">'
    '<g id="tree"><title>token 5</title><rect width="90" height="30" fill="#0072B2"/>'
    '<text x="8" y="20" fill="#fff">Paris</text></g></svg>'
)


def write_notebook(folder: Path, name: str, *code: str, parameters: str = PARAMETERS) -> Path:
    """`<name>.ipynb` with a title, a claim, a parameters cell and code cells."""
    cells = [
        new_markdown_cell(f"# Title of {name}\n\nThe claim of *{name}*.\n\nMore text."),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *(new_code_cell(source) for source in code),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    return path


def write_executed(source: Path, reports: Path) -> None:
    """What a run would leave in `reports`: a figure, a tree with a widget, a table, text and a warning."""
    import pandas as pd

    notebook = nbformat.read(source, as_version=4)
    figure = memory_bars(pd.DataFrame({"moment": ["before", "after"], "gib": [0.5, 1.0]}))
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "m", "version_major": 2}}
    shown: list[dict[str, Any]] = [
        figure._repr_mimebundle_(),  # pyright: ignore[reportAttributeAccessIssue]
        {**widget, "image/svg+xml": TREE, "text/plain": "TreeView(1 rounds)"},
        {"text/html": pd.DataFrame({"τ": [2.5]}).to_html(), "text/plain": "2.5"},
    ]
    for data in shown:
        cell = new_code_cell("show()", outputs=[new_output("display_data", data)])
        notebook.cells.append(cell)
    streams = [new_output("stream", name=kind, text=f"on {kind}") for kind in ("stdout", "stderr")]
    notebook.cells.append(new_code_cell("print()", outputs=streams))
    notebook.metadata["widgets"] = {
        "application/vnd.jupyter.widget-state+json": {"state": {"m": {"secret": "x" * 1000}}}
    }
    notebook.metadata[STAMP] = make_stamp()
    reports.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, reports / source.name)


def make_stamp() -> dict[str, Any]:
    """Provenance of a run of half a minute, with a digest that no notebook has."""
    return {
        "digest": "0",
        "given": {},
        "parameters": {"pair": '"tiny"'},
        "seconds": 31.5,
        "time": "2026-05-04T03:02:01+00:00",
        "command": "./workbook report",
        "commit": {"id": "0123456789abcdef", "dirty": True},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.24.0", "ddtree_core": "0.1.0"},
        "hardware": {"cpu": "A <fast> CPU", "cores": 2, "threads": 2, "memory_gib": 23.5, "gpus": []},
    }


class _Loads(HTMLParser):
    """Collects every address that a browser fetches by itself; links that are to be clicked are none."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        for name, value in attrs:
            loads = name in ("src", "srcset", "poster", "data", "xlink:href")
            loads |= name == "href" and tag in ("link", "use", "image")
            if loads and value:
                self.found.append(value)
            if name == "style" and value:
                self._css(value)

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self._css(data)

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def _css(self, text: str) -> None:
        self.found += [address.strip("'\" ") for address in re.findall(r"url\(([^)]*)\)", text)]
        self.found += re.findall(r"@import\s+['\"]([^'\"]*)", text)


def loads_of(page: Path) -> list[str]:
    """Addresses outside the page itself that a browser fetches to show it."""
    parser = _Loads()
    parser.feed(page.read_text(encoding="utf-8"))
    return [address for address in parser.found if not address.startswith(("data:", "#"))]
