"""Draft trees as self-contained SVG text: no script, style sheet or outside font, the same bytes every time.

Colours are from the Okabe-Ito palette, and every state also differs in lightness, outline or line width, so
that the picture survives colour blindness and a grey printer. Styles are attributes because a style sheet
inside an inlined SVG would act on the whole page.
"""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from ddtree_core.decoding.records import Round
from ddtree_core.reporting.tables.plain_text import printable
from ddtree_core.reporting.tree.labels import cells, shorten
from ddtree_core.reporting.tree.layout import Place, layout
from ddtree_core.reporting.tree.picture import TokenText, TreePicture, picture_of
from ddtree_core.trees.draft_tree import DraftTree

_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
# Sizes in pixels. A monospace character is at most 0.605 of its font size wide in the fonts above.
_TOKEN_SIZE, _TAG_SIZE, _CELL, _TAG_CELL = 12, 10, 7.3, 6.1
_BOX_HEIGHT, _ROW, _GAP, _PAD, _MARGIN = 20, 24, 30, 7, 16
_MAX_CELLS = 12  # longer token texts are cut in the box and whole in the tooltip

# state: fill, outline, outline width, dashes, text, tag
_STYLE = {
    "rejected": ("#fafbfc", "#cdd4db", 1, "", "#5f6c79", "#6b7783"),
    "drafted": ("#f1f6fa", "#8db0c9", 1, "", "#1f2d3a", "#51606d"),
    "root": ("#10273a", "#10273a", 1, "", "#ffffff", "#c3d3df"),
    "accepted": ("#0072b2", "#0072b2", 1, "", "#ffffff", "#dcecf7"),
    "bonus": ("#fff6e8", "#b34a00", 1.8, "4 2.5", "#6e2d00", "#8f3b00"),
}
# state of the child: colour, width, dashes; drawn in this order, so that the accepted path lies on top
_EDGE = {
    "rejected": ("#cdd4db", 1.1, ""),
    "drafted": ("#9db9cd", 1.3, ""),
    "accepted": ("#0072b2", 3, ""),
    "bonus": ("#b34a00", 2.2, "4 2.5"),
}
_MEANING = {
    "root": "root, last committed token",
    "accepted": "accepted",
    "bonus": "bonus, the target's choice",
    "rejected": "rejected",
    "drafted": "drafted",
}


class _Box(NamedTuple):
    """Upper left corner and width of a node's box."""

    x: float
    y: float
    width: float


def tree_svg(
    round_or_tree: Round | DraftTree,
    *,
    token_text: TokenText | None = None,
    path: Sequence[int] | None = None,
    title: str | None = None,
    width: float | None = None,
) -> str:
    """One draft tree as an SVG document: depth across, leaves down, accepted path and bonus token marked.

    Each box shows a token and the drafter's probability of it at its place; its tooltip adds the whole text,
    the token id and the probability along the path. `token_text` gives the text of a token id (default: the
    id); `path` (node indices from the root) replaces the round's own, or marks one in a bare tree; `width`
    scales the picture to so many pixels.

    Raises ValueError if the path does not run from the root through children, or the width is not positive.

    >>> tree_svg(DraftTree.root_only(7), title="A root").splitlines()[1]
    '<title>A root</title>'
    """
    picture = picture_of(round_or_tree, token_text, path, title)
    return _document([picture], picture.title, width)


def rounds_svg(
    rounds: Sequence[Round],
    *,
    token_text: TokenText | None = None,
    title: str = "Draft trees by round",
    width: float | None = None,
) -> str:
    """Several rounds in one SVG document, each under its own title, one below the other; see `tree_svg`.

    Raises ValueError if there is no round, or the width is not positive.
    """
    if not rounds:
        raise ValueError("there is no round to draw: pass at least one Round of a generation")
    return _document([picture_of(each, token_text) for each in rounds], printable(title), width)


def _document(pictures: list[TreePicture], title: str, width: float | None) -> str:
    if width is not None and not width > 0:
        raise ValueError(f"the width must be positive pixels, got {width}: leave it out for natural size")
    present = {state for picture in pictures for state in picture.states}
    panels, natural, height = [], 0.0, 0.0
    for picture in pictures:
        explained = [] if panels else [state for state in _MEANING if state in present]
        body, panel_width, panel_height = _panel(picture, explained)
        panels.append(f'<g transform="translate(0,{_n(height)})">{body}</g>')
        natural, height = max(natural, panel_width), height + panel_height
    scale = 1 if width is None else width / natural
    text = " ".join(f"{p.title}: {p.description}" if len(pictures) > 1 else p.description for p in pictures)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_n(natural)} {_n(height)}"'
            f' width="{_n(natural * scale)}" height="{_n(height * scale)}" font-family="{_MONO}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(text)}</desc>",
            f'<rect width="{_n(natural)}" height="{_n(height)}" rx="6" fill="#ffffff"/>',
            *panels,
            "</svg>",
        ]
    )


def _panel(picture: TreePicture, explained: list[str]) -> tuple[str, float, float]:
    """Header with a legend of the states `explained`, edges and boxes, and the width and height they take."""
    places = layout(picture.tree, picture.bonus_parent)
    lefts, widths = _columns(picture, places)
    legend, legend_width = _legend(explained) if explained else ("", 0.0)
    heads = 90 if explained else 68  # baseline of the depth heads
    header = (
        f'<g font-family="{_SANS}" fill="#1f2d3a">'
        f'<text x="{_MARGIN}" y="26" font-size="14" font-weight="600">{escape(picture.title)}</text>'
        f'<text x="{_MARGIN}" y="44" font-size="12" fill="#51606d">{escape(picture.summary)}</text>'
        f"{legend}{_depth_heads(lefts, widths, heads)}</g>"
    )
    boxes = [_Box(lefts[depth], heads + 12 + row * _ROW, widths[depth]) for depth, row in places]
    text_width = max(len(picture.title) * 9, len(picture.summary) * 6.3) + 2 * _MARGIN
    width = max(lefts[-1] + widths[-1] + _MARGIN, legend_width, text_width)
    height = max(box.y for box in boxes) + _BOX_HEIGHT + _MARGIN
    return header + _edges(picture, boxes) + _boxes(picture, boxes), width, height


