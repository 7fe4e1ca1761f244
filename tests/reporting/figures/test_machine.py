"""The picture of a placement shows the table's numbers, and which device is too small."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from ddtree_core.reporting.figures import placement
from ddtree_core.reporting.figures.style import INK

PARTS = {"weights": [20.0, 12.0], "drafter": [0.0, 3.0], "caches": [1.0, 2.0], "tree": [0.5, 0.5]}
TABLE = pd.DataFrame(PARTS | {"reserve": [1.0, 1.0], "needed": [22.5, 18.5], "free": [24.0, 16.0]})
TABLE.index = pd.Index(["cuda:0", "cuda:1"])


def bars(figure: Any) -> list[list[tuple[float, float]]]:
    """Start and width of the bars of each device; first the ground, then the parts in order."""
    (axes,) = [ax for ax in figure.findobj(Axes) if ax.patches]
    drawn = [p for p in axes.patches if isinstance(p, Rectangle)]
    rows: dict[float, list[tuple[float, float]]] = {}
    for patch in drawn:
        middle = round(patch.get_y() + patch.get_height() / 2)
        rows.setdefault(middle, []).append((patch.get_x(), patch.get_width()))
    return [rows[at] for at in sorted(rows)]


def test_bars_add_up_on_the_ground_of_what_is_free() -> None:
    first, second = bars(placement(TABLE))
    assert first == [(0, 24), (0, 20), (20, 0), (20, 1), (21, 0.5), (21.5, 1)]
    assert second == [(0, 16), (0, 12), (12, 3), (15, 2), (17, 0.5), (17.5, 1)]


def test_a_device_that_is_too_small_is_marked() -> None:
    figure: Any = placement(TABLE, "n = 1")
    named = {text.get_text(): text for text in figure.findobj(Text)}
    assert {"cuda:0", "cuda:1", "weights", "drafter", "caches", "tree", "reserve", "n = 1"} <= named.keys()
    assert same_color(named["22.5 of 24.0"].get_color(), INK)
    assert not same_color(named["18.5 of 16.0"].get_color(), INK)
