"""Figure: what a verify pass costs as the tree grows."""

import pandas as pd
from matplotlib.figure import Figure

from ddtree_core.reporting.figures.style import (
    INK,
    MUTED,
    WIDTH,
    beside,
    canvas,
    house_style,
    quiet,
    rows_of,
    unique,
)

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def verify_cost(table: pd.DataFrame, caption: str = "") -> Figure:
    """Milliseconds of a verify pass against the nodes of its tree, one line per `weights`.

    `table` has the columns `weights` (a name), `nodes` and `seconds`.
    """
    with house_style():
        figure, grid = canvas(
            "What does a larger tree cost?",
            "Median milliseconds of one verify pass, by nodes (1 node is an autoregressive step)",
            caption,
            (WIDTH, 2.8),
        )
        axes = grid[0, 0]
        sizes = sorted(unique(table, "nodes"))
        for shade, name in zip(_COLOURS, unique(table, "weights"), strict=False):
            line = rows_of(table, weights=name).sort_values("nodes")
            milliseconds = 1000 * line["seconds"]
            axes.plot(line["nodes"], milliseconds, "o-", color=shade, linewidth=1.8, markersize=5)
            end = (line["nodes"].iloc[-1], milliseconds.iloc[-1])
            beside(axes, str(name), end, color=shade, fontweight="bold")
            for x, y in zip(line["nodes"], milliseconds, strict=True):
                axes.annotate(
                    f"{y:.0f}", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=7.5,
                    color=MUTED,
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.minorticks_off()
        axes.set(xlabel="nodes in the tree", ylabel="milliseconds", ylim=(0, None))
        axes.set_xlim(sizes[0] * 0.9, sizes[-1] * 1.9)
        axes.tick_params(labelcolor=INK)
        axes.grid(axis="y")
        quiet(axes, keep="bottom left")
    return figure
