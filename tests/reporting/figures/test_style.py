"""One colour for a method in every figure, and text that stays text."""

import numpy as np
from matplotlib.colors import same_color, to_rgb

from ddtree_core.reporting.figures.acceptance import mean_acceptance
from ddtree_core.reporting.figures.style import METHOD_COLOURS, colour
from ddtree_core.reporting.tables import stats
from tests.reporting.figures.small_tables import ROUNDS, texts


def test_a_method_has_one_colour_and_budgets_darken() -> None:
    assert colour("dflash") == METHOD_COLOURS["dflash"]
    budgets = (4, 8, 16, 32, 64, 128, 256)
    light = [np.mean(to_rgb(colour("ddtree", budget))) for budget in budgets]
    assert light == sorted(light, reverse=True)
    assert len({colour("ddtree", budget) for budget in budgets}) == 7
    assert same_color(colour("ddtree", 1), colour("ddtree", 4))  # the scale ends there


def test_a_dollar_in_a_name_is_a_dollar() -> None:
    """Between two of them, matplotlib would set a formula, and fail where it is none."""
    names = {"chat": r"cost $\nothing$ at $5"}
    figure = mean_acceptance(stats.mean_acceptance(ROUNDS.replace({"domain": names})), r"n = $\foo$")
    assert "<svg" in figure._repr_mimebundle_()["image/svg+xml"]  # pyright: ignore[reportAttributeAccessIssue]
    assert {r"cost $\nothing$ at $5  (3 prompts)", r"n = $\foo$"} <= set(texts(figure))
