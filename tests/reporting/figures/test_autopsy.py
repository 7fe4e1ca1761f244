"""The pictures of the autopsy show their tables' numbers."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.text import Text

from ddtree_core.reporting.figures.autopsy import (
    acceptance_by_slot,
    confusion_matrix,
    examined,
    faults_by_share,
    reached,
)

TABLE = pd.DataFrame(
    {
        "pair": "p",
        "fault": ["healthy", "theta", "head"],
        "cause": ["", "RoPE theta", "output head"],
        "first": ["", "positions", "output head"],
        "second": ["", "RoPE theta", ""],
        "third": ["", "", ""],
        "symptom": [False, True, False],
        "acceptance_rate": [0.3, 0.1, 0.0],
        "accepted_by_slot": [(0.5, 0.5), (0.5, 0.0), (0.0, float("nan"))],
    }
)
SYMPTOMS = {
    "rounds": ((9, 3), (12, 1)),
    "accepted_by_slot": (0.5, 1.0),
    "acceptance_length": 2.0,
    "acceptance_rate": 0.5,
}


def axes_of(figure: Any) -> list[Axes]:
    return [axes for axes in figure.findobj(Axes) if axes.axison]


def texts(figure: Any) -> set[str]:
    return {text.get_text() for text in figure.findobj(Text)}


def test_reached_multiplies_what_each_slot_keeps():
    """Half of the rounds accept slot 1 and half of those slot 2; a slot that none reached is missed."""
    assert reached((0.5, 0.5)).tolist() == [0.5, 0.25]
    assert reached((0.0, float("nan"))).tolist() == [0.0, 0.0]


class TestFaultsByShare:
    def test_marks_stand_at_the_shares_worst_on_top(self):
        both = pd.concat([TABLE, TABLE.assign(pair="q", acceptance_rate=[0.2, 0.1, 0.01])])
        figure = faults_by_share(both)
        (axes,) = axes_of(figure)
        one, two = (np.asarray(axes.collections[i].get_offsets()) for i in (1, 3))
        assert one.tolist() == [[0.3, 0.0], [0.1, 1.0], [0.0, 2.0]]
        assert two.tolist() == [[0.2, 0.0], [0.1, 1.0], [0.01, 2.0]]
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["healthy", "theta", "head"]
        assert {"p", "q"} <= texts(figure)


class TestAcceptanceBySlot:
    def test_a_panel_per_fault_over_the_healthy_outline(self):
        head, theta = axes_of(acceptance_by_slot(TABLE))
        assert (head.get_title(loc="left"), theta.get_title(loc="left")) == ("head", "theta")
        heights = [bar.get_height() for bar in theta.patches]  # pyright: ignore
        assert heights == [0.5, 0.0]
        assert np.asarray(theta.lines[0].get_ydata()).tolist() == [0.5, 0.5, 0.25]

    def test_what_looks_like_one_percent_stands_out(self):
        head, theta = axes_of(acceptance_by_slot(TABLE))
        colours = [to_hex(axes.patches[0].get_facecolor()) for axes in (head, theta)]
        assert colours[0] != colours[1]
        assert {"0.0%", "10.0%"} <= texts(acceptance_by_slot(TABLE))


class TestConfusionMatrix:
    def test_suspects_are_numbered_at_their_causes(self):
        """Columns: RoPE theta, output head, positions. Row 0 is theta, row 1 is head."""
        (axes,) = axes_of(confusion_matrix(TABLE))
        placed = {(text.get_text(), *text.get_position()) for text in axes.texts}
        assert placed == {("1", 2, 0), ("2", 0, 0), ("1", 1, 1)}
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["theta", "head (no symptom)"]


def test_examined_shows_rounds_by_context():
    slots, along = axes_of(examined(SYMPTOMS))
    assert [bar.get_height() for bar in slots.patches] == [0.5, 0.5]  # pyright: ignore
    assert np.asarray(along.lines[0].get_xydata()).tolist() == [[9.0, 3.0], [12.0, 1.0]]
    assert np.asarray(along.lines[1].get_xydata()).tolist() == [[10.5, 2.0]]
