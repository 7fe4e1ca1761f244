"""Where the nodes of a tree stand."""

from itertools import pairwise

import pytest

from ddtree_core.reporting.tree.layout import layout
from tests.reporting.tree.drawn_trees import SMALL, make_tree, random_tree


def test_layout_of_six_nodes_by_hand() -> None:
    """Leaves 3 and 4 are neighbours, leaf 5 follows after the family gap; parents sit midway."""
    places = layout(SMALL)
    assert [place.column for place in places] == [0, 1, 1, 2, 2, 2]
    rows = [place.row for place in places]
    assert rows[3:5] == [0.0, 1.0]
    assert rows[1] == 0.5
    assert rows[2] == rows[5] == pytest.approx(2.35)
    assert rows[0] == pytest.approx((0.5 + 2.35) / 2)


def test_siblings_stand_by_falling_probability_and_ties_by_index() -> None:
    rows = [place.row for place in layout(make_tree([-1, 0, 0, 0], [0.0, -2.0, -1.0, -2.0]))]
    assert rows[2] < rows[1] < rows[3]


@pytest.mark.parametrize("seed", range(5))
def test_layout_of_random_trees_is_tidy(seed: int) -> None:
    """Column = depth, a parent midway between its outer children, a row between nodes of a column."""
    tree = random_tree(65, seed)
    last = tree.num_nodes - 1
    places = layout(tree, bonus_parent=last)
    assert len(places) == 66
    assert [place.column for place in places[:-1]] == tree.depths.tolist()
    # The only child is level with its parent.
    assert places[-1] == (places[last].column + 1, places[last].row)
    for node in range(last):
        rows = [places[child].row for child in tree.children(node)]
        if rows:
            assert places[node].row == pytest.approx((min(rows) + max(rows)) / 2)
    for column in {place.column for place in places}:
        rows = sorted(place.row for place in places if place.column == column)
        assert all(below - above > 1 - 1e-9 for above, below in pairwise(rows))


def test_deep_chain_needs_no_recursion() -> None:
    """2,000 levels is beyond Python's recursion limit of 1,000."""
    assert layout(make_tree(list(range(-1, 2000))))[-1] == (2000, 0.0)
