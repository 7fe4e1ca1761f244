"""Figures of the acceptance autopsy: how faults look, and which causes are recognised.

`table` is everywhere `pandas.DataFrame(confusion(…))`, without the faults that a pair cannot express.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from ddtree_core.reporting.figures.style import (
    FAINT,
    INK,
    MUTED,
    WIDTH,
    canvas,
    house_style,
    quiet,
    rows_of,
    shared_label,
    unique,
)
from ddtree_core.reporting.tables.stats import numbers

REPORTED_RATE = 0.011  # of the drafts accepted, in the deployment that the investigation began with
_FAULT, _NEAR = "#0072B2", "#D55E00"
_PLACES = ("#0072B2", "#56B4E9", "#B9DDF3")
_COLUMNS = 5
_SUSPECTS = ("first", "second", "third")


def reached(accepted_by_slot: tuple[float, ...]) -> np.ndarray:
    """Share of rounds that accept a slot and all before it; slots that no round reached count as missed."""
    return np.nan_to_num(np.asarray(accepted_by_slot)).cumprod()


def faults_by_share(table: pd.DataFrame, caption: str = "") -> Figure:
    """Share of drafts accepted under every fault, one mark per `pair`, the worst first.

    `table` holds the rows of one or more pairs.
    """
    pairs, faults = unique(table, "pair"), unique(table, "fault")
    mean = {fault: numbers(rows_of(table, fault=fault), "acceptance_rate").mean() for fault in faults}
    order = {fault: y for y, fault in enumerate(sorted(faults, key=lambda fault: -mean[fault]))}
    with house_style():
        figure, grid = canvas(
            "Which faults look like one percent?",
            "Accepted drafts over drafted ones, chains; the line is the deployment's 1.1%",
            caption,
            (WIDTH, 0.5 + 0.185 * len(order)),
        )
        axes = grid[0, 0]
        axes.hlines(list(order.values()), 0, 1, color=FAINT, linewidth=0.6, zorder=0)
        axes.axvline(REPORTED_RATE, color=_NEAR, linewidth=1.2)
        for pair, marker in zip(pairs, "os^Dv", strict=False):
            part = rows_of(table, pair=pair)
            shown = [
                _NEAR if rate < 2 * REPORTED_RATE else _FAULT for rate in numbers(part, "acceptance_rate")
            ]
            heights = [order[fault] for fault in part["fault"]]
            style = {"marker": marker, "s": 26}
            axes.scatter(part["acceptance_rate"], heights, c=shown, zorder=3, clip_on=False, **style)
            axes.scatter([], [], c=_FAULT, label=pair, **style)
        axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
        largest = max(numbers(table, "acceptance_rate"))
        axes.set_xticks([x for x in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8) if x <= 1.2 * largest])
        axes.set_xlim(-0.00005, 1.1 * largest)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_yticks(list(order.values()), list(order), color=INK)
        axes.set_ylim(-0.7, len(order) - 0.3)
        axes.set_xlabel("drafts accepted (square-root axis)")
        axes.tick_params(axis="y", pad=8)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(pairs), frameon=False, fontsize=8.5)
        quiet(axes)
    return figure


def acceptance_by_slot(table: pd.DataFrame, caption: str = "") -> Figure:
    """How far drafts are accepted under every fault, in small panels, over the healthy pair's outline."""
    (healthy,), faulty = _records(table)
    faulty = sorted(faulty, key=lambda row: row["acceptance_rate"])
    rows = -(-len(faulty) // _COLUMNS)
    with house_style():
        figure, grid = canvas(
            "How does each fault look?",
            "Share of rounds that accept draft slot 1, 2, …; the outline is the healthy pair; worst first",
            caption,
            (WIDTH, 0.35 + 0.92 * rows),
            (rows, _COLUMNS),
            sharex=True,
            sharey=True,
        )
        for axes, row in zip(grid.flat, faulty, strict=False):
            _slots(axes, row, healthy)
        for axes in grid.flat[len(faulty) :]:
            axes.axis("off")
        slots = len(healthy["accepted_by_slot"])
        tallest = reached(healthy["accepted_by_slot"])[0]
        grid[0, 0].set(ylim=(0, 1.05 * tallest + 0.12), xlim=(0.4, slots + 0.6))
        grid[0, 0].set_xticks(range(1, slots + 1))
        shared_label(grid, "draft slot")
    return figure


def _slots(axes: Axes, row: dict[Any, Any], healthy: dict[Any, Any]) -> None:
    own, plain = reached(row["accepted_by_slot"]), reached(healthy["accepted_by_slot"])
    x = np.arange(1, len(own) + 1)
    near = row["acceptance_rate"] < 2 * REPORTED_RATE
    axes.bar(x, own, width=0.86, color=_NEAR if near else _FAULT)
    axes.step(np.r_[0.5, x + 0.5], np.r_[plain[0], plain], where="pre", color=MUTED, linewidth=0.9)
    axes.set_title(row["fault"], fontsize=8, pad=3)
    axes.annotate(
        f"{row['acceptance_rate']:.1%}", (1, 1), (0, -1), xycoords="axes fraction", ha="right", va="top",
        textcoords="offset points", fontsize=7.5, color=_NEAR if near else MUTED,
    )  # fmt: skip
    axes.yaxis.set_visible(False)
    quiet(axes)


def confusion_matrix(table: pd.DataFrame, caption: str = "") -> Figure:
    """Injected faults against the suspects of an autopsy that does not know them: the first three of each."""
    _, faulty = _records(table)
    named = [row[place] for row in faulty for place in _SUSPECTS if row[place]]
    causes = list(dict.fromkeys([*(row["cause"] for row in faulty), *named]))
    with house_style():
        figure, grid = canvas(
            f"Is the cause found on {faulty[0]['pair']}?",
            "Faults injected (rows) and causes suspected (columns): 1, 2 and 3; the right cause is framed",
            caption,
            (WIDTH, 1.15 + 0.185 * len(faulty)),
        )
        axes = grid[0, 0]
        for y, row in enumerate(faulty):
            right = causes.index(row["cause"])
            axes.add_patch(_square(right, y, facecolor="none", edgecolor=INK if row["symptom"] else FAINT))
            for place, column in enumerate(_SUSPECTS):
                if row[column]:
                    x = causes.index(row[column])
                    axes.add_patch(_square(x, y, facecolor=_PLACES[place], edgecolor="none", zorder=0))
                    shade = INK if place == 2 else "white"
                    axes.text(x, y, str(place + 1), ha="center", va="center", fontsize=6.5, color=shade)
        names = [row["fault"] if row["symptom"] else f"{row['fault']} (no symptom)" for row in faulty]
        axes.set_yticks(range(len(faulty)), names, color=INK, fontsize=7.5)
        axes.set_xticks(range(len(causes)), causes, rotation=60, ha="left", fontsize=7.5)
        axes.xaxis.tick_top()
        axes.set(xlim=(-0.6, len(causes) - 0.4), ylim=(len(faulty) - 0.4, -0.6))
        quiet(axes, keep="")
    return figure


def _records(table: pd.DataFrame) -> tuple[list[dict[Any, Any]], list[dict[Any, Any]]]:
    """Rows of healthy pairs, and of pairs with a fault."""
    rows = table.to_dict("records")
    healthy = [row for row in rows if row["fault"] == "healthy"]
    return healthy, [row for row in rows if row["fault"] != "healthy"]


def _square(x: int, y: int, **style: Any) -> Rectangle:
    return Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, linewidth=0.8, **style)


