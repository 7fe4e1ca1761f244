"""Tables and texts ready to be read: numbers rounded, model text shown as text and never as markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

from ddtree_core.reporting.tables.plain_text import printable

MISSING = "–"
_TEXT = {
    "text-align": "left",
    "vertical-align": "top",
    "white-space": "pre-wrap",
    "overflow-wrap": "anywhere",
    "unicode-bidi": "plaintext",  # each cell reads in the direction of its own letters
    "font-size": "85%",
}


def styled(table: pd.DataFrame) -> Styler:
    """The table's Styler, whose cells and labels are shown as text, never as markup or a formula."""
    shown = Styler(table, escape="html")
    for axis in ("index", "columns"):
        shown.format_index(escape="html", axis=axis)
    return shown.set_table_attributes('class="tex2jax_ignore mathjax_ignore"')  # MathJax leaves it alone


def text_table(table: pd.DataFrame, **properties: str) -> Styler:
    """A table of texts to be read: wrapped, left-aligned, line ends kept, an index of mere numbers hidden.

    `properties` are further CSS properties of the cells. Control and direction characters are left out.
    """
    table = table.map(lambda value: printable(value) if isinstance(value, str) else value)
    shown = styled(table).set_properties(**{**_TEXT, **properties})
    shown = shown.set_table_styles([{"selector": "th", "props": "text-align: left"}])
    return shown.hide(axis="index") if isinstance(table.index, pd.RangeIndex) else shown


def side_by_side(texts: Mapping[str, str]) -> Styler:
    """Named texts in columns of equal width, in a monospace font."""
    shown = text_table(pd.DataFrame([texts]), **{"font-family": "monospace"})
    layout = 'style="table-layout: fixed; width: 100%"'
    return shown.set_table_attributes(f"{shown.table_attributes} {layout}")


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """A `stats.summary` as text, one row per group and variant; columns it lacks are left out.

    Intervals are those of the summary, 95% over prompts unless chosen otherwise.
    """
    groups = list(table.columns[: list(table.columns).index("method")])
    spelt: dict[str, Any] = {name: table[name] for name in groups}
    spelt["method"] = table["variant"]
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
            spelt[title] = [_cell(row, column, form, interval) for row in table.to_dict("records")]
    return pd.DataFrame(spelt).set_index([*groups, "method"])


def _cell(row: dict[Any, Any], column: str, form: str, interval: tuple[str, str] | None) -> str:
    if pd.isna(row[column]):
        return MISSING
    text = form.format(row[column])
    # The baseline is its own measure, and has no interval to speak of.
    if interval is None or pd.isna(row[interval[0]]) or row[interval[0]] == row[interval[1]]:
        return text
    low, high = (form.rstrip("×").format(row[end]) for end in interval)
    return f"{text} ({low}–{high})"
