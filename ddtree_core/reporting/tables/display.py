"""Tables of `stats` made ready to be read: names spelt out, numbers rounded, intervals beside them."""

from __future__ import annotations

from typing import Any

import pandas as pd

MISSING = "–"


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `stats.summary` as text, one row per group and variant; columns it lacks are left out.

    Intervals are those of the summary, 95% over prompts unless chosen otherwise.
    """
    groups = list(table.columns[: list(table.columns).index("method")])
    made: dict[str, Any] = {name: table[name] for name in groups}
    made["method"] = table["variant"]
    columns = {
        "n_prompts": ("prompts", "{:,.0f}", None),
        "n_rounds": ("rounds", "{:,.0f}", None),
        "tau": ("τ", "{:.2f}", ("low", "high")),
        "acceptance_rate": ("accepted of drafted", "{:.0%}", None),
        "tokens_per_second": ("tokens/s", "{:.1f}", None),
        "speedup": ("speed-up", "{:.2f}×", ("speedup_low", "speedup_high")),
        "speedup_median": ("median speed-up", "{:.2f}×", None),
    }
    for column, (title, form, interval) in columns.items():
        if column in table:
            made[title] = [_cell(row, column, form, interval) for row in table.to_dict("records")]
    return pd.DataFrame(made).set_index([*groups, "method"])


def _cell(row: dict[Any, Any], column: str, form: str, interval: tuple[str, str] | None) -> str:
    if pd.isna(row[column]):
        return MISSING
    text = form.format(row[column])
    # The baseline is its own measure, and has no interval to speak of.
    if interval is None or pd.isna(row[interval[0]]) or row[interval[0]] == row[interval[1]]:
        return text
    low, high = (form.rstrip("×").format(row[end]) for end in interval)
    return f"{text} ({low}–{high})"
