"""The drawn tree: boxes that do not overlap, marks that tell, and sound XML for any token text."""

import xml.etree.ElementTree as ET

import pytest

from ddtree_core.reporting.tree import rounds_svg, tree_svg
from ddtree_core.trees.draft_tree import DraftTree
from tests.reporting.tree.drawn_trees import SMALL, SVG, boxes, make_round, random_tree, states, texts


@pytest.mark.parametrize("seed", range(5))
def test_no_two_drawn_boxes_overlap(seed: int) -> None:
    tree = random_tree(65, seed)
    drawn = boxes(tree_svg(make_round(tree, tree.path(40)), token_text=lambda token: "x" * (token % 30)))
    assert len(drawn) == 66
    items = list(drawn.values())
    for i, (x, y, width, height) in enumerate(items):
        for other_x, other_y, other_width, other_height in items[:i]:
            separate = x + width <= other_x or other_x + other_width <= x
            assert separate or y + height <= other_y or other_y + other_height <= y


def test_accepted_path_bonus_and_rejected_nodes_are_marked() -> None:
    svg = tree_svg(make_round(SMALL, [0, 1, 4]))
    assert states(svg) == {"root": {0}, "accepted": {1, 4}, "rejected": {2, 3, 5}, "bonus": {6}}
    drawn = boxes(svg)
    assert drawn[6][0] > drawn[4][0] + drawn[4][2]  # the bonus token stands after the last accepted node
    edges = {path.attrib["data-state"]: path for path in ET.fromstring(svg).iter(f"{SVG}path")}
    counts = {state: path.attrib["d"].count("M") for state, path in edges.items()}
    assert counts == {"rejected": 3, "accepted": 2, "bonus": 1}
    accepted, rejected = (float(edges[state].attrib["stroke-width"]) for state in ("accepted", "rejected"))
    assert accepted >= 2 * rejected
    assert "stroke-dasharray" in edges["bonus"].attrib


def test_width_scales_and_keeps_the_view_box() -> None:
    natural, scaled = ET.fromstring(tree_svg(SMALL)), ET.fromstring(tree_svg(SMALL, width=300))
    assert scaled.attrib["viewBox"] == natural.attrib["viewBox"]
    assert float(scaled.attrib["width"]) == 300
    ratio = float(natural.attrib["height"]) / float(natural.attrib["width"])
    assert float(scaled.attrib["height"]) == pytest.approx(300 * ratio, abs=0.1)
    with pytest.raises(ValueError, match="width must be positive"):
        tree_svg(SMALL, width=0)


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


def test_long_text_is_cut_in_the_box_and_whole_in_the_tooltip() -> None:
    svg = tree_svg(DraftTree.root_only(0), token_text=lambda _: " incomprehensibilities")
    assert "␣incomprehe…" in texts(svg)
    assert "␣incomprehensibilities (token 0)" in svg
