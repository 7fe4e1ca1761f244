"""Model text is text in Markdown, whatever it holds."""

import pytest
from nbconvert.filters import markdown2html

from ddtree_core.reporting.tables.plain_text import code_span, printable
from tests.reporting.tables.html_pages import MARKUP, Page


@pytest.mark.parametrize(
    "text", [MARKUP, "`", "``a```b", " lead", "*", "[x](http://a)", "", "<!-- -->", "$$", "a|b", "\\`"]
)
def test_a_code_span_is_one_code_element_with_the_text(text: str) -> None:
    page = Page(markdown2html(f"The walk emits {code_span(text)}."))
    assert page.tags == {"p", "code"}
    assert page.text.strip() == f"The walk emits {text or ' '}."


def test_a_code_span_stays_on_one_line_without_control_and_direction_characters() -> None:
    assert code_span("a\n\nb\tc\x00\u202e") == "`a↵↵b⇥c`"


def test_printable_keeps_lines_and_tabs_only() -> None:
    assert printable("a\n\tb\x00\ud800\u200dc") == "a\n\tb\u200dc"
