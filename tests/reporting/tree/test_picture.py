"""What a drawing says: states, probabilities, and one line on why the path ends."""

import math

import pytest

from ddtree_core.decoding.records import Round
from ddtree_core.reporting.tree import tree_svg
from ddtree_core.trees.draft_tree import DraftTree
from tests.reporting.tree.drawn_trees import SMALL, make_round, make_tree, states, texts


def test_summary_tells_why_the_path_ends() -> None:
    ended = tree_svg(make_round(SMALL, [0, 1, 4]))
    length = "acceptance length 3 = 2 accepted + 1 bonus (after the last drafted token)"
    assert f"5 draft nodes, depth 2 · {length}" in ended
    differed = tree_svg(make_round(SMALL, [0, 1]))
    assert "acceptance length 2 = 1 accepted + 1 bonus (not among the drafted tokens)" in differed


def test_probabilities_are_conditional_in_the_box_and_cumulative_in_the_tooltip() -> None:
    """0.8 · 0.25 = 0.2: the box of the second node says 25%, its tooltip also 0.2."""
    svg = tree_svg(make_tree([-1, 0, 1], [0.0, math.log(0.8), math.log(0.2)]))
    assert [text for text in texts(svg) if text.endswith("%")] == ["80%", "25%"]
    assert "drafter: 0.25 here, 0.2 along the path" in svg


def test_impossible_and_certain_tokens() -> None:
    log_probs = [0.0, 0.0, -math.inf, -math.inf, math.log(0.999)]
    svg = tree_svg(make_tree([-1, 0, 0, 2, 1], log_probs))
    assert sorted(text for text in texts(svg) if text.endswith("%")) == ["100%", "<1%", "<1%", ">99%"]


def test_summary_of_a_path_that_stops_at_a_drafted_token() -> None:
    """Another rule than the walk may stop where a child carries the target's own choice."""
    stopped = tree_svg(make_round(SMALL, [0, 1, 3], bonus=3), path=[0, 1])
    assert "2 = 1 accepted + 1 bonus (drafted, but not accepted by this rule)" in stopped


def test_path_argument_marks_a_bare_tree_and_replaces_a_rounds_own() -> None:
    assert states(tree_svg(SMALL)) == {"root": {0}, "drafted": {1, 2, 3, 4, 5}}
    assert states(tree_svg(SMALL, path=[0, 2])) == {"root": {0}, "accepted": {2}, "rejected": {1, 3, 4, 5}}
    each = Round(1, SMALL, [1, 4, 50, 0, 51, 0], [0, 1, 4], [1, 4, 51], {})
    svg = tree_svg(each, path=[0, 2])
    assert states(svg)["accepted"] == {2}
    assert "50" in texts(svg)  # the target's token after node 2
    assert "51" not in texts(svg)


@pytest.mark.parametrize("path", [[], [1], [0, 4], [0, 9], [0, 1, 5]])
def test_wrong_path_is_refused(path: list[int]) -> None:
    with pytest.raises(ValueError, match="is not a path of this tree: expected node indices from the root"):
        tree_svg(SMALL, path=path)


def test_root_only_and_autoregressive_rounds() -> None:
    root = DraftTree.root_only(7)
    assert states(tree_svg(root)) == {"root": {0}}
    assert states(tree_svg(make_round(root, [0]))) == {"root": {0}, "bonus": {1}}
    assert "no draft nodes" in tree_svg(root)


def test_token_without_visible_text_shows_its_id() -> None:
    assert "#0" in texts(tree_svg(DraftTree.root_only(0), token_text=lambda _: "\x00"))
