"""The picture of a training shows every validation and loss of its tables, also when there are few."""

from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.lines import Line2D
from matplotlib.text import Text

from ddtree_core.reporting.figures.style import colour
from ddtree_core.reporting.figures.training import training_progress

LOSSES = pd.DataFrame({"step": range(1, 41), "loss": [8 - 0.1 * n for n in range(40)]})
ACCEPTANCE = pd.DataFrame(
    {
        "step": [0, 0, 20, 20, 40, 40],
        "method": ["chain", "tree 16"] * 3,
        "tau": [1.01, 1.08, 1.22, 1.61, 1.47, 2.034],
    }
)


def axes(figure: Any) -> tuple[Axes, Axes]:
    """Panel of the acceptance and panel of the loss."""
    above, below = (ax for ax in figure.findobj(Axes) if ax.get_ylabel())
    return above, below


def lines(panel: Axes) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.findobj(Line2D)]  # pyright: ignore


def texts(figure: Any) -> dict[str, Text]:
    return {text.get_text(): text for text in figure.findobj(Text)}


def test_each_method_is_a_line_through_its_validations() -> None:
    above, _ = axes(training_progress(LOSSES, ACCEPTANCE))
    drawn = lines(above)
    assert ([0, 20, 40], [1.01, 1.22, 1.47]) in drawn
    assert ([0, 20, 40], [1.08, 1.61, 2.034]) in drawn
    assert any(levels == [1, 1] for _, levels in drawn), "the level of no help must be marked"


def test_lines_end_in_their_method_and_last_value_in_its_colour() -> None:
    named = texts(training_progress(LOSSES, ACCEPTANCE, "n = 20 prompts"))
    assert {"n = 20 prompts", "no help: one token per round"} <= named.keys()
    assert same_color(named["chain  1.47"].get_color(), colour("dflash"))
    assert same_color(named["tree 16  2.03"].get_color(), colour("ddtree", 16))


def test_the_loss_is_drawn_step_by_step_and_as_a_mean_of_a_twentieth_of_them() -> None:
    figure = training_progress(LOSSES, ACCEPTANCE)
    _, below = axes(figure)
    steps, loss = LOSSES["step"].tolist(), LOSSES["loss"].tolist()
    means = [loss[0], *((a + b) / 2 for a, b in pairwise(loss))]  # of 40 // 20 = 2 steps
    every, smooth = (drawn for drawn in lines(below) if len(drawn[0]) == 40)
    assert every == (steps, loss)
    assert smooth == (steps, pytest.approx(means))
    assert "loss  4.15" in texts(figure)  # mean of 4.2 and 4.1


def test_steps_are_whole_numbers_and_none_lies_beyond_the_last() -> None:
    _, below = axes(training_progress(LOSSES, ACCEPTANCE))
    assert list(below.get_xticks()) == [0, 5, 10, 15, 20, 25, 30, 35, 40]


def test_a_finished_training_has_validations_and_no_losses() -> None:
    figure = training_progress(LOSSES.iloc[:0], ACCEPTANCE)
    assert {"tree 16  2.03", "all steps were taken in an earlier run"} <= texts(figure).keys()
    assert not any(text.startswith("loss  ") for text in texts(figure))


def test_a_table_without_validations_is_refused() -> None:
    with pytest.raises(ValueError, match="no validation: measure the drafter at least once"):
        training_progress(LOSSES, ACCEPTANCE.iloc[:0])
