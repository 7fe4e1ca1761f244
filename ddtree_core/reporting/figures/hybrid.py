"""Figures of hybrid targets: errors of tree verification by node, memory per tree, cost of a layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddtree_core.reporting.figures.style import (
    FAINT,
    INK,
    LEGEND,
    MUTED,
    WIDTH,
    beside,
    canvas,
    house_style,
    log_ticks,
    quiet,
    rows_of,
    unique,
)
from ddtree_core.reporting.tables.stats import numbers

_OURS = "#0072B2"
_PLACES = ("#009E73", "#D55E00", "#E3A400")
_WAYS = (_OURS, "#D55E00")
_READINGS = ("#6B7280", _OURS)
_SMALL: dict[str, Any] = {"fontsize": 7.5, "color": MUTED}
SMALLEST_ERROR = 1e-8  # errors below it are drawn there: a logarithmic axis has no zero
MIB = 2**20


def node_errors(table: pd.DataFrame, caption: str = "") -> Figure:
    """Logit error of every node of one tree, read in two ways, above the tree in its flattened order.

    `table` has one row per node and way with the columns `node`, `parent`, `depth`, `place`, `layers` (the
    way), `error` and `spread`. Nodes of the first way are coloured by `place`; the last way is ours.
    """
    first, ours = (rows_of(table, layers=name) for name in unique(table, "layers"))
    shades = dict(zip(unique(first, "place"), _PLACES, strict=False))
    with house_style():
        figure, grid = canvas(
            "Which nodes does a linear layer get wrong?",
            "Largest difference of a node's logits from plain decoding of its root path; below, the tree",
            caption,
            (WIDTH, 4.4),
            (2, 1),
            sharex=True,
            height_ratios=(2, 1),
        )
        _errors(grid[0, 0], first, ours, shades)
        _tree(grid[1, 0], first, shades)
    return figure


def _errors(axes: Axes, first: pd.DataFrame, ours: pd.DataFrame, shades: Mapping[str, str]) -> None:
    spread, way = first["spread"].iloc[0], first["layers"].iloc[0]
    for name, shade in shades.items():
        part = rows_of(first, place=name)
        error = numbers(part, "error").clip(SMALLEST_ERROR)
        axes.plot(part["node"], error, "o", color=shade, markersize=6.5, label=f"{way}: {name}")
    error = numbers(ours, "error").clip(SMALLEST_ERROR)
    label = f"{ours['layers'].iloc[0]}: every node"
    axes.plot(ours["node"], error, "D", color=_OURS, markersize=4.5, label=label, fillstyle="none")
    axes.axhline(spread, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(
        "spread of the logits", (0.0, spread), (0, 3), xycoords=("axes fraction", "data"),
        textcoords="offset points", fontsize=7.5, color=MUTED,
    )  # fmt: skip
    axes.set_yscale("log")
    log_ticks(axes.yaxis, "{x:.0e}")
    axes.minorticks_off()
    axes.set_ylabel("logit error")
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handlelength=0.9, **LEGEND)
    quiet(axes, keep="bottom left")


def _tree(axes: Axes, nodes: pd.DataFrame, shades: Mapping[str, str]) -> None:
    depth = dict(zip(nodes["node"], nodes["depth"], strict=True))
    for node, parent in zip(nodes["node"], nodes["parent"], strict=True):
        if parent >= 0:
            axes.plot([parent, node], [depth[parent], depth[node]], color=FAINT, linewidth=1.4, zorder=1)
    for name, shade in shades.items():
        part = rows_of(nodes, place=name)
        axes.plot(part["node"], part["depth"], "o", color=shade, markersize=6.5)
    axes.margins(y=0.16)
    axes.invert_yaxis()
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(16, integer=True))
    axes.set(xlabel="node, in the order of the flattened tree", ylabel="depth")
    quiet(axes, keep="left")


def tree_memory(table: pd.DataFrame, caption: str = "") -> Figure:
    """MiB that one linear layer holds for a tree, one line per `way`, against the nodes of the tree.

    `table` has the columns `nodes`, `way` and `bytes` (of one layer).
    """
    sizes = sorted(unique(table, "nodes"))
    with house_style():
        figure, grid = canvas(
            "What does a verified tree hold until its commit?",
            "MiB in one linear layer, by nodes of the tree; both axes are logarithmic",
            caption,
            (WIDTH, 2.8),
        )
        axes = grid[0, 0]
        for shade, way in zip(_WAYS, unique(table, "way"), strict=False):
            line = rows_of(table, way=way).sort_values("nodes")
            nodes, mebibytes = numbers(line, "nodes"), numbers(line, "bytes") / MIB
            axes.plot(nodes, mebibytes, "o-", color=shade, linewidth=1.8, markersize=5)
            beside(axes, str(way), (nodes[-1], mebibytes[-1]), color=shade, fontweight="bold")
            for at in zip(nodes, mebibytes, strict=True):
                axes.annotate(_short(at[1]), at, (0, 6), textcoords="offset points", ha="center", **_SMALL)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        log_ticks(axes.yaxis, "{x:g}")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        right = sizes[-1] * max(2, (sizes[-1] / sizes[0]) ** 0.35)  # room for the names
        axes.set(xlabel="nodes in the tree", ylabel="MiB", xlim=(sizes[0] * 0.8, right))
        axes.margins(y=0.15)
        axes.grid(axis="y")
        quiet(axes, keep="bottom left")
    return figure


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def layer_cost(table: pd.DataFrame, caption: str = "") -> Figure:
    """Milliseconds of one linear layer by nodes, one bar per `reading`, and the last against the first.

    `table` has the columns `nodes`, `reading` and `milliseconds`.
    """
    sizes, readings = unique(table, "nodes"), unique(table, "reading")
    width, x = 0.8 / len(readings), np.arange(len(sizes))
    taken = [numbers(rows_of(table, reading=reading), "milliseconds") for reading in readings]
    with house_style():
        figure, grid = canvas(
            "What does a tree cost a linear layer?",
            "Median milliseconds of CPU time of one whole layer; below each size, tree against chain",
            caption,
            (WIDTH, 2.6),
        )
        axes = grid[0, 0]
        for place, (reading, values) in enumerate(zip(readings, taken, strict=True)):
            offset = (place - (len(readings) - 1) / 2) * width
            bars = axes.bar(x + offset, values, 0.92 * width, color=_READINGS[place], label=reading)
            axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=2, **_SMALL)
        ratios = taken[-1] / taken[0]
        names = [f"{size} nodes\n{ratio:.2f}×" for size, ratio in zip(sizes, ratios, strict=True)]
        axes.set_xticks(x, names, color=INK, fontsize=9)
        axes.set_ylim(0, 1.12 * np.max(taken))
        axes.yaxis.set_visible(False)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(readings), handlelength=0.9, **LEGEND)
        quiet(axes)
    return figure
