"""Tables of model text: shown as text, whatever it holds."""

import pandas as pd

from ddtree_core.reporting.tables import side_by_side, styled, text_table
from tests.reporting.tables.html_pages import MARKUP, Page


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
