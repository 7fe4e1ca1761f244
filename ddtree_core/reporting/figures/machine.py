"""Figure of the machine: where a pair lies on its devices, and what stays free."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ddtree_core.reporting.figures.style import (
    FAINT,
    INK,
    LEGEND,
    WIDTH,
    beside,
    canvas,
    house_style,
    quiet,
)
from ddtree_core.reporting.tables.stats import numbers

_COLOURS = {
    "weights": "#0072B2",
    "drafter": "#D55E00",
    "caches": "#009E73",
    "tree": "#E3C800",
    "reserve": "#AEB6C0",
}
_SHORT = "#B3261E"  # of a device that is too small


def placement(table: pd.DataFrame, caption: str = "") -> Figure:
    """GiB per device by part against what is free there, one bar per row of `table`.

    `table` has a device name as its index and the columns weights, drafter, caches, tree, reserve, needed and
    free, as `placement_table` of the diagnosis makes it.
    """
    needed, free = numbers(table, "needed"), numbers(table, "free")
    longest = float(np.max([needed, free]))
    with house_style():
        figure, grid = canvas(
            "Does the pair fit?",
            "GiB on each device by part; the grey ground is the memory that is free there",
            caption,
            (WIDTH, 0.75 + 0.42 * len(table)),
        )
        axes, y, end = grid[0, 0], np.arange(len(table)), np.zeros(len(table))
        axes.barh(y, free, height=0.84, color=FAINT, alpha=0.6)
        for part, shade in _COLOURS.items():
            width = numbers(table, part)
            bars = axes.barh(y, width, left=end, height=0.56, color=shade, label=part)
            inside = [f"{size:.1f}" if size > 0.05 * longest else "" for size in width]
            axes.bar_label(bars, inside, label_type="center", color="white", fontsize=8)
            end = end + width
        for at, (used, size) in enumerate(zip(needed, free, strict=True)):
            shade = INK if used <= size else _SHORT
            where = (max(used, size), at)
            beside(axes, f"{used:.1f} of {size:.1f}", where, color=shade, fontweight="bold")
        axes.set_yticks(y, list(table.index), color=INK, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.18)
        axes.xaxis.set_visible(False)
        quiet(axes, keep="left")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_COLOURS), handlelength=0.9, **LEGEND)
    return figure
