"""Tables of a run: acceptance lengths, acceptance by depth, speed, with intervals over prompts.

Every function takes the tables of `load_run` and returns a tidy table, one row per group and variant. A
variant is a method with its budget; `by` names the columns that split the groups (`()` for the whole run).
A run without any round (each text ended with its first token) gives tables without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from ddtree_core.experiments.schema import STAGES

METHODS = {"autoregressive": "Autoregressive", "dflash": "DFlash", "ddtree": "DDTree"}
BASELINE = "autoregressive"
RESAMPLES = 9999
_VARIANT = ["method", "budget", "variant"]


def variant(method: str, budget: Any = None) -> str:
    """Display name of a method with its budget: `DDTree 32`, `DFlash`."""
    name = METHODS.get(method, method)
    return name if budget is None or pd.isna(budget) else f"{name} {int(budget)}"


def mean_acceptance(
    rounds: pd.DataFrame, by: Sequence[str] = ("domain",), confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Mean acceptance length τ, all tokens over all rounds, with a bootstrap interval over prompts.

    Rounds of one prompt are not independent, so prompts are resampled and not rounds (percentile interval,
    seeded). With fewer than 2 prompts `low` and `high` are NaN. `acceptance_rate` is accepted draft tokens
    over the drafted ones along the path, counted as the depth of the tree; NaN where nothing was drafted.
    """
    rows = []
    for keys, group in _variants(rounds, by):
        lengths, drafted = numbers(group, "acceptance_length"), numbers(group, "drafted_depth").sum()
        prompt, _ = pd.factorize(group["prompt_id"])
        tokens, count = np.bincount(prompt, weights=lengths), np.bincount(prompt)
        low, high = _interval(_ratio, (tokens, count), confidence, seed)
        rows.append(
            {
                **keys,
                "n_prompts": len(count),
                "n_rounds": len(group),
                "tau": lengths.mean(),
                "low": low,
                "high": high,
                "acceptance_rate": (lengths - 1).sum() / drafted if drafted else np.nan,
            }
        )
    return _table(rows, by, ["n_prompts", "n_rounds", "tau", "low", "high", "acceptance_rate"])


def acceptance_histogram(rounds: pd.DataFrame, by: Sequence[str] = ("domain",)) -> pd.DataFrame:
    """Rounds and share of rounds at every acceptance length from 1 to the longest of the table."""
    rows = []
    longest = int(numbers(rounds, "acceptance_length").max(initial=1))
    for keys, group in _variants(rounds, by):
        lengths = numbers(group, "acceptance_length").astype(int)
        counts = np.bincount(lengths, minlength=longest + 1)
        for length in range(1, longest + 1):
            share = counts[length] / len(group)
            rows.append({**keys, "length": length, "n_rounds": int(counts[length]), "share": share})
    return _table(rows, by, ["length", "n_rounds", "share"])


def acceptance_by_depth(rounds: pd.DataFrame, by: Sequence[str] = ("domain",)) -> pd.DataFrame:
    """Share of rounds whose accepted path reaches a depth, among rounds whose tree is at least that deep.

    Depth 1 is the first draft token. Best-first trees grow deep where the drafter is sure, so `share` counts
    only rounds that tried; `share_of_all` is over all rounds. No rows where nothing is drafted.
    """
    rows = []
    for keys, group in _variants(rounds, by):
        drafted, accepted = numbers(group, "drafted_depth"), numbers(group, "acceptance_length") - 1
        for depth in range(1, int(drafted.max()) + 1):
            available = drafted >= depth
            reached = int((accepted >= depth).sum())
            row = {"depth": depth, "n_rounds": int(available.sum()), "share": reached / available.sum()}
            rows.append({**keys, **row, "share_of_all": reached / len(group)})
    return _table(rows, by, ["depth", "n_rounds", "share", "share_of_all"])


