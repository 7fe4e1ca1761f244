"""Statistics of a run against values worked out by hand."""

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ddtree_core.reporting.tables import stats
from ddtree_core.reporting.tables.display import readable

# prompt → acceptance length and depth of the tree of each round
TREE = {"a": [(1, 3), (3, 2)], "b": [(2, 3), (2, 1), (4, 4)]}
CHAIN = {"a": [(2, 3), (2, 3)], "b": [(2, 3), (2, 3), (2, 3), (2, 3)]}
PLAIN = {"a": [(1, 0)] * 4, "b": [(1, 0)] * 8}
KEYS = {"domain": "code", "pair": "tiny", "packed": True, "temperature": 0.0}


def make_rounds(budget: int = 8) -> Any:
    rows: list[dict[str, Any]] = []
    variants = (("ddtree", budget, TREE), ("dflash", None, CHAIN), ("autoregressive", None, PLAIN))
    for method, nodes, prompts in variants:
        for prompt, lengths in prompts.items():
            for index, (length, depth) in enumerate(lengths, start=1):
                seconds = {"draft": 0.0 if depth == 0 else 0.01, "tree": 0.001, "verify": 0.02 * length}
                row = {"method": method, "budget": nodes, "prompt_id": prompt, "round": index, **KEYS}
                row |= {"acceptance_length": length, "drafted_depth": depth, "n_tokens": length}
                row |= {f"{stage}_seconds": seconds.get(stage, 0.0) for stage in stats.STAGES}
                rows.append(row)
    table = pd.DataFrame(rows)
    return table.assign(budget=table["budget"].astype("Int32"))


def make_generations() -> Any:
    """Seconds and tokens: autoregressive 4 s and 8 s, DFlash 3 s and 10 s, DDTree 2 s and 2 s."""
    seconds = {"autoregressive": (4.0, 8.0), "dflash": (3.0, 10.0), "ddtree": (2.0, 2.0)}
    rows = [
        {"method": method, "prompt_id": prompt, "total_seconds": spent, "n_tokens": tokens, **KEYS}
        for method, both in seconds.items()
        for prompt, spent, tokens in zip("ab", both, (4, 8), strict=True)
    ]
    table = pd.DataFrame(rows)
    budget = [8 if method == "ddtree" else None for method in table["method"]]
    return table.assign(budget=pd.array(budget, dtype="Int32"))


def row_of(table: Any, variant: str) -> Any:
    found = table.loc[table["variant"] == variant]
    assert len(found) == 1
    return found.iloc[0]


def test_variants_come_in_the_order_of_the_argument() -> None:
    rounds = pd.concat([make_rounds(64), make_rounds(8)])
    names = list(stats.mean_acceptance(rounds)["variant"])
    assert names == ["Autoregressive", "DFlash", "DDTree 8", "DDTree 64"]


def test_mean_acceptance_is_all_tokens_over_all_rounds() -> None:
    tree = row_of(stats.mean_acceptance(make_rounds()), "DDTree 8")
    assert (tree["n_prompts"], tree["n_rounds"]) == (2, 5)
    assert tree["tau"] == pytest.approx(12 / 5)  # and not (2 + 8/3) / 2, the mean of the prompts' means
    # 7 accepted draft tokens of 3 + 2 + 3 + 1 + 4 drafted along the path
    assert tree["acceptance_rate"] == pytest.approx(7 / 13)
    plain = row_of(stats.mean_acceptance(make_rounds()), "Autoregressive")
    assert plain["tau"] == 1
    assert np.isnan(plain["acceptance_rate"])


def test_the_interval_resamples_prompts() -> None:
    # Two prompts can be drawn as aa, ab, ba or bb, with τ = 4/2, 12/5, 12/5, 16/6: a quarter of the draws is
    # at each end, so these are the 2.5% and 97.5% quantiles.
    tree = row_of(stats.mean_acceptance(make_rounds()), "DDTree 8")
    assert (tree["low"], tree["high"]) == (pytest.approx(2.0), pytest.approx(8 / 3))


