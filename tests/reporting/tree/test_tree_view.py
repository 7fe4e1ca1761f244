"""The drawn tree: where boxes stand, what they say, which are marked, and sound XML for any token text."""

import math
import random
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
import torch

from ddtree_core.decoding.records import Generation, Round
from ddtree_core.reporting.tree import TreeView, rounds_svg, tree_svg
from ddtree_core.reporting.tree.labels import cells, printable, shorten, visible
from ddtree_core.reporting.tree.layout import layout
from ddtree_core.trees import Acceptance, DraftTree

SVG = "{http://www.w3.org/2000/svg}"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def make_tree(parents: list[int], log_probs: list[float] | None = None) -> DraftTree:
    """A tree from its parents; token ids are the node indices, each step has probability 1/2 unless given."""
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depths[node] = depths[parent] + 1
    if log_probs is None:
        log_probs = [depth * math.log(0.5) for depth in depths]
    ids = torch.arange(len(parents))
    return DraftTree(ids, torch.tensor(parents), torch.tensor(depths), torch.tensor(log_probs))


def random_tree(nodes: int, seed: int) -> DraftTree:
    source = random.Random(seed)
    log_probs, parents = [0.0], [-1]
    for node in range(1, nodes):
        parents.append(source.randrange(max(0, node - 12), node))
        log_probs.append(log_probs[parents[-1]] + math.log(source.uniform(0.01, 1)))
    return make_tree(parents, log_probs)


def make_round(tree: DraftTree, path: list[int], bonus: int = 99, index: int = 1) -> Round:
    tokens = Acceptance(path, bonus).tokens(tree)
    return Round(index, tree, [bonus] * len(tree), path, tokens, {"draft": 0.002, "verify": 0.07})


# root 0 with children 1 and 2, 1 with children 3 and 4, 2 with child 5
SMALL = make_tree([-1, 0, 0, 1, 1, 2])


def boxes(svg: str) -> dict[int, tuple[float, float, float, float]]:
    """(x, y, width, height) of every node's box as drawn, by node index."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if "data-node" in group.attrib:
            x, y = group.attrib["transform"].removeprefix("translate(").removesuffix(")").split(",")
            box = group.find(f"{SVG}rect")
            assert box is not None
            size = float(box.attrib["width"]), float(box.attrib["height"])
            found[int(group.attrib["data-node"])] = (float(x), float(y), *size)
    return found


def states(svg: str) -> dict[str, set[int]]:
    """Node indices drawn in each state."""
    groups = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if "data-state" in group.attrib]
    return {group.attrib["data-state"]: {int(g.attrib["data-node"]) for g in group} for group in groups}


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


# --- layout ------------------------------------------------------------------------------------------------


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
    assert places[-1] == (
        places[last].column + 1,
        places[last].row,
    )  # the only child is level with its parent
    for node in range(last):
        rows = [places[child].row for child in tree.children(node)]
        if rows:
            assert places[node].row == pytest.approx((min(rows) + max(rows)) / 2)
    for column in {place.column for place in places}:
        rows = sorted(place.row for place in places if place.column == column)
        assert all(below - above > 1 - 1e-9 for above, below in pairwise(rows))


@pytest.mark.parametrize("seed", range(5))
def test_no_two_drawn_boxes_overlap(seed: int) -> None:
    tree = random_tree(65, seed)
    drawn = boxes(tree_svg(make_round(tree, tree.path(40)), token_text=lambda token: "x" * (token % 30)))
    assert len(drawn) == 66
    items = list(drawn.values())
    for i, (x, y, width, height) in enumerate(items):
        for other_x, other_y, other_width, other_height in items[:i]:
            apart = x + width <= other_x or other_x + other_width <= x
            assert apart or y + height <= other_y or other_y + other_height <= y


# --- what is drawn -----------------------------------------------------------------------------------------


def test_accepted_path_bonus_and_rejected_nodes_are_marked() -> None:
    svg = tree_svg(make_round(SMALL, [0, 1, 4]))
    assert states(svg) == {"root": {0}, "accepted": {1, 4}, "rejected": {2, 3, 5}, "bonus": {6}}
    drawn = boxes(svg)
    assert drawn[6][0] > drawn[4][0] + drawn[4][2]  # the bonus token stands after the last accepted node
    edges = {path.attrib["data-state"]: path for path in ET.fromstring(svg).iter(f"{SVG}path")}
    assert {state: path.attrib["d"].count("M") for state, path in edges.items()} == {
        "rejected": 3,
        "accepted": 2,
        "bonus": 1,
    }
    assert float(edges["accepted"].attrib["stroke-width"]) >= 2 * float(
        edges["rejected"].attrib["stroke-width"]
    )
    assert "stroke-dasharray" in edges["bonus"].attrib


def test_summary_tells_why_the_path_ends() -> None:
    ended = tree_svg(make_round(SMALL, [0, 1, 4]))
    assert (
        "5 draft nodes, depth 2 · acceptance length 3 = 2 accepted + 1 bonus (after the last drafted token)"
        in ended
    )
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


def test_width_scales_and_keeps_the_view_box() -> None:
    natural, scaled = ET.fromstring(tree_svg(SMALL)), ET.fromstring(tree_svg(SMALL, width=300))
    assert scaled.attrib["viewBox"] == natural.attrib["viewBox"]
    assert float(scaled.attrib["width"]) == 300
    ratio = float(natural.attrib["height"]) / float(natural.attrib["width"])
    assert float(scaled.attrib["height"]) == pytest.approx(300 * ratio, abs=0.1)
    with pytest.raises(ValueError, match="width must be positive"):
        tree_svg(SMALL, width=0)


def test_root_only_and_autoregressive_rounds() -> None:
    root = DraftTree.root_only(7)
    assert states(tree_svg(root)) == {"root": {0}}
    assert states(tree_svg(make_round(root, [0]))) == {"root": {0}, "bonus": {1}}
    assert "no draft nodes" in tree_svg(root)


def test_256_nodes_grow_in_height_and_stay_readable() -> None:
    tree = random_tree(257, seed=3)
    svg = tree_svg(make_round(tree, tree.path(200)))
    root = ET.fromstring(svg)
    leaves = sum(not tree.children(node) for node in range(len(tree)))
    assert float(root.attrib["height"]) > 20 * leaves
    assert len(boxes(svg)) == 258
    sizes = [float(element.attrib["font-size"]) for element in root.iter() if "font-size" in element.attrib]
    assert min(sizes) >= 10
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert all(x + w <= width and y + h <= height for x, y, w, h in boxes(svg).values())


def test_deep_chain_needs_no_recursion() -> None:
    """2,000 levels is beyond Python's recursion limit of 1,000."""
    assert layout(make_tree(list(range(-1, 2000))))[-1] == (2000, 0.0)


