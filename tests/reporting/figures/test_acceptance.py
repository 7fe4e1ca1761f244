"""Figures show the numbers of their tables, and leave nothing behind."""

from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from ddtree_core.reporting import figures
from ddtree_core.reporting.figures.style import METHOD_COLOURS, colour
from ddtree_core.reporting.tables import stats


def make_run() -> tuple[Any, Any]:
    """Two domains, three prompts each, three variants; lengths from a fixed seed."""
    rng = np.random.default_rng(0)
    rounds, generations = [], []
    for domain in ("chat", "code"):
        for prompt in range(3):
            for method, budget in (("autoregressive", None), ("dflash", None), ("ddtree", 8), ("ddtree", 32)):
                keys = {
                    "domain": domain,
                    "prompt_id": f"{domain}-{prompt}",
                    "method": method,
                    "budget": budget,
                }
                keys |= {"pair": "tiny", "packed": True, "temperature": 0.0}
                depth = 0 if method == "autoregressive" else 7
                lengths = rng.integers(1, depth + 2, size=30)
                for index, length in enumerate(lengths, start=1):
                    spent = {f"{stage}_seconds": 0.01 for stage in stats.STAGES}
                    row = {"round": index, "acceptance_length": length, "drafted_depth": depth}
                    rounds.append({**keys, **row, "n_tokens": length, **spent})
                generations.append({**keys, "n_tokens": lengths.sum(), "total_seconds": 0.05 * len(lengths)})
    tables = (pd.DataFrame(rounds), pd.DataFrame(generations))
    return tables[0].astype({"budget": "Int32"}), tables[1].astype({"budget": "Int32"})


ROUNDS, GENERATIONS = make_run()
MEMORY = pd.DataFrame({"moment": ["before", "after"], "gib": [0.5, 1.25]})


def one_prompt() -> Any:
    return stats.timeline(ROUNDS[ROUNDS["prompt_id"] == "code-1"])


DRAWN: dict[str, Callable[[str], Any]] = {
    "acceptance_histograms": lambda c: figures.acceptance_histograms(stats.acceptance_histogram(ROUNDS), c),
    "acceptance_by_depth": lambda c: figures.acceptance_by_depth(stats.acceptance_by_depth(ROUNDS), c),
    "mean_acceptance": lambda c: figures.mean_acceptance(stats.mean_acceptance(ROUNDS), c),
    "speedup": lambda c: figures.speedup(stats.speed(GENERATIONS), c),
    "stage_seconds": lambda c: figures.stage_seconds(stats.stage_seconds(ROUNDS), c),
    "token_timeline": lambda c: figures.token_timeline(one_prompt(), c),
    "memory_bars": lambda c: figures.memory_bars(MEMORY, 16.0, c),
}


def find(figure: Any, kind: type) -> list[Any]:
    return figure.findobj(kind)


def texts(figure: Any) -> list[str]:
    figure.canvas.draw()
    return [text.get_text() for text in find(figure, Text) if text.get_text()]


def test_every_public_figure_is_drawn_here() -> None:
    assert sorted(DRAWN) == figures.__all__


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_returned_and_nothing_else_happens(name: str) -> None:
    before = dict(mpl.rcParams)
    figure = DRAWN[name]("n = 6 prompts")
    assert isinstance(figure, Figure)
    assert "n = 6 prompts" in texts(figure)
    assert plt.get_fignums() == []
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", DRAWN)
def test_notebooks_show_an_svg_with_a_text_alternative(name: str) -> None:
    bundle = DRAWN[name]("n = 6")._repr_mimebundle_()
    assert ElementTree.fromstring(bundle["image/svg+xml"]).tag == "{http://www.w3.org/2000/svg}svg"
    assert "date>" not in bundle["image/svg+xml"]  # a figure drawn again is no change
    assert bundle["text/plain"].startswith(texts(DRAWN[name](""))[0])  # the title


