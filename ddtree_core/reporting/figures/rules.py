"""Figures of the diagnosis: what the linear rule and the tree walk accept of the same trees."""

import pandas as pd
from matplotlib.figure import Figure

from ddtree_core.reporting.figures.style import INK, MUTED, WIDTH, canvas, house_style, quiet, rows_of, unique

_COLOURS = {"walk": "#0072B2"}


def rule_histograms(table: pd.DataFrame, caption: str = "") -> Figure:
    """Share of rounds by accepted draft tokens, one panel per rule, the mean marked.

    `table` has one row per round and rule with the columns `rule` and `accepted`.
    """
    rules, longest = unique(table, "rule"), max(table["accepted"].tolist())
    tallest = table.groupby("rule")["accepted"].value_counts(normalize=True).max()
    with house_style():
        figure, grid = canvas(
            "What does each rule accept of the same trees?",
            "Share of rounds by accepted draft tokens, the bonus token not counted; the mean is marked",
            caption,
            (WIDTH, 0.4 + 1.05 * len(rules)),
            (len(rules), 1),
            sharex=True,
            sharey=True,
        )
        for axes, rule in zip(grid[:, 0], rules, strict=True):
            accepted = rows_of(table, rule=rule)["accepted"]
            shares = accepted.value_counts(normalize=True).reindex(range(longest + 1), fill_value=0.0)
            axes.bar(shares.index, shares, width=0.82, color=_COLOURS.get(rule, "#D55E00"))
            for length, share in shares.items():
                axes.annotate(
                    f"{share:.0%}", (length, share), (0, 2), textcoords="offset points", ha="center",
                    fontsize=7.5, color=MUTED,
                )  # fmt: skip
            axes.axvline(accepted.mean(), color=INK, linewidth=1)
            axes.set_title(f"{rule}: {accepted.mean():.2f} accepted per round")
            axes.set(ylim=(0, 1.3 * tallest), xticks=range(longest + 1))
            axes.yaxis.set_visible(False)
            quiet(axes)
        grid[-1, 0].set_xlabel("accepted draft tokens")
    return figure
