"""The widget: what its state holds, and the picture that stands in where no widget can be shown."""

import xml.etree.ElementTree as ET

import pytest

from ddtree_core.decoding.records import Generation, Round
from ddtree_core.reporting.tree import TreeView
from ddtree_core.trees.draft_tree import DraftTree
from tests.reporting.tree.drawn_trees import SMALL, make_round, states

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def make_generation() -> Generation:
    rounds = (
        make_round(SMALL, [0, 1], 7, 1),
        make_round(SMALL, [0, 2, 5], 8, 2),
        make_round(SMALL, [0], 9, 3),
    )
    ids = [6, *(token for each in rounds for token in each.tokens)]
    return Generation("tiny", "ddtree", 5, [0], ids, "", rounds, {"total": 1.0}, "length", 0.0)


def test_widget_state_holds_every_round() -> None:
    view = TreeView(make_generation(), token_text=lambda token: f"<{token}>")
    assert [each["title"] for each in view.rounds] == ["Round 1 of 3", "Round 2 of 3", "Round 3 of 3"]
    assert view.lead == "<6>"  # the first token comes from the prefill
    assert [each["text"] for each in view.rounds] == ["<1><7>", "<2><5><8>", "<9>"]
    facts = [dict(each["facts"]) for each in view.rounds]
    assert [each["acceptance length"] for each in facts] == ["2", "3", "1"]
    means = [f"{mean} tokens per round" for mean in ("2.00", "2.50", "2.00")]
    assert [each["mean so far"] for each in facts] == means
    assert facts[0]["draft nodes"] == "5 of budget 5"
    assert facts[0]["time"] == "72.0 ms: draft 2.0, verify 70.0"
    assert states(view.rounds[1]["svg"])["accepted"] == {2, 5}


def test_widget_of_a_bare_list_with_the_prefill_and_a_cut_round() -> None:
    prefill = Round(0, DraftTree.root_only(3), [4], [0], [4], {"prefill": 0.1})
    cut = Round(1, SMALL, [9] * 6, [0, 1, 3], [1], {})
    view = TreeView([prefill, cut])
    assert [each["title"] for each in view.rounds] == ["Prefill", "Round 1 of 1"]
    assert dict(view.rounds[1]["facts"]) == {
        "acceptance length": "3, 1 committed",
        "draft nodes": "5",
        "mean so far": "3.00 tokens per round",
    }
    assert view.lead == ""
    assert view.rounds[0]["text"] == "[4]"


def test_character_split_over_rounds_goes_to_the_round_that_completes_it() -> None:
    """Tokens 1 and 2 stand for two bytes each of U+1F642, as in a byte-level vocabulary."""
    parts = {1: "🙂".encode()[:2], 2: "🙂".encode()[2:], 3: b"!", 0: b""}

    def decode(tokens: list[int]) -> str:
        return b"".join(parts[token] for token in tokens).decode(errors="replace")

    root = DraftTree.root_only(0)
    rounds = [Round(i, root, [token], [0], [token], {}) for i, token in enumerate([1, 2, 3], start=1)]
    view = TreeView(rounds, token_text=lambda token: decode([token]), decode=decode)
    assert [each["text"] for each in view.rounds] == ["", "🙂", "!"]


def test_widget_offers_its_view_and_a_still_picture() -> None:
    view = TreeView(make_generation())
    data, _ = view._repr_mimebundle_()
    assert data[WIDGET_VIEW]["model_id"] == view.model_id
    assert data["text/plain"] == "TreeView(3 rounds)"
    root = ET.fromstring(data["image/svg+xml"])
    assert root[0].text == "Round 2 of 3, the longest acceptance"
    view.index = 2
    assert view._repr_mimebundle_()[0]["image/svg+xml"] == view.rounds[2]["svg"]


def test_widget_refuses_no_rounds_and_a_wrong_index() -> None:
    with pytest.raises(ValueError, match="no round to show"):
        TreeView([])
    with pytest.raises(ValueError, match="no round of index 3: expected 0 to 2"):
        TreeView(make_generation(), index=3)
    view = TreeView(make_generation(), index=1)
    with pytest.raises(ValueError, match="no round of index -1"):
        view.index = -1
    assert view.index == 1
