"""Known acceptance lengths of a pair, beside measured ones: published, or reached in a training here."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from ddtree_core.models.loading import locate
from ddtree_core.models.registry import find_pair
from ddtree_core.reporting.tables.display import MISSING
from ddtree_core.reporting.tables.plain_text import code_span
from ddtree_core.reporting.tables.stats import variant

COLUMNS = ["dataset", "method", "budget", "temperature", "tau", "source"]
ALL_TOGETHER = ("all", "mean")  # names of several data sets together
NOTEBOOK = "06_low_acceptance_autopsy"  # looks for the cause of low acceptance
FAR_BELOW = 0.5  # of the accepted drafts per round that are known


def known_tau(pair: str | tuple[str, str]) -> pd.DataFrame:
    """Known τ of a pair, one row per figure: data set, method, budget, temperature, tau, source.

    They come from the registry, and from the `training.json` of a drafter in a folder. The table has no rows
    where nothing is known. Raises `PairError` for an unknown name, `ValueError` for a damaged file.
    """
    spec = find_pair(pair)
    rows: list[dict[str, Any]] = [vars(figure) for figure in spec.published]
    return pd.DataFrame(rows + _held_out(Path(locate(spec.drafter))), columns=COLUMNS)


def beside_known(measured: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """Measured and known τ as text: a row per method, a column per source and data set.

    `measured` is a `stats.mean_acceptance` by domain. Known figures are greedy ones unless the column tells
    another temperature.
    """
    rows = [
        ("measured here", row["domain"], row["variant"], row["tau"])
        for row in measured.to_dict("records")
        if row["method"] != "autoregressive"
    ]
    rows += [
        (row["source"], _data_set(row), variant(row["method"], row["budget"]), row["tau"])
        for row in known.to_dict("records")
    ]
    table = pd.DataFrame(rows, columns=["source", "data set", "method", "τ"])
    columns = table[["source", "data set"]].drop_duplicates().itertuples(index=False, name=None)
    if table.empty:
        return table
    wide = table.pivot(index="method", columns=["source", "data set"], values="τ")
    wide = wide.reindex(index=table["method"].unique(), columns=pd.MultiIndex.from_tuples(columns))
    return wide.map(lambda tau: MISSING if pd.isna(tau) else f"{tau:.2f}")


def compare_known(measured: pd.DataFrame, known: pd.DataFrame) -> str:
    """One sentence on the measured chain against the known greedy one, in Markdown.

    Compared are accepted drafts per round (τ − 1) on the same data set, else on all together, else on the
    hardest. The best data set speaks; with less than half even there, notebook 06 is named.
    """
    chains = known.loc[(known["method"] == "dflash") & (known["temperature"].fillna(0.0) == 0)]
    if chains.empty:
        return "No acceptance length of the chain is known for this pair: nothing to compare with."
    figures = dict(zip(chains["dataset"], chains["tau"], strict=True))
    whole = next((figures[name] for name in ALL_TOGETHER if name in figures), min(figures.values()))
    chain = measured.loc[measured["method"] == "dflash"]
    if chain.empty:
        return "There is no round of the chain: nothing to compare with what is known of this pair."
    accepted = {
        domain: (tau - 1, figures.get(domain, whole) - 1)
        for domain, tau in zip(chain["domain"], chain["tau"], strict=True)
    }
    best = max(accepted, key=lambda domain: accepted[domain][0] - FAR_BELOW * accepted[domain][1])
    own, expected = accepted[best]
    text = (
        f"The chain accepts {own:.2f} drafts per round on {code_span(best)}, where {expected:.2f} are known"
    )
    if own >= FAR_BELOW * expected:
        return f"{text}: nothing in that speaks of a fault, though such different texts tell no more."
    return (
        f"**Far below what is known.** {text}, and no data set does better; unless these prompts are much "
        f"harder, something is wrong, and notebook {NOTEBOOK} looks for it."
    )


def _held_out(folder: Path) -> list[dict[str, Any]]:
    path = folder / "training.json"
    if not path.is_file():
        return []
    source = f"held-out prompts, {folder.name}"
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["held_out"]
        return [
            dict(zip(COLUMNS, (dataset, *_method(name), 0.0, float(tau), source), strict=True))
            for name, by_domain in figures.items()
            for dataset, tau in by_domain.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} tells no acceptance lengths ({type(error).__name__}: {error}); expected 'held_out' as "
            "training writes it, or no such file"
        ) from error


def _method(name: str) -> tuple[str, int | None]:
    """Method and budget of "chain" or "tree N"."""
    return ("dflash", None) if name == "chain" else ("ddtree", int(name.removeprefix("tree ")))


def _data_set(row: dict[Any, Any]) -> str:
    temperature = row["temperature"]
    if pd.isna(temperature):
        return f"{row['dataset']}, T unknown"
    return row["dataset"] if temperature == 0 else f"{row['dataset']}, T = {temperature:g}"