def test_histograms_have_the_shares_as_heights_and_name_the_mean() -> None:
    table: Any = stats.acceptance_histogram(ROUNDS)
    figure = figures.acceptance_histograms(table)
    axes = [ax for ax in find(figure, Axes) if ax.patches]
    assert len(axes) == 6  # DFlash and two budgets, two domains; autoregressive decoding drafts nothing
    heights = sorted(patch.get_height() for ax in axes for patch in ax.patches)
    assert heights == pytest.approx(sorted(table[table["method"] != "autoregressive"]["share"]))
    means: Any = stats.mean_acceptance(ROUNDS)
    for tau in means[means["method"] != "autoregressive"]["tau"]:
        assert f"τ {tau:.2f}    90 rounds" in texts(figure)


def test_depth_lines_run_through_the_shares() -> None:
    table: Any = stats.acceptance_by_depth(ROUNDS)
    figure = figures.acceptance_by_depth(table)
    labelled = {line.get_label() for line in find(figure, Line2D)}
    assert {"DFlash", "DDTree 8", "DDTree 32"} <= labelled
    wanted = table[(table["variant"] == "DDTree 8") & (table["domain"] == "code")]["share"].tolist()
    drawn = [list(line.get_ydata()) for line in find(figure, Line2D)]
    assert wanted in drawn


def test_a_loss_is_drawn_below_the_line_of_autoregressive_decoding() -> None:
    table = pd.DataFrame(
        {
            "domain": "chat",
            "method": ["autoregressive", "dflash", "ddtree", "ddtree"],
            "budget": pd.array([None, None, 8, 64], dtype="Int32"),
            "speedup": [1.0, 0.8, 1.5, 0.7],
            "speedup_low": np.nan,
            "speedup_high": np.nan,
        }
    )
    figure = figures.speedup(table)
    assert {"1.50", "0.70", "DFlash 0.80", "autoregressive"} <= set(texts(figure))
    levels = [line.get_ydata()[0] for line in find(figure, Line2D) if len(line.get_ydata()) == 2]
    assert 1.0 in levels
    assert 0.8 in levels


def test_stages_add_up_to_the_round() -> None:
    figure = DRAWN["stage_seconds"]("")
    assert texts(figure).count("50.0 ms") == 4  # five stages of 10 ms, four variants


def test_a_method_has_one_colour_and_budgets_darken() -> None:
    assert colour("dflash") == METHOD_COLOURS["dflash"]
    light = [np.mean(to_rgb(colour("ddtree", budget))) for budget in (4, 8, 16, 32, 64, 128, 256)]
    assert light == sorted(light, reverse=True)
    assert len({colour("ddtree", budget) for budget in (4, 8, 16, 32, 64, 128, 256)}) == 7
    dots = find(figures.mean_acceptance(stats.mean_acceptance(ROUNDS)), Line2D)
    drawn = {to_hex(dot.get_color()) for dot in dots if dot.get_marker() == "o"}
    assert drawn == {colour("dflash").lower(), colour("ddtree", 8), colour("ddtree", 32)}
    assert same_color(colour("ddtree", 1), colour("ddtree", 4))  # the scale ends there


def test_tables_without_what_a_figure_needs_are_refused() -> None:
    plain = ROUNDS[ROUNDS["method"] == "autoregressive"]
    with pytest.raises(ValueError, match="no method of this table drafts tokens"):
        figures.acceptance_histograms(stats.acceptance_histogram(plain))
    with pytest.raises(ValueError, match="no method of this table drafts tokens"):
        figures.acceptance_by_depth(stats.acceptance_by_depth(plain))
    with pytest.raises(ValueError, match="no autoregressive decoding"):
        figures.speedup(stats.speed(GENERATIONS[GENERATIONS["method"] == "ddtree"]))
    with pytest.raises(ValueError, match="shows one prompt, the table holds 6"):
        figures.token_timeline(stats.timeline(ROUNDS))


def test_one_domain_and_one_prompt_are_enough() -> None:
    rounds = ROUNDS[ROUNDS["prompt_id"] == "chat-0"]
    means: Any = stats.mean_acceptance(rounds)
    assert means["low"].isna().all()
    assert "chat  (1 prompt)" in texts(figures.mean_acceptance(means))
    speeds = stats.speed(GENERATIONS[GENERATIONS["prompt_id"] == "chat-0"])
    assert not any("interval" in text for text in texts(figures.speedup(speeds)))
