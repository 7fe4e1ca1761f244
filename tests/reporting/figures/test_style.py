"""One colour for a method in every figure."""

import numpy as np
from matplotlib.colors import same_color, to_rgb

from ddtree_core.reporting.figures.style import METHOD_COLOURS, colour


def test_a_method_has_one_colour_and_budgets_darken() -> None:
    assert colour("dflash") == METHOD_COLOURS["dflash"]
    budgets = (4, 8, 16, 32, 64, 128, 256)
    light = [np.mean(to_rgb(colour("ddtree", budget))) for budget in budgets]
    assert light == sorted(light, reverse=True)
    assert len({colour("ddtree", budget) for budget in budgets}) == 7
    assert same_color(colour("ddtree", 1), colour("ddtree", 4))  # the scale ends there