def test_picture_is_accessible_self_contained_and_the_same_every_time() -> None:
    each = make_round(random_tree(65, 1), [0])
    svg = tree_svg(each, token_text=lambda token: f" t{token}", title="A & B")
    root = ET.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert [root[0].tag, root[0].text, root[1].tag] == [f"{SVG}title", "A & B", f"{SVG}desc"]
    assert "Accepted: none. Bonus token: ␣t99." in (root[1].text or "")
    assert svg == tree_svg(each, token_text=lambda token: f" t{token}", title="A & B")
    assert "href" not in svg
    assert "<style" not in svg
    assert svg.count("http") == 1  # the namespace


def test_rounds_stack_without_overlap_under_one_legend() -> None:
    tree = random_tree(17, 2)
    svg = rounds_svg([make_round(tree, [0], index=1), make_round(SMALL, [0, 1], index=2)], title="Two")
    written = texts(svg)
    assert [text for text in written if text.startswith("Round")] == ["Round 1", "Round 2"]
    assert written.count("accepted") == 1
    panels = [element for element in ET.fromstring(svg) if element.tag == f"{SVG}g"]
    offset = float(panels[1].attrib["transform"].split(",")[1].rstrip(")"))
    lowest = max(y + height for _, y, _, height in boxes(tree_svg(make_round(tree, [0]))).values())
    assert offset > lowest
    with pytest.raises(ValueError, match="no round to draw"):
        rounds_svg([])


# --- token texts -------------------------------------------------------------------------------------------

NASTY = {
    0: "<&>\"'",
    1: "\x00\x08\x1b[31m\x7f\x9f",
    2: "a\u2028b\u2029c",
    3: "\ud800x\udfff",
    4: "\u202eevil\u2066",
    5: "\ufffe\uffff]]>",
    99: "שלום",
}


def test_nasty_tokens_give_sound_xml() -> None:
    svg = tree_svg(make_round(SMALL, [0, 1]), token_text=NASTY.__getitem__, title="\x00<\ud800>")
    svg.encode()  # no lone surrogate is left
    root = ET.fromstring(svg)
    assert root[0].text == "<>"
    written = texts(svg)
    for shown in ("<&>\"'", "[31m", "a↵b↵c", "x", "evil", "]]>", "שלום"):
        assert shown in written


def test_token_without_visible_text_shows_its_id() -> None:
    assert "#0" in texts(tree_svg(DraftTree.root_only(0), token_text=lambda _: "\x00"))


def test_long_text_is_cut_in_the_box_and_whole_in_the_tooltip() -> None:
    svg = tree_svg(DraftTree.root_only(0), token_text=lambda _: " incomprehensibilities")
    assert "␣incomprehe…" in texts(svg)
    assert "␣incomprehensibilities (token 0)" in svg


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("\n", "↵"),
        ("\r\n\n", "↵↵"),
        ("\tif", "⇥if"),
        ("        return", "␣×8return"),
        ("\u00a0\u3000", "␣␣"),
        ("a\x00b\u200b\u202e", "ab"),
        ("👩\u200d💻", "👩\u200d💻"),
        ("�", "�"),
    ],
)
def test_whitespace_is_visible_and_the_rest_kept(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_printable_keeps_lines_and_tabs_only() -> None:
    assert printable("a\n\tb\x00\ud800\u200dc") == "a\n\tb\u200dc"


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("日本", 4),
        ("é", 1),
        ("e\u0301", 1),
        ("🙂", 2),
        ("👩\u200d💻", 2),
        ("❤\ufe0f", 2),
    ],
)
def test_cells(text: str, width: int) -> None:
    assert cells(text) == width


def test_shorten_fits_its_limit() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert shorten("日本語文字", 6) == "日本…"  # a third one would leave no cell for the …
    assert len(shorten("e" + "\u0301" * 500, 6)) <= 25  # marks take no cell, but not endless room either


# --- the widget --------------------------------------------------------------------------------------------


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
    assert [each["mean so far"] for each in facts] == [
        f"{mean} tokens per round" for mean in ("2.00", "2.50", "2.00")
    ]
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