def examined(symptoms: Mapping[str, Any], caption: str = "") -> Figure:
    """One pair: how far its drafts are accepted, and tokens per round along the context.

    `symptoms` are the fields of an autopsy's `Symptoms`, or a row of `table`.
    """
    context, committed = np.array(symptoms["rounds"]).T
    with house_style():
        figure, grid = canvas(
            "How does this pair look?",
            f"{len(context)} rounds; tokens per round {symptoms['acceptance_length']:.2f}, "
            f"drafts accepted {symptoms['acceptance_rate']:.1%}",
            caption,
            (WIDTH, 2.2),
            (1, 2),
        )
        slots, along = grid[0]
        own = reached(symptoms["accepted_by_slot"])
        bars = slots.bar(np.arange(1, len(own) + 1), own, width=0.86, color=_FAULT)
        slots.bar_label(bars, [f"{share:.0%}" for share in own], padding=1, fontsize=7.5, color=MUTED)
        slots.set(title="Share of rounds that accept a slot", xlabel="draft slot")
        slots.set_ylim(0, 1.15 * max(own) + 0.01)
        slots.yaxis.set_visible(False)
        slots.set_xticks(range(1, len(own) + 1))
        along.plot(context, committed, "o", color=_FAULT, markersize=4, alpha=0.45, markeredgewidth=0)
        order = np.argsort(context, kind="stable")
        parts = np.array_split(order, max(1, min(4, len(order) // 8)))
        means = [(context[part].mean(), committed[part].mean()) for part in parts]
        along.plot(*zip(*means, strict=True), "-", color=INK, linewidth=1.4)
        along.set(title="Tokens per round along the context", xlabel="tokens of context", ylim=(0.5, None))
        along.grid(axis="y")
        quiet(slots)
        quiet(along, keep="bottom left")
    return figure
