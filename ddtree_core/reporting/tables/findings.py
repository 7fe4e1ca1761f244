"""Sentences for notebooks, made from their results: what a table shows, also when it disappoints."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddtree_core.decoding.compare import first_divergence
from ddtree_core.decoding.records import Generation
from ddtree_core.models.pair import ModelPair
from ddtree_core.reporting.tables.plain_text import code_span
from ddtree_core.reporting.tables.stats import variant

SHOWN_DIVERGENCES = 6


def same_text(pair: ModelPair, generations: Sequence[Generation]) -> str:
    """Whether every generation has the tokens of the autoregressive one of its prompt, in Markdown.

    Divergences are counted and shown with the gap between the target's logits at the place. Raises
    `ValueError` where a prompt has no autoregressive generation.
    """
    references = {tuple(g.prompt_ids): g for g in generations if g.method == "autoregressive"}
    others = [g for g in generations if g.method != "autoregressive"]
    if missing := {tuple(g.prompt_ids) for g in others} - references.keys():
        raise ValueError(
            f"{len(missing)} prompts have no autoregressive text to compare with: decode that too"
        )
    divergences = []
    for generation in others:
        divergence = first_divergence(pair, references[tuple(generation.prompt_ids)], generation)
        if divergence is not None:
            name = variant(generation.method, generation.budget)
            divergences.append(f"{name} at token {divergence.position} (logit gap {divergence.gap:.4f})")
    tokens = sum(len(g.ids) for g in others)
    dtype = str(pair.dtype).removeprefix("torch.")
    if not divergences:
        return (
            f"**Identical.** All {len(others)} drafted generations on {len(references)} prompts equal the "
            f"autoregressive ones token for token ({tokens} tokens compared, greedy, {dtype})."
        )
    places = "; ".join(divergences[:SHOWN_DIVERGENCES])
    if len(divergences) > SHOWN_DIVERGENCES:
        places += f" and {len(divergences) - SHOWN_DIVERGENCES} more"
    return (
        f"**{len(divergences)} of {len(others)} generations part from the autoregressive text** ({dtype}): "
        f"{places}. Gaps near 0 are near-ties of the target; larger ones would be an error."
    )


def acceptance(summary: pd.DataFrame) -> str:
    """Range of τ over the groups of a `stats.summary`, per drafting variant, in Markdown."""
    drafted = summary.loc[(summary["method"] != "autoregressive") & summary["tau"].notna()]
    if drafted.empty:
        return "- There is no round with drafts: every text ended with its first token."
    group = summary.columns[0]
    lines = []
    for name, rows in drafted.groupby("variant", sort=False):
        best, worst = rows.loc[rows["tau"].idxmax()], rows.loc[rows["tau"].idxmin()]
        span = f"τ {best['tau']:.2f} on {code_span(best[group])}"
        if len(rows) > 1:
            span += f" down to {worst['tau']:.2f} on {code_span(worst[group])}"
        lines.append(f"- **{name}**: {span}")
    return "\n".join(lines)


def speed(summary: pd.DataFrame) -> str:
    """Where drafting won and lost time against autoregressive decoding, in Markdown."""
    drafted = summary.loc[(summary["method"] != "autoregressive") & summary["speedup"].notna()]
    if drafted.empty:
        return "There is no autoregressive baseline in this run, so no speed-up can be stated."
    group = summary.columns[0]

    def name(row: pd.Series) -> str:
        return f"{row['variant']} on {code_span(str(row[group]))} ({row['speedup']:.2f}×)"

    fastest = drafted.loc[drafted["speedup"].idxmax()]
    slower = drafted.loc[drafted["speedup"] < 1]
    text = f"Fastest against autoregressive decoding: **{name(fastest)}**."
    if slower.empty:
        return f"{text} No setting was slower than autoregressive decoding."
    listed = ", ".join(name(row) for _, row in slower.iterrows())
    return f"{text} Slower than autoregressive decoding, {len(slower)} of {len(drafted)}: {listed}."


def recognition(table: pd.DataFrame) -> str:
    """How often autopsies named the injected cause, per pair, from the rows of `confusion`, in Markdown."""
    lines = []
    for pair, rows in _expressed_faults(table).items():
        places = [row["place"] for row in rows if row["symptom"]]
        first, three = (sum(place <= most for place in places) for most in (1, 3))
        silent = ", ".join(row["fault"] for row in rows if not row["symptom"]) or "none"
        lines.append(
            f"- {code_span(pair)}: of {len(places)} faults that show, the right cause comes first in {first} "
            f"and among the first three in {three}. Without a symptom on these prompts: {silent}."
        )
    return "\n".join(lines)


def near_nothing(table: pd.DataFrame, most: float = 0.02) -> str:
    """Which faults leave at most a share `most` of the drafts accepted, per pair, in Markdown."""
    lines = []
    for pair, rows in _expressed_faults(table).items():
        low = [(row["acceptance_rate"], row["fault"]) for row in rows if row["acceptance_rate"] <= most]
        named = ", ".join(f"{fault} ({rate:.1%})" for rate, fault in sorted(low)) or "none"
        lines.append(f"- {code_span(pair)}: {named}")
    return "\n".join(lines)


def _expressed_faults(table: pd.DataFrame) -> dict[str, list[dict[Any, Any]]]:
    """The rows of `confusion` of faults that a pair could express, by pair."""
    faults = table.loc[(table["fault"] != "healthy") & (table["reason"] == "")]
    return {str(pair): rows.to_dict("records") for pair, rows in faults.groupby("pair", sort=False)}
