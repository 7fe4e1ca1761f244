"""Figures of what decoding costs: speed-up, seconds of a round by stage, tokens over time, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ddtree_core.reporting.figures.style import (
    FAINT,
    INK,
    LEGEND,
    METHOD_COLOURS,
    SLOWER,
    STAGE_COLOURS,
    WIDTH,
    beside,
    canvas,
    colour,
    house_style,
    quiet,
    rows_of,
    shared_label,
    unique,
    without_rounds,
)
from ddtree_core.reporting.tables.stats import numbers


def speedup(table: pd.DataFrame, caption: str = "") -> Figure:
    """Speed-up over autoregressive decoding against the budget, one panel per domain; below 1.0 it loses.

    `table` comes from `stats.speed` or `stats.summary`.
    """
    domains = unique(table, "domain")
    top = np.nan_to_num([numbers(table, "speedup"), numbers(table, "speedup_high")]).max()
    interval = ", with 95% interval over prompts" if np.isfinite(numbers(table, "speedup_low")).any() else ""
    if top == 0.0:
        raise ValueError("the run has no autoregressive decoding to compare with: decode the same prompts so")
    with house_style():
        figure, grid = canvas(
            "Is it faster on this machine?",
            "Speed-up over autoregressive decoding of the same prompts in the same run" + interval,
            caption,
            (max(WIDTH, 0.6 + 2.75 * len(domains)), 2.6),
            (1, len(domains)),
            sharex=True,
            sharey=True,
        )
        for axes, domain in zip(grid[0], domains, strict=True):
            part = rows_of(table, domain=domain)
            _speed_panel(axes, part)
            axes.set_title(domain)
        grid[0, 0].yaxis.set_major_formatter("{x:.1f}×")
        grid[0, 0].set_ylim(0, max(1.25, top * 1.12))
        shared_label(grid, "DDTree budget (draft nodes)")
    return figure


def _speed_panel(axes: Axes, part: pd.DataFrame) -> None:
    trees = rows_of(part, method="ddtree")
    budgets, ratio = (numbers(trees, name) for name in ("budget", "speedup"))
    low, high = (numbers(trees, f"speedup_{end}") for end in ("low", "high"))
    # The left third of the panel is kept for the names of the lines.
    first, last = np.log2([budgets.min(), budgets.max()]) if len(budgets) else np.zeros(2)
    margin = max(1.6, 0.45 * (last - first))
    left = 2 ** (first - margin)
    axes.axhspan(0, 1, color=SLOWER, linewidth=0)
    axes.axhline(1, color=METHOD_COLOURS["autoregressive"], linewidth=1.2)
    axes.plot(budgets, ratio, color=colour("ddtree"), linewidth=1.4, zorder=2)
    axes.vlines(budgets, low, high, color=colour("ddtree"), linewidth=2.2, alpha=0.4)
    for budget, value, lower, upper in zip(budgets, ratio, low, high, strict=True):
        axes.plot(budget, value, "o", color=colour("ddtree", budget), markeredgecolor="white", markersize=7)
        ends = (value, value) if np.isnan(lower) else (lower, upper)
        _note(axes, f"{value:.2f}", (budget, ends[int(value >= 1)]), above=value >= 1, ha="center")
    dflash = numbers(rows_of(part, method="dflash"), "speedup")
    for value in dflash:
        axes.axhline(value, color=METHOD_COLOURS["dflash"], linewidth=1.4, linestyle=(0, (4, 2)))
        _note(axes, f"DFlash {value:.2f}", (left, value), above=value >= 1, color=METHOD_COLOURS["dflash"])
    clear = bool((dflash < 1).any())  # the baseline's name goes where DFlash's does not
    _note(axes, "autoregressive", (left, 1.0), above=clear, color=METHOD_COLOURS["autoregressive"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [f"{budget:.0f}" for budget in budgets])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(left, 2 ** (last + 0.3 * margin))
    quiet(axes)


def _note(axes: Axes, text: str, at: tuple[float, float], above: bool, **style: Any) -> None:
    axes.annotate(
        text,
        at,
        (2 if "ha" not in style else 0, 3 if above else -3),
        textcoords="offset points",
        va="bottom" if above else "top",
        fontsize=7.5,
        **style,
    )


def stage_seconds(table: pd.DataFrame, caption: str = "") -> Figure:
    """Where the time of a round goes: mean milliseconds by stage, one bar per variant.

    `table` comes from `stats.stage_seconds(rounds)`.
    """
    title = "Where does a round's time go?"
    if table.empty:
        return without_rounds(title, caption)
    names = unique(table, "variant")
    stages = {stage: 1000 * numbers(rows_of(table, stage=stage), "seconds") for stage in STAGE_COLOURS}
    ends = np.cumsum(list(stages.values()), axis=0)  # (stages, variants)
    longest = float(ends.max())
    with house_style():
        figure, grid = canvas(
            title,
            "Mean milliseconds of a round by stage; a round commits 1 token or more",
            caption,
            (WIDTH, 0.55 + 0.36 * len(names)),
        )
        axes, y = grid[0, 0], np.arange(len(names))
        for (stage, width), end in zip(stages.items(), ends, strict=True):
            bars = axes.barh(y, width, left=end - width, height=0.68, color=STAGE_COLOURS[stage], label=stage)
            inside = [f"{size:.1f}" if size > 0.055 * longest else "" for size in width]
            axes.bar_label(bars, inside, label_type="center", color="white", fontsize=8)
        for at, end in enumerate(ends[-1]):
            beside(axes, f"{end:.1f} ms", (end, at), fontweight="bold")
        axes.set_yticks(y, names, color=INK, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, longest * 1.14)
        axes.xaxis.set_visible(False)
        quiet(axes, keep="left")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(stages), handlelength=0.9, **LEGEND)
    return figure


def token_timeline(table: pd.DataFrame, caption: str = "") -> Figure:
    """Tokens committed over time for one prompt, one line per variant.

    `table` comes from `stats.timeline` and holds one prompt. Raises ValueError if it holds several.
    """
    title = "Tokens over time"
    if table.empty:
        return without_rounds(title, caption)
    if len(prompts := unique(table, "prompt_id")) != 1:
        raise ValueError(
            f"a timeline shows one prompt, this table has {len(prompts)}: choose the rows of one"
        )
    with house_style():
        figure, grid = canvas(
            title,
            "Each step is a round of draft, verify and commit; prefill left out",
            caption,
            (WIDTH, 3.1),
        )
        axes = grid[0, 0]
        for name in unique(table, "variant"):
            line = rows_of(table, variant=name)
            last = line.iloc[-1]
            shade, label = colour(last["method"], last["budget"]), f"{name}: {last['seconds']:.2f} s"
            seconds, tokens = [0.0, 0.0, *line["seconds"]], [0, 1, *line["tokens"]]
            axes.step(seconds, tokens, where="post", color=shade, linewidth=1.6, label=label)
            axes.plot(last["seconds"], last["tokens"], "o", color=shade, markersize=5)
        axes.legend(loc="lower right", **LEGEND)
        axes.set(xlabel="seconds", ylabel="tokens committed", xlim=(0, None), ylim=(0, None))
        axes.grid()
        quiet(axes, keep="bottom left")
    return figure


def memory_bars(table: pd.DataFrame, total_gib: float | None = None, caption: str = "") -> Figure:
    """Memory in GiB at named moments, one bar per row of `table` (columns `moment` and `gib`).

    `total_gib` is the memory of the machine or device; bars that fill a fair part of it are set against it.
    """
    values = numbers(table, "gib")
    subtitle = "Resident memory in GiB" + (f"; the machine has {total_gib:.1f} GiB" if total_gib else "")
    # A ground that shows the whole machine helps only when the bars are not lost on it.
    limit = total_gib if total_gib and values.max() > 0.15 * total_gib else values.max()
    with house_style():
        figure, grid = canvas("What does loading cost?", subtitle, caption, (WIDTH, 0.3 + 0.34 * len(table)))
        axes, y = grid[0, 0], np.arange(len(table))
        if limit == total_gib:
            axes.barh(y, limit, height=0.62, color=FAINT, alpha=0.5)
        axes.barh(y, values, height=0.62, color=colour("ddtree"))
        for at, value in enumerate(values):
            beside(axes, f"{value:.2f}", (value, at), fontweight="bold")
        axes.set_yticks(y, list(table["moment"]), color=INK, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, limit * 1.1)
        axes.xaxis.set_visible(False)
        quiet(axes, keep="left")
    return figure