def test_the_interval_is_seeded() -> None:
    rng = np.random.default_rng(1)
    lengths = {f"p{i}": [(int(n), 9) for n in rng.integers(1, 9, size=4)] for i in range(12)}
    rows = [
        {
            "method": "dflash",
            "budget": None,
            "prompt_id": p,
            "acceptance_length": n,
            "drafted_depth": d,
            **KEYS,
        }
        for p, all_rounds in lengths.items()
        for n, d in all_rounds
    ]
    ends = [
        stats.mean_acceptance(pd.DataFrame(rows), seed=s)[["low", "high"]].to_numpy()[0] for s in (0, 0, 1)
    ]
    assert list(ends[0]) == list(ends[1])
    assert list(ends[0]) != list(ends[2])


def test_one_prompt_has_no_interval() -> None:
    rounds = make_rounds()
    alone = row_of(stats.mean_acceptance(rounds[rounds["prompt_id"] == "a"]), "DDTree 8")
    assert alone["tau"] == 2.0
    assert np.isnan(alone["low"])
    assert np.isnan(alone["high"])


def test_the_histogram_counts_every_length() -> None:
    table: Any = stats.acceptance_histogram(make_rounds())
    tree = table[table["variant"] == "DDTree 8"]
    assert list(tree["length"]) == [1, 2, 3, 4]
    assert list(tree["n_rounds"]) == [1, 2, 1, 1]
    assert list(tree["share"]) == pytest.approx([0.2, 0.4, 0.2, 0.2])
    assert list(table[table["variant"] == "DFlash"]["n_rounds"]) == [0, 6, 0, 0]


def test_acceptance_by_depth_counts_rounds_that_drafted_so_deep() -> None:
    table: Any = stats.acceptance_by_depth(make_rounds())
    tree = table[table["variant"] == "DDTree 8"]
    # accepted depths 0, 2, 1, 1, 3 in trees of depth 3, 2, 3, 1, 4
    assert list(tree["n_rounds"]) == [5, 4, 3, 1]
    assert list(tree["share"]) == pytest.approx([4 / 5, 2 / 4, 1 / 3, 0 / 1])
    assert list(tree["share_of_all"]) == pytest.approx([4 / 5, 2 / 5, 1 / 5, 0 / 5])
    assert "Autoregressive" not in set(table["variant"])


def test_speed_compares_the_same_prompts() -> None:
    table: Any = stats.speed(make_generations())
    tree, chain = row_of(table, "DDTree 8"), row_of(table, "DFlash")
    assert tree["tokens_per_second"] == pytest.approx(12 / 4)
    assert tree["speedup"] == pytest.approx(12 / 4)
    assert tree["speedup_median"] == pytest.approx((4 / 2 + 8 / 2) / 2)
    assert chain["speedup"] == pytest.approx(12 / 13)  # a loss is told as one
    assert chain["speedup_median"] == pytest.approx((4 / 3 + 8 / 10) / 2)
    # as above: the draws aa and bb are the ends
    assert (tree["speedup_low"], tree["speedup_high"]) == (pytest.approx(2.0), pytest.approx(4.0))
    assert row_of(table, "Autoregressive")["speedup"] == 1


def test_speed_counts_only_prompts_that_both_methods_answered() -> None:
    generations = make_generations()
    dropped = (generations["method"] == "autoregressive") & (generations["prompt_id"] == "b")
    tree = row_of(stats.speed(generations[~dropped]), "DDTree 8")
    assert tree["speedup"] == pytest.approx(4 / 2)
    assert tree["tokens_per_second"] == pytest.approx(12 / 4)


def test_speed_is_per_token_where_texts_differ_in_length() -> None:
    generations = make_generations()
    tree = generations["method"] == "ddtree"
    generations.loc[tree, "n_tokens"] = [2, 4]  # half the tokens in the same time
    assert row_of(stats.speed(generations), "DDTree 8")["speedup"] == pytest.approx(3 / 2)


