"""What each rule accepts of the same trees: shares and means."""

from matplotlib.patches import Rectangle

from ddtree_core.reporting.figures.rules import rule_histograms
from tests.reporting.figures.small_tables import RULES


def test_bars_are_shares_and_titles_name_the_mean() -> None:
    panels = rule_histograms(RULES).axes
    heights = [[bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)] for axes in panels]
    assert heights == [[0.25, 0.5, 0.25], [0.75, 0.25, 0.0]]
    titles = [axes.get_title(loc="left") for axes in panels]
    assert titles == ["walk: 1.00 accepted per round", "linear: 0.25 accepted per round"]
