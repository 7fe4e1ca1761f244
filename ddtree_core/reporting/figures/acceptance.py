"""How long accepted paths are, and how deep they reach.

Every function takes `caption`, the provenance line at the foot (`Run.caption`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddtree_core.reporting.figures.style import (
    INK,
    LEGEND,
    METHOD_COLOURS,
    WIDTH,
    beside,
    canvas,
    colour,
    drafting,
    house_style,
    quiet,
    rows_of,
    shared_label,
    unique,
    without_rounds,
)
from ddtree_core.reporting.tables.stats import numbers

FAINT_BELOW = 20  # rounds below which a share is drawn faint
PERCENT = PercentFormatter(1.0, decimals=0)


def acceptance_histograms(table: pd.DataFrame, caption: str = "") -> Figure:
    """Distribution of acceptance lengths: one row per drafting variant, one column per domain, τ marked.

    `table` comes from `stats.acceptance_histogram`.
    """
    title, table = "How many tokens does a round commit?", drafting(table)
    if table.empty:
        return without_rounds(title, caption)
    domains, variants = unique(table, "domain"), unique(table, "variant")
    size = (max(WIDTH, 1.4 + 2.35 * len(domains)), 0.45 + 0.98 * len(variants))
    with house_style():
        figure, grid = canvas(
            title,
            "Share of rounds by acceptance length (accepted draft tokens + bonus token); τ is the mean",
            caption,
            size,
            (len(variants), len(domains)),
            sharex=True,
            sharey=True,
        )
        for (row, column), axes in np.ndenumerate(grid):
            part = rows_of(table, variant=variants[row], domain=domains[column])
            if len(part):
                _histogram(axes, part)
            if row == 0:
                axes.set_title(domains[column])
            if column == 0:
                axes.set_ylabel(
                    variants[row], rotation=0, ha="right", va="center", color=INK, fontsize=9, labelpad=10
                )
            quiet(axes)
        grid[0, 0].yaxis.set_major_formatter(PERCENT)
        grid[0, 0].yaxis.set_major_locator(MaxNLocator(3, prune="lower"))
        grid[0, 0].set_ylim(0, 1.32 * numbers(table, "share").max())  # room for the note above every bar
        grid[0, 0].set_xticks(_whole_ticks(int(numbers(table, "length").max())))
        shared_label(grid, "acceptance length (tokens per round)")
    return figure


def _histogram(axes: Axes, part: pd.DataFrame) -> None:
    length, share = numbers(part, "length"), numbers(part, "share")
    first = part.iloc[0]
    tau = float((length * share).sum())
    axes.bar(length, share, width=0.86, color=colour(first["method"], first["budget"]))
    axes.axvline(tau, color=INK, linewidth=1)
    late = tau > 0.6 * length.max()
    axes.annotate(
        f"τ {tau:.2f}    {part['n_rounds'].sum():,} rounds",
        (tau, 1.0),
        (-4 if late else 4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if late else "left",
        va="top",
        fontsize=7.5,
    )
    axes.grid(axis="y")


def acceptance_by_depth(table: pd.DataFrame, caption: str = "") -> Figure:
    """Share of rounds that accept a draft token at each depth, among rounds that drafted so deep.

    `table` comes from `stats.acceptance_by_depth`; lines are faint where under 20 rounds drafted so deep.
    """
    title, table = "How deep do accepted paths reach?", drafting(table)
    if table.empty:
        return without_rounds(title, caption)
    domains = unique(table, "domain")
    with house_style():
        figure, grid = canvas(
            title,
            "Share of rounds whose accepted path reaches a depth, among rounds drafted at least that deep",
            caption,
            (max(WIDTH, 1.9 + 2.6 * len(domains)), 2.7),
            (1, len(domains)),
            sharey=True,
            sharex=True,
        )
        for axes, domain in zip(grid[0], domains, strict=True):
            part = rows_of(table, domain=domain)
            for name in unique(part, "variant"):
                _depth_line(axes, rows_of(part, variant=name))
            axes.set(title=domain, ylim=(0, 1))
            axes.yaxis.set_major_formatter(PERCENT)
            axes.set_xticks(_whole_ticks(int(numbers(table, "depth").max())))
            axes.grid(axis="y")
            quiet(axes)
        beside_panels = {"loc": "outside right upper", **LEGEND}
        grid[0, 0].get_figure(root=False).legend(*grid[0, 0].get_legend_handles_labels(), **beside_panels)
        shared_label(grid, "depth in the draft tree (1 = first draft token)")
    return figure


def _depth_line(axes: Axes, line: pd.DataFrame) -> None:
    first = line.iloc[0]
    shade = colour(first["method"], first["budget"])
    solid = line[line["n_rounds"] >= FAINT_BELOW]
    axes.plot(line["depth"], line["share"], color=shade, linewidth=1.2, alpha=0.45)
    style = {"color": shade, "linewidth": 1.8, "marker": "o", "markersize": 3}
    axes.plot(solid["depth"], solid["share"], label=first["variant"], **style)


def _whole_ticks(longest: int) -> list[int]:
    step = next(step for step in (1, 2, 4, 5, 10, 25, 100) if longest <= 6 * step or step == 100)
    return [1, *range(step, longest + 1, step)] if step > 1 else list(range(1, longest + 1))


def mean_acceptance(table: pd.DataFrame, caption: str = "") -> Figure:
    """Mean acceptance length of every domain and variant as a dot with its interval.

    `table` comes from `stats.mean_acceptance` or `stats.summary`.
    """
    title, table = "Mean acceptance length τ", drafting(table.loc[table["tau"].notna()])
    if table.empty:
        return without_rounds(title, caption)
    domains = unique(table, "domain")
    with house_style():
        figure, grid = canvas(
            title,
            "Tokens per round, with 95% bootstrap interval over prompts; autoregressive decoding has τ = 1",
            caption,
            (WIDTH, 0.45 + 0.21 * (len(table) + 1.6 * len(domains))),
        )
        axes, y, ticks = grid[0, 0], 0.0, []
        for domain in domains:
            part = rows_of(table, domain=domain)
            n = int(part["n_prompts"].iloc[0])
            ticks.append((y, f"{domain}  ({n} prompts)" if n > 1 else f"{domain}  (1 prompt)"))
            for _, row in part.iterrows():
                y += 1
                ticks.append((y, row["variant"]))
                _dot(axes, y, row)
            y += 1.6
        axes.axvline(1, color=METHOD_COLOURS["autoregressive"], linewidth=1)
        axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks], color=INK)
        for (_, text), label in zip(ticks, axes.get_yticklabels(), strict=True):
            label.set_fontweight("bold" if "(" in text else "normal")
        axes.set(ylim=(y - 0.9, -0.7), xlabel="τ (tokens per round)")
        right = np.nanmax([numbers(table, "tau"), numbers(table, "high")])
        axes.set_xlim(0.95, right + 0.09 * (right - 0.95))
        axes.grid(axis="x")
        quiet(axes)
    return figure


def _dot(axes: Axes, y: float, row: Any) -> None:
    shade = colour(row["method"], row["budget"])
    right = row["tau"] if pd.isna(row["high"]) else row["high"]
    if not pd.isna(row["low"]):
        axes.hlines(y, row["low"], row["high"], color=shade, linewidth=2.2, alpha=0.55)
    axes.plot(row["tau"], y, "o", color=shade, markersize=6, markeredgecolor="white")
    beside(axes, f"{row['tau']:.2f}", (right, y), fontsize=8)
