"""The pictures of hybrid targets show their tables' numbers."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from ddtree_core.reporting.figures.hybrid import SMALLEST_ERROR, layer_cost, node_errors, tree_memory

# Root 0, child 1, and a second child 2 of the root, which the library reads behind node 1.
SHAPE = {
    "node": [0, 1, 2],
    "parent": [-1, 0, 0],
    "depth": [0, 1, 1],
    "place": ["first path"] * 2 + ["sibling"],
}
ERRORS = pd.concat(
    [
        pd.DataFrame(SHAPE | {"layers": "library", "error": [1e-6, 2e-6, 3.0], "spread": 0.8}),
        pd.DataFrame(SHAPE | {"layers": "tree", "error": [1e-6, 0.0, 3e-6], "spread": 0.8}),
    ]
)
MEMORY = pd.DataFrame({"nodes": [64, 16] * 2, "way": ["held"] * 2 + ["states"] * 2})
MEMORY["bytes"] = [4 * 2**20, 2**20, 256 * 2**20, 64 * 2**20]
COST = pd.DataFrame(
    {"nodes": [16, 16, 64, 64], "reading": ["chain", "tree"] * 2, "milliseconds": [10.0, 8, 20, 25]}
)


def axes_of(figure: Any) -> list[Axes]:
    return [ax for ax in figure.findobj(Axes) if ax.lines or ax.patches]


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    drawn = [line for line in axes.lines if isinstance(line, Line2D)]
    return [([float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]) for line in drawn]  # pyright: ignore


def texts(figure: Any) -> set[str]:
    return {text.get_text() for text in figure.findobj(Text)}


class TestNodeErrors:
    def test_every_error_stands_at_its_node(self):
        errors, _ = axes_of(node_errors(ERRORS))
        assert errors.get_yscale() == "log"
        first, sibling, ours, spread = lines(errors)
        assert first == ([0, 1], [1e-6, 2e-6])
        assert sibling == ([2], [3.0])
        assert ours == ([0, 1, 2], [1e-6, SMALLEST_ERROR, 3e-6])  # no error at all lies at the foot
        assert spread[1] == [0.8, 0.8]

    def test_the_tree_below(self):
        _, tree = axes_of(node_errors(ERRORS))
        drawn = lines(tree)
        assert drawn[:2] == [([0, 1], [0, 1]), ([0, 2], [0, 1])]  # an edge per child
        assert drawn[2:] == [([0, 1], [0, 1]), ([2], [1])]  # nodes by place
        assert tree.yaxis_inverted()

    def test_names(self):
        written = texts(node_errors(ERRORS, "n = 1"))
        assert {"library: first path", "library: sibling", "tree: every node"} <= written
        assert {"spread of the logits", "n = 1"} <= written


class TestTreeMemory:
    def test_mebibytes_by_nodes(self):
        (axes,) = axes_of(tree_memory(MEMORY))
        assert lines(axes) == [([16, 64], [1, 4]), ([16, 64], [64, 256])]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")

    def test_labels(self):
        assert {"held", "states", "1.00", "4.00", "64", "256", "n = 1"} <= texts(tree_memory(MEMORY, "n = 1"))

    def test_one_size_leaves_room_for_the_names(self):
        (axes,) = axes_of(tree_memory(MEMORY.loc[[0, 2]]))
        assert axes.get_xlim()[1] >= 128


class TestLayerCost:
    def test_bars_and_ratios(self):
        figure = layer_cost(COST, "n = 1")
        (axes,) = axes_of(figure)
        bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        assert [bar.get_height() for bar in bars] == [10, 20, 8, 25]
        middles = [round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars]
        assert middles == [-0.2, 0.8, 0.2, 1.2]
        assert {"16 nodes\n0.80×", "64 nodes\n1.25×", "chain", "tree", "n = 1"} <= texts(figure)
        assert {"10.0", "25.0"} <= texts(figure)
