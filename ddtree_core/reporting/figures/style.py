"""The look shared by all figures: one colour per method, direct labels, provenance at the foot."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullFormatter

INK, MUTED, FAINT = "#1F2933", "#5F6B7A", "#D9DEE4"
SLOWER = "#F6ECE6"  # ground of a region where a method loses
# Okabe and Ito's colours, distinguishable with any colour vision; budgets of DDTree differ in lightness only.
METHOD_COLOURS = {"autoregressive": "#6B7280", "dflash": "#D55E00"}
_BUDGETS = LinearSegmentedColormap.from_list(
    "budgets", ["#9AD0F0", "#56B4E9", "#2A96D6", "#0072B2", "#084E86", "#062F57", "#03172D"]
)
STAGE_COLOURS = {
    "draft": "#CC79A7",
    "tree": "#009E73",
    "verify": "#56616F",
    "accept": "#E3C800",
    "commit": "#AEB6C0",
}
RC: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],  # ships with matplotlib, so figures are the same everywhere
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "grid.color": "#E9ECF0",
    "grid.linewidth": 0.8,
    "text.color": INK,
    "text.parse_math": False,  # a `$` in a name is a dollar, so no tick may be set as a formula either
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "svg.fonttype": "path",
    "svg.hashsalt": "ddtree",
}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8.5, "borderaxespad": 0.2, "columnspacing": 1.4}
WIDTH = 7.6  # inches: a title and a provenance line fit
HEADER, FOOTER = 0.64, 0.34  # inches kept for title and provenance


class ReportFigure(Figure):
    """A matplotlib Figure that notebooks show as SVG with a text alternative, whatever backend is set."""

    summary = ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        buffer = io.StringIO()
        with mpl.rc_context(RC):
            self.savefig(buffer, format="svg", metadata={"Date": None})
        # What stands before the root element (XML declaration, doctype) has no place inside a page.
        svg = buffer.getvalue()
        return {"image/svg+xml": svg[svg.index("<svg") :], "text/plain": self.summary}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw inside this context; the caller's own matplotlib settings come back after it."""
    with mpl.rc_context({**mpl.rcParamsDefault, **RC, "backend": mpl.rcParams["backend"]}):
        yield


def canvas(
    title: str,
    subtitle: str,
    caption: str,
    size: tuple[float, float],
    grid: tuple[int, int] = (1, 1),
    **shared: Any,
) -> tuple[ReportFigure, np.ndarray]:
    """A figure with title, subtitle and provenance line, and its axes in an array of shape `grid`.

    `size` is the space for the axes in inches; title and caption come on top of it.
    """
    heights = [HEADER, size[1], FOOTER if caption else 0.08]
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.05, wspace=0.02, hspace=0.02)
    figure = ReportFigure(figsize=(size[0], sum(heights)), layout=layout, facecolor="white")
    parts: Any = figure.subfigures(3, 1, height_ratios=heights, hspace=0)
    head, body, foot = parts
    head.text(0.012, 1 - 0.14 / HEADER, title, fontsize=12.5, fontweight="bold", va="top")
    head.text(0.012, 1 - 0.40 / HEADER, subtitle, fontsize=9, color=MUTED, va="top")
    foot.text(0.012, 0.10 / FOOTER, caption, fontsize=6.8, color=MUTED, va="bottom")
    figure.summary = f"{title}{' ' if title.endswith('?') else '. '}{subtitle}"
    return figure, body.subplots(*grid, squeeze=False, **shared)


def without_rounds(title: str, caption: str) -> ReportFigure:
    """What a figure of rounds shows where there is none: its title and one sentence."""
    sentence = "There is no round with drafts to show"
    with house_style():
        figure, grid = canvas(title, sentence, caption, (WIDTH, 0.1))
        grid[0, 0].axis("off")
    return figure


def colour(method: str, budget: Any = None) -> str:
    """Colour of a variant, the same in every figure; DDTree darkens from budget 4 to 256."""
    if method in METHOD_COLOURS:
        return METHOD_COLOURS[method]
    if budget is None or pd.isna(budget):
        return "#0072B2"
    return to_hex(_BUDGETS(np.clip((np.log2(max(float(budget), 1.0)) - 2) / 6, 0.0, 1.0)))


def unique(table: pd.DataFrame, column: str) -> list[Any]:
    """Values of a column in order of appearance."""
    return list(table[column].unique())


def rows_of(table: pd.DataFrame, **chosen: Any) -> pd.DataFrame:
    """Rows whose columns have the given values."""
    for column, value in chosen.items():
        table = table.loc[table[column] == value]
    return table


def drafting(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the methods that draft; raises ValueError if there are only others."""
    chosen = table.loc[table["method"] != "autoregressive"]
    if chosen.empty and len(table):
        raise ValueError("no method of this table drafts tokens: decode with 'dflash' or 'ddtree' as well")
    return chosen


def beside(axes: Axes, text: str, at: tuple[float, float], fontsize: float = 8.5, **style: Any) -> None:
    """Text just to the right of a point."""
    axes.annotate(text, at, (5, 0), textcoords="offset points", va="center", fontsize=fontsize, **style)


def shared_label(grid: np.ndarray, text: str) -> None:
    """One label under panels that share their horizontal axis."""
    grid[0, 0].get_figure(root=False).supxlabel(text, fontsize=RC["axes.labelsize"], color=MUTED)


def log_ticks(axis: Axis, form: str) -> None:
    """Ticks of a logarithmic axis in the given format: matplotlib's own are formulas."""
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def quiet(axes: Axes, keep: str = "bottom") -> None:
    """Leave only the spines named in `keep` and no tick marks."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in keep.split())
    axes.tick_params(length=0)
