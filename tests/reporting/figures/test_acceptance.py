"""How long accepted paths are: the figures show the numbers of their tables."""

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from ddtree_core.reporting.figures.acceptance import (
    acceptance_by_depth,
    acceptance_histograms,
    mean_acceptance,
)
from ddtree_core.reporting.figures.style import colour
from ddtree_core.reporting.tables import stats
from tests.reporting.figures.small_tables import ROUNDS, texts


def test_histograms_have_the_shares_as_heights_and_name_the_mean() -> None:
    table: Any = stats.acceptance_histogram(ROUNDS)
    figure: Any = acceptance_histograms(table)
    axes = [ax for ax in figure.findobj(Axes) if ax.patches]
    assert len(axes) == 6  # DFlash and two budgets, two domains; autoregressive decoding drafts nothing
    heights = sorted(patch.get_height() for ax in axes for patch in ax.patches)
    assert heights == pytest.approx(sorted(table[table["method"] != "autoregressive"]["share"]))
    means: Any = stats.mean_acceptance(ROUNDS)
    for tau in means[means["method"] != "autoregressive"]["tau"]:
        assert f"τ {tau:.2f}    90 rounds" in texts(figure)


def test_depth_lines_run_through_the_shares() -> None:
    table: Any = stats.acceptance_by_depth(ROUNDS)
    figure: Any = acceptance_by_depth(table)
    labelled = {line.get_label() for line in figure.findobj(Line2D)}
    assert {"DFlash", "DDTree 8", "DDTree 32"} <= labelled
    wanted = table[(table["variant"] == "DDTree 8") & (table["domain"] == "code")]["share"].tolist()
    drawn = [list(line.get_ydata()) for line in figure.findobj(Line2D)]
    assert wanted in drawn


def test_a_dot_has_the_colour_of_its_method() -> None:
    figure: Any = mean_acceptance(stats.mean_acceptance(ROUNDS))
    drawn = {to_hex(dot.get_color()) for dot in figure.findobj(Line2D) if dot.get_marker() == "o"}
    assert drawn == {colour("dflash").lower(), colour("ddtree", 8), colour("ddtree", 32)}


def test_tables_without_drafts_are_refused() -> None:
    plain = ROUNDS[ROUNDS["method"] == "autoregressive"]
    with pytest.raises(ValueError, match="no method of this table drafts tokens"):
        acceptance_histograms(stats.acceptance_histogram(plain))
    with pytest.raises(ValueError, match="no method of this table drafts tokens"):
        mean_acceptance(stats.mean_acceptance(plain))


def test_one_domain_and_one_prompt_are_enough() -> None:
    means: Any = stats.mean_acceptance(ROUNDS[ROUNDS["prompt_id"] == "chat-0"])
    assert means["low"].isna().all()
    assert "chat  (1 prompt)" in texts(mean_acceptance(means))
