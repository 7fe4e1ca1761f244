"""Figure of a training: loss by step, and what it is worth in tokens per round on texts not trained on."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddtree_core.reporting.figures.style import (
    FAINT,
    INK,
    METHOD_COLOURS,
    MUTED,
    WIDTH,
    beside,
    canvas,
    colour,
    house_style,
    quiet,
    rows_of,
    unique,
)
from ddtree_core.reporting.tables.stats import numbers


def training_progress(losses: pd.DataFrame, acceptance: pd.DataFrame, caption: str = "") -> Figure:
    """Tokens per round at every validation, one line per method, above the loss of every step.

    `losses` has the columns `step` and `loss`, and may be empty; `acceptance` has `step`, `method` ("chain"
    or "tree N") and `tau`. Raises `ValueError` for an empty `acceptance`.
    """
    if acceptance.empty:
        raise ValueError("the table holds no validation: measure the drafter at least once")
    with house_style():
        figure, grid = canvas(
            "Does the drafter learn to draft?",
            "Tokens per round on prompts that it never saw, and the loss that it minimises, by training step",
            caption,
            (WIDTH, 4.2),
            (2, 1),
            sharex=True,
            height_ratios=(5, 3),
        )
        _acceptance(grid[0, 0], acceptance)
        _loss(grid[1, 0], losses)
        last = max(1, *unique(acceptance, "step"))
        ticks = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(0, last)
        grid[1, 0].set_xticks([tick for tick in ticks if 0 <= tick <= last])
        grid[1, 0].set_xlim(-0.02 * last, 1.16 * last)  # room for what stands beside the lines
    return figure


def _acceptance(axes: Axes, table: pd.DataFrame) -> None:
    for method in unique(table, "method"):
        line = rows_of(table, method=method).sort_values("step")
        steps, tau = numbers(line, "step"), numbers(line, "tau")
        shade = _shade(method)
        axes.plot(steps, tau, "o-", color=shade, linewidth=1.8, markersize=4.5)
        beside(axes, f"{method}  {tau[-1]:.2f}", (steps[-1], tau[-1]), color=shade, fontweight="bold")
    axes.axhline(1, color=METHOD_COLOURS["autoregressive"], linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(
        "no help: one token per round", (1, 1.0), (-2, -3), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="top", fontsize=7.5, color=MUTED,
    )  # fmt: skip
    axes.set_ylabel("tokens per round")
    axes.set_ylim(bottom=0.9)
    axes.grid(axis="y")
    quiet(axes, keep="")


def _loss(axes: Axes, table: pd.DataFrame) -> None:
    if table.empty:
        axes.text(0.43, 0.5, "all steps were taken in an earlier run", color=MUTED, ha="center",
                  transform=axes.transAxes)  # fmt: skip
        axes.set_yticks([])
    else:
        steps, loss = numbers(table, "step"), numbers(table, "loss")
        smooth = np.asarray(pd.Series(loss).rolling(max(1, len(loss) // 20), min_periods=1).mean())
        axes.plot(steps, loss, color=FAINT, linewidth=1)
        axes.plot(steps, smooth, color=INK, linewidth=1.6)
        beside(axes, f"loss  {smooth[-1]:.2f}", (steps[-1], smooth[-1]), color=INK, fontweight="bold")
    axes.set(xlabel="training step", ylabel="loss, nats")
    axes.grid(axis="y")
    quiet(axes)


def _shade(method: str) -> str:
    kind, _, nodes = method.partition(" ")
    return colour("ddtree", int(nodes)) if kind == "tree" else colour("dflash")
