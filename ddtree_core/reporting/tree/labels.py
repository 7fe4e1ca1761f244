"""How a token reads in a small box: whitespace made visible, nothing XML forbids, a known width."""

import re
import unicodedata

from ddtree_core.reporting.tables.plain_text import JOINERS, is_printable

# Line and paragraph separators are line ends to a reader; the many kinds of space are all just space.
_LINE_ENDS = "\r\n\n\r\x0b\x0c\x85\u2028\u2029"


def visible(text: str) -> str:
    """The text on one line with whitespace made visible: ␣ space, ↵ line end, ⇥ tab, long runs as `␣×8`.

    >>> visible(" the\\n")
    '␣the↵'
    """
    text = re.sub(f"\r\n|[{_LINE_ENDS}]", "↵", text).replace("\t", "⇥")
    text = "".join("␣" if unicodedata.category(char) == "Zs" else char for char in text)
    text = "".join(char for char in text if is_printable(char))
    return re.sub(r"([␣↵⇥])\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)


def cells(text: str) -> int:
    """Width of the text in monospace cells: two for East Asian wide characters and emoji, none for marks."""
    width, previous = 0, ""
    for char in text:
        if char == "\ufe0f":  # asks for the emoji form, two cells wide, of the character before it
            width += unicodedata.east_asian_width(previous or " ") not in "WF"
        elif char not in JOINERS and previous != "\u200d" and not unicodedata.category(char).startswith("M"):
            width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        previous = char
    return max(width, 1) if text else 0


def shorten(text: str, limit: int) -> str:
    """The text if it fits in `limit` cells, else its beginning and … within `limit` cells."""
    if cells(text) <= limit and len(text) <= 4 * limit:
        return text
    end = 0
    # Four characters per cell bound what a pile of combining marks can draw.
    while end < min(len(text), 4 * limit) and cells(text[: end + 1]) < limit:
        end += 1
    return text[:end].rstrip("\u200d") + "…"
