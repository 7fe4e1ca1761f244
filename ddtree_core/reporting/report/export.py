"""Executed notebooks as HTML that opens offline and asks nothing of any host.

nbconvert's own page is blank without a network: its scripts come from elsewhere. The template here leaves
them out, and widgets are shown by the picture or text that they carry for such readers.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbconvert import HTMLExporter
from nbformat import NotebookNode
from traitlets.config import Config

TEMPLATES = Path(__file__).with_name("templates")
# No widget view and no JavaScript: neither works without a kernel or a script from elsewhere.
SHOWN = [
    "text/html",
    "text/markdown",
    "image/svg+xml",
    "image/png",
    "image/jpeg",
    "text/latex",
    "text/plain",
]
PICTURES = ("image/svg+xml", "image/png", "image/jpeg")
LEAD = (
    "Draft-tree speculative decoding with block-diffusion drafters, measured on this machine: "
    "every notebook below claims one thing, shows it, and says what it shows."
)


@dataclass(frozen=True)
class Progress:
    """How far a notebook has come in the latest report, where it is not done."""

    state: str  # "queued", "running", "failed", "interrupted" or "not reached"
    detail: str = ""  # since when it runs, or why it failed


@dataclass(frozen=True)
class Card:
    """What the front page says about one notebook."""

    name: str
    title: str
    claim: str
    finished: bool = False
    stale: bool = False
    progress: Progress | None = None
    facts: Sequence[str] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    thumbnail: str = ""  # data URI


def exporter() -> HTMLExporter:
    """The HTML exporter with the report's template."""
    config = Config()
    config.NbConvertBase.display_data_priority = SHOWN
    return HTMLExporter(
        config=config,
        template_name="report",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_anchor_links=True,
    )


def notebook_page(
    html: HTMLExporter,
    notebook: NotebookNode,
    name: str,
    pages: Sequence[Card],
    facts: Sequence[tuple[str, str]],
) -> str:
    """HTML of one executed notebook with links to the other `pages` and `facts` about the run at its foot."""
    # The state of the widgets is of no use here, and large.
    notebook = copy.copy(notebook)
    notebook["metadata"] = NotebookNode({k: v for k, v in notebook.metadata.items() if k != "widgets"})
    title, _ = title_and_claim(notebook)
    report = {
        "name": name,
        "facts": list(facts),
        "pages": [{"name": page.name, "title": page.title} for page in pages if page.finished],
    }
    resources = {"metadata": {"name": title or name}, "report": report}
    text, _ = html.from_notebook_node(notebook, resources=resources)
    return text


def overview_page(html: HTMLExporter, cards: Sequence[Card], facts: Sequence[tuple[str, str]]) -> str:
    """HTML of the front page."""
    template = html.environment.get_template("overview.html.j2")

    def include_css(name: str) -> str:
        return f"<style>\n{(TEMPLATES / 'report' / name).read_text(encoding='utf-8')}</style>"

    return template.render(cards=cards, facts=facts, lead=LEAD, include_css=include_css)


def title_and_claim(notebook: NotebookNode) -> tuple[str, str]:
    """First heading of a notebook and the first paragraph after it, in Markdown; empty if there is none."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    title, _, rest = text.strip().partition("\n")
    if not title.startswith("# "):
        return "", ""
    blocks = (block.strip() for block in rest.split("\n\n"))
    claim = next((block for block in blocks if block and not block.startswith("#")), "")
    return title[2:].strip(), claim


def first_picture(notebook: NotebookNode) -> str:
    """First picture among the outputs as a data URI, "" if there is none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            for kind in PICTURES:
                if kind in data:
                    picture = data[kind]
                    if kind == "image/svg+xml":
                        picture = base64.b64encode(picture.encode()).decode()
                    return f"data:{kind};base64,{''.join(picture.split())}"
    return ""