def test_without_a_baseline_there_is_no_speedup() -> None:
    generations = make_generations()
    table: Any = stats.speed(generations[generations["method"] != "autoregressive"])
    assert table[["speedup", "speedup_low", "speedup_high", "speedup_median"]].isna().all(axis=None)
    assert table["tokens_per_second"].notna().all()


def test_the_summary_has_a_row_per_group_and_variant() -> None:
    rounds, generations = make_rounds(), make_generations()
    both = pd.concat([rounds, rounds.assign(domain="math")])
    twice = pd.concat([generations, generations.assign(domain="math")])
    table: Any = stats.summary(both, twice)
    names = ["Autoregressive", "DFlash", "DDTree 8"]
    assert list(zip(table["domain"], table["variant"], strict=True)) == list(product(["code", "math"], names))
    whole = stats.summary(both, twice, by=())
    assert list(whole["n_rounds"]) == [24, 12, 10]
    assert list(whole["speedup"]) == pytest.approx([1, 12 / 13, 3])


@pytest.mark.parametrize(("column", "value"), [("pair", "other"), ("packed", False), ("temperature", 1.0)])
def test_what_must_not_be_compared_is_refused(column: str, value: Any) -> None:
    generations = pd.concat([make_generations(), make_generations().assign(**{column: value})])
    with pytest.raises(ValueError, match=f"mixes several values of '{column}'.*choose the rows of one"):
        stats.speed(generations)


def test_a_run_without_rounds_gives_tables_without_rows() -> None:
    makers = (stats.mean_acceptance, stats.acceptance_histogram, stats.acceptance_by_depth)
    for make in (*makers, stats.stage_seconds, stats.timeline):
        table = make(make_rounds().iloc[:0])
        assert list(table.columns) == list(make(make_rounds()).columns)
        assert table.empty


def test_the_summary_keeps_the_speed_of_what_has_no_rounds() -> None:
    """All answers in math end with the token of the prefill; those in code are as they were."""
    rounds, generations = make_rounds(), make_generations()
    both = pd.concat([generations, generations.assign(domain="math")])
    table: Any = stats.summary(rounds, both)
    assert list(table["speedup"]) == pytest.approx([1, 12 / 13, 3] * 2)
    assert list(table["tau"].isna()) == [False] * 3 + [True] * 3
    whole: Any = stats.summary(rounds, generations)
    pd.testing.assert_frame_equal(table.iloc[:3], whole, check_dtype=False)
    spelt: Any = readable(table)
    assert spelt.loc[("math", "DDTree 8"), "τ"] == "–"
    assert spelt.loc[("math", "DDTree 8"), "speed-up"] == "3.00× (2.00–4.00)"


def test_stage_seconds_are_means_over_rounds() -> None:
    table: Any = stats.stage_seconds(make_rounds())
    tree = table[table["variant"] == "DDTree 8"].set_index("stage")["seconds"]
    assert list(tree.index) == ["draft", "tree", "verify", "accept", "commit"]
    assert list(tree) == pytest.approx([0.01, 0.001, 0.02 * 12 / 5, 0, 0])


def test_the_timeline_adds_up_from_the_token_of_the_prefill() -> None:
    table: Any = stats.timeline(make_rounds())
    line = table[(table["variant"] == "DDTree 8") & (table["prompt_id"] == "b")]
    assert list(line["tokens"]) == [3, 5, 9]  # 1 of the prefill, then 2, 2 and 4
    assert list(line["seconds"]) == pytest.approx([0.051, 0.102, 0.193])


def test_the_readable_table_spells_numbers_out() -> None:
    table: Any = readable(stats.summary(make_rounds(), make_generations()))
    assert list(table.index.names) == ["domain", "method"]
    row = table.loc[("code", "DDTree 8")]
    assert row["τ"] == "2.40 (2.00–2.67)"
    assert row["speed-up"] == "3.00× (2.00–4.00)"
    assert row["accepted of drafted"] == "54%"
    assert table.loc[("code", "Autoregressive"), "accepted of drafted"] == "–"
    assert table.loc[("code", "Autoregressive"), "speed-up"] == "1.00×"
