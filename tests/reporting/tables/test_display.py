"""Model text in tables and Markdown: shown as text, whatever it holds."""

from html.parser import HTMLParser

import pandas as pd
import pytest
from nbconvert.filters import markdown2html

from ddtree_core.reporting.tables import code_span, side_by_side, styled, text_table

MARKUP = "<h1>Title</h1> <script>alert(1)</script> $x^2$ | `code` &amp; **bold** \\(y\\)"


class Page(HTMLParser):
    """Tags and text of a piece of HTML, as a browser reads it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "text", [MARKUP, "`", "``a```b", " lead", "*", "[x](http://a)", "", "<!-- -->", "$$", "a|b", "\\`"]
)
def test_a_code_span_is_one_code_element_with_the_text(text: str) -> None:
    page = Page(markdown2html(f"The walk emits {code_span(text)}."))
    assert page.tags == {"p", "code"}
    assert page.text.strip() == f"The walk emits {text or ' '}."


def test_a_code_span_stays_on_one_line_without_control_and_direction_characters() -> None:
    assert code_span("a\n\nb\tc\x00\u202e") == "`a↵↵b⇥c`"


def test_a_text_table_shows_cells_and_labels_as_text() -> None:
    table = pd.DataFrame({MARKUP: [f"{MARKUP}\n\u202eabc"]}, index=[MARKUP])
    html = text_table(table).to_html()
    page = Page(html)
    assert page.tags == {"style", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.text.count(MARKUP) == 3
    assert f"{MARKUP}\nabc" in page.text
    assert "mathjax_ignore" in html  # `$x^2$` is no formula


def test_a_styled_table_keeps_numbers_as_formatted() -> None:
    shown = styled(pd.DataFrame({"τ": [2.346]}, index=["<b>"]))
    shown.format("{:.2f}")
    page = Page(shown.to_html())
    assert "2.35" in page.text
    assert "<b>" in page.text


def test_texts_stand_side_by_side() -> None:
    page = Page(side_by_side({"DFlash": "<i>one</i>", "DDTree 8": "two  \n spaces"}).to_html())
    for shown in ("DFlash", "DDTree 8", "<i>one</i>", "two  \n spaces"):
        assert shown in page.text
    assert "i" not in page.tags
