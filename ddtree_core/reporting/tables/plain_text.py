"""Text of a model shown as text: without what draws nothing or turns lines around, and never as markup."""

import re
import unicodedata

JOINERS = "\u200c\u200d"  # kept: they shape emoji and Indic or Arabic letters


def is_printable(char: str) -> bool:
    """No control character, lone surrogate, noncharacter or invisible format character."""
    if char in JOINERS:
        return True
    if ord(char) & 0xFFFE == 0xFFFE:  # U+FFFE, U+FFFF and their like in every plane
        return False
    return unicodedata.category(char) not in ("Cc", "Cs", "Cf")


def printable(text: str) -> str:
    """The printable characters of the text, with its tabs and line ends."""
    return "".join(char for char in text if char in "\t\n" or is_printable(char))


def code_span(text: str) -> str:
    """A text as inline code for Markdown: nothing in it is markup or a formula, line ends show as ↵.

    >>> code_span("a `b` <i>")
    '``a `b` <i>``'
    """
    text = re.sub(r"\r\n|[\n\r\v\f\x85\u2028\u2029]", "↵", text)
    text = printable(text).replace("\t", "⇥") or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"