def _columns(picture: TreePicture, places: list[Place]) -> tuple[list[float], list[float]]:
    """Left edge and box width of each depth; boxes of one depth are equally wide."""
    widths = [0.0] * (max(place.column for place in places) + 1)
    for place, label, tag in zip(places, picture.labels, picture.tags, strict=True):
        needed = cells(shorten(label, _MAX_CELLS)) * _CELL + len(tag) * _TAG_CELL + 3.1 * _PAD
        widths[place.column] = max(widths[place.column], needed)
    lefts = [float(_MARGIN)]
    for width in widths[:-1]:
        lefts.append(lefts[-1] + width + _GAP)
    return lefts, widths


def _legend(states: list[str]) -> tuple[str, float]:
    """A row of sample boxes with their meaning, and the width it takes."""
    parts, x = [], float(_MARGIN)
    for state in states:
        parts.append(
            f'<g transform="translate({_n(x)},54)"><rect width="20" height="12" rx="3" {_box_style(state)}/>'
            f'<text x="26" y="10" font-size="11" fill="#3e4c59">{_MEANING[state]}</text></g>'
        )
        x += 26 + 5.7 * len(_MEANING[state]) + 24
    if states in (["root"], ["root", "bonus"]):  # nothing was drafted
        return "".join(parts), x
    note = "drafter's probability"
    parts.append(
        f'<text x="{_n(x)}" y="64" font-size="11" fill="#3e4c59">'
        f'<tspan font-family="{_MONO}" font-size="{_TAG_SIZE}">%</tspan> {note}</text>'
    )
    return "".join(parts), x + 6.2 * (len(note) + 2) + _MARGIN


def _depth_heads(lefts: list[float], widths: list[float], baseline: float) -> str:
    heads = [
        f'<text x="{_n(left + width / 2)}" y="{_n(baseline)}">depth {depth}</text>'
        for depth, (left, width) in enumerate(zip(lefts, widths, strict=True))
        if depth
    ]
    return f'<g font-size="10" fill="#7b8794" text-anchor="middle">{"".join(heads)}</g>'


def _edges(picture: TreePicture, boxes: list[_Box]) -> str:
    groups = []
    for state, (colour, line, dashes) in _EDGE.items():
        curves = []
        for node, (box, parent) in enumerate(zip(boxes, picture.parents, strict=True)):
            if picture.states[node] == state and parent >= 0:
                x0, y0 = boxes[parent].x + boxes[parent].width, boxes[parent].y + _BOX_HEIGHT / 2
                x1, y1, bend = box.x, box.y + _BOX_HEIGHT / 2, (x0 + box.x) / 2
                curves.append(f"M{_n(x0)} {_n(y0)}C{_n(bend)} {_n(y0)} {_n(bend)} {_n(y1)} {_n(x1)} {_n(y1)}")
        if curves:
            dash = f' stroke-dasharray="{dashes}"' if dashes else ""
            style = f'stroke="{colour}" stroke-width="{line}"{dash}'
            groups.append(f'<path data-state="{state}" fill="none" {style} d="{"".join(curves)}"/>')
    return "".join(groups)


def _boxes(picture: TreePicture, boxes: list[_Box]) -> str:
    groups = []
    for state, (*_, text, tag) in _STYLE.items():
        nodes = [node for node in range(len(boxes)) if picture.states[node] == state]
        drawn = "".join(_node(picture, node, boxes[node], tag) for node in nodes)
        if drawn:
            weight = ' font-weight="600"' if state == "accepted" else ""
            style = f'font-size="{_TOKEN_SIZE}" fill="{text}"{weight}'
            groups.append(f'<g data-state="{state}" {style}>{drawn}</g>')
    return "".join(groups)


def _node(picture: TreePicture, node: int, box: _Box, tag_colour: str) -> str:
    label = _faint_space(escape(shorten(picture.labels[node], _MAX_CELLS)))
    tag = f'x="{_n(box.width - _PAD)}" y="13.5" font-size="{_TAG_SIZE}" text-anchor="end" fill="{tag_colour}"'
    return (
        f'<g data-node="{node}" transform="translate({_n(box.x)},{_n(box.y)})">'
        f"<title>{escape(picture.tooltips[node])}</title>"
        f'<rect width="{_n(box.width)}" height="{_BOX_HEIGHT}" rx="4" {_box_style(picture.states[node])}/>'
        f'<text x="{_PAD}" y="14">{label}</text><text {tag}>{escape(picture.tags[node])}</text></g>'
    )


def _faint_space(label: str) -> str:
    """A leading ␣ steps back behind the letters of the token."""
    lead = label.startswith("␣") and len(label) > 1
    return f'<tspan fill-opacity=".55">␣</tspan>{label[1:]}' if lead else label


def _box_style(state: str) -> str:
    fill, outline, line, dashes, *_ = _STYLE[state]
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'fill="{fill}" stroke="{outline}" stroke-width="{line}"{dash}'


def _n(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{round(value, 1):g}"