def speed(
    generations: pd.DataFrame, by: Sequence[str] = ("domain",), confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Tokens per second, and speed-up over the autoregressive generations of the same prompts and run.

    `speedup` compares total seconds per token over all prompts that both methods answered: the plain ratio of
    total seconds where the texts are identical. `speedup_low` and `speedup_high` are its bootstrap interval
    over prompts, `speedup_median` is the median of the ratios of single prompts. NaN without a baseline.

    Raises ValueError if the table mixes pairs, temperatures or packing: choose the rows of one setting first.
    """
    _one_setting(generations)
    rows = []
    for keys, group in _variants(generations, by):
        mine, base = _per_prompt(group), _per_prompt(_baseline(generations, keys, by))
        pairs = np.array([[*base[prompt], *mine[prompt]] for prompt in mine if prompt in base])
        columns = list(pairs.reshape(-1, 4).T)  # seconds and tokens of the baseline, then of the variant
        low, high = _interval(_speedup, columns, confidence, seed)
        single = (columns[0] / columns[1]) / (columns[2] / columns[3])
        seconds, tokens = np.array(list(mine.values())).sum(axis=0)
        rows.append(
            {
                **keys,
                "tokens_per_second": tokens / seconds,
                "speedup": _speedup(*columns) if len(pairs) else np.nan,
                "speedup_low": low,
                "speedup_high": high,
                "speedup_median": np.median(single) if len(pairs) else np.nan,
            }
        )
    measures = ["tokens_per_second", "speedup", "speedup_low", "speedup_high", "speedup_median"]
    return _table(rows, by, measures)


def summary(
    rounds: pd.DataFrame,
    generations: pd.DataFrame,
    by: Sequence[str] = ("domain",),
    confidence: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Acceptance and speed side by side, one row per group and variant; raises as `speed` does.

    What is known from rounds is NaN where a variant has generations but no round.
    """
    _one_setting(rounds)
    acceptance = mean_acceptance(rounds, by, confidence, seed).drop(columns=["method", "budget"])
    speeds = speed(generations, by, confidence, seed)
    keys = [*by, *_VARIANT]
    table = speeds[keys].merge(acceptance, on=[*by, "variant"], how="left", validate="one_to_one")
    return table.merge(speeds, on=keys, validate="one_to_one")


def stage_seconds(rounds: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Mean seconds of a round per stage: one row per group, variant and stage; stages add up to the round."""
    rows = [
        {**keys, "stage": stage, "seconds": numbers(group, f"{stage}_seconds").mean()}
        for keys, group in _variants(rounds, by)
        for stage in STAGES
    ]
    return _table(rows, by, ["stage", "seconds"])


def timeline(rounds: pd.DataFrame) -> pd.DataFrame:
    """Tokens committed against seconds since decoding began: one row per prompt, variant and round.

    Seconds add up the rounds' stages; the prefill and the token that it commits stand at 0 seconds.
    """
    parts = []
    for keys, group in _variants(rounds, by=("prompt_id",)):
        seconds = sum(numbers(group, f"{stage}_seconds") for stage in STAGES)
        before = 1 if numbers(group, "round").min() > 0 else 0  # the prefill is round 0 where it is kept
        parts.append(
            pd.DataFrame(
                {
                    **keys,
                    "round": numbers(group, "round").astype(int),
                    "seconds": np.cumsum(seconds),
                    "tokens": before + np.cumsum(numbers(group, "n_tokens")).astype(int),
                }
            )
        )
    if not parts:
        return _table([], ["prompt_id"], ["round", "seconds", "tokens"])
    return pd.concat(parts, ignore_index=True)


def _variants(table: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups in order of first appearance, within them autoregressive, DFlash, then DDTree by budget."""
    if table.empty:
        return
    for group_keys, group in _groups(table, by):
        for (method, budget), rows in sorted(_groups(group, ["method", "budget"]), key=_order):
            keys = {"method": method, "budget": budget, "variant": variant(method, budget)}
            yield dict(zip(by, group_keys, strict=True)) | keys, rows


def _table(rows: Sequence[dict[str, Any]], by: Sequence[str], measures: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*by, *_VARIANT, *measures])


def _groups(table: pd.DataFrame, by: Sequence[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    if not by:
        return [((), table)]
    return list(table.groupby(list(by), sort=False, dropna=False))  # pyright: ignore[reportReturnType]


def _order(group: tuple[tuple[Any, ...], pd.DataFrame]) -> tuple[int, str, int]:
    method, budget = group[0]
    rank = list(METHODS).index(method) if method in METHODS else len(METHODS)
    return rank, method, -1 if pd.isna(budget) else int(budget)


def _one_setting(table: pd.DataFrame) -> None:
    for column in ("pair", "temperature", "packed"):
        found = list(table[column].unique())
        if len(found) > 1:
            raise ValueError(
                f"the table mixes several values of {column!r} ({', '.join(map(str, found))}), which must "
                "not be averaged or compared: choose the rows of one first"
            )


def numbers(table: pd.DataFrame, column: str) -> np.ndarray:
    """A column as floats; nulls become NaN."""
    return np.asarray(table[column], dtype=float)


def _baseline(generations: pd.DataFrame, keys: dict[str, Any], by: Sequence[str]) -> pd.DataFrame:
    chosen = generations["method"] == BASELINE
    for column in by:
        chosen &= generations[column] == keys[column]
    return generations.loc[chosen]


def _per_prompt(generations: pd.DataFrame) -> dict[str, np.ndarray]:
    # Seconds and tokens; repeats of a prompt are added up, they are one sample.
    totals: dict[str, np.ndarray] = {}
    values = np.stack([numbers(generations, "total_seconds"), numbers(generations, "n_tokens")], axis=1)
    for prompt, row in zip(generations["prompt_id"], values, strict=True):
        totals[prompt] = totals.get(prompt, np.zeros(2)) + row
    return totals


def _ratio(numerator: np.ndarray, denominator: np.ndarray, *, axis: int = -1) -> np.ndarray:
    return numerator.sum(axis=axis) / denominator.sum(axis=axis)


def _speedup(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
    # Seconds and tokens of the baseline, then of the variant.
    base_seconds, base_tokens, seconds, tokens = (sample.sum(axis=axis) for sample in samples)
    return (base_seconds / base_tokens) / (seconds / tokens)


def _interval(
    statistic: Callable[..., np.ndarray], samples: Sequence[np.ndarray], confidence: float, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of paired samples, one value per prompt."""
    if len(samples[0]) < 2:
        return np.nan, np.nan
    result = stats.bootstrap(
        tuple(samples),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
