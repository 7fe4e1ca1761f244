"""The report in a real browser, opened from disk: complete, silent, and asking nothing of any host."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from ddtree_core.reporting.report.notebook_source import find_notebooks
from ddtree_core.reporting.report.pages import render_pages
from tests.reporting.report.report_pages import write_executed, write_notebook

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished notebooks and their pages."""
    folder = tmp_path_factory.mktemp("report")
    for name in ("03_run", "04_lengths"):
        write_executed(write_notebook(folder / "notebooks", name, "x = 1"), folder / "reports")
    render_pages(find_notebooks(folder / "notebooks"), folder / "reports", {})
    return folder / "reports"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may load files from disk only and must stay silent."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda message: trouble.append(message.text))
    page.on("requestfailed", lambda request: trouble.append(f"failed: {request.url[:100]}"))

    def note(url: str) -> None:
        if not url.startswith(("file:", "data:")):
            trouble.append(f"outside request: {url[:100]}")

    page.on("request", lambda request: note(request.url))
    yield page
    page.close()
    assert trouble == []


def test_a_notebook_page_shows_its_figure_and_its_tree(page: Page, reports: Path) -> None:
    page.goto((reports / "03_run.html").as_uri())
    figure = page.locator("figure img")
    assert figure.evaluate("image => image.complete && image.naturalWidth") > 400
    box = figure.bounding_box()
    assert box is not None
    assert box["width"] > 400
    assert page.locator("figure svg text").text_content() == "Paris"
    assert page.locator("figure svg").bounding_box() is not None
    assert page.locator("h1").inner_text() == "Title of 03_run"
    assert page.locator("table.dataframe").is_visible()


def test_code_is_folded_and_unfolds_at_a_click(page: Page, reports: Path) -> None:
    page.goto((reports / "03_run.html").as_uri())
    code = page.locator("details.code:not(.parameters) pre").first
    assert page.locator("details.code.parameters pre").first.is_visible()
    assert not code.is_visible()
    page.get_by_role("button", name="Show all code").click()
    assert code.is_visible()
    page.get_by_role("button", name="Hide all code").click()
    assert not code.is_visible()


def test_the_front_page_leads_to_the_notebooks_and_back(page: Page, reports: Path) -> None:
    page.goto((reports / "index.html").as_uri())
    thumbnails = page.locator(".thumbnail img")
    assert thumbnails.count() == 2
    assert thumbnails.first.evaluate("image => image.naturalWidth") > 0
    page.get_by_role("link", name="Title of 04_lengths").first.click()
    assert page.url.endswith("04_lengths.html")
    page.get_by_role("link", name="DDTree workbook").click()
    assert page.url.endswith("index.html")


@pytest.mark.parametrize("name", ["index", "03_run"])
def test_a_narrow_screen_does_not_scroll_sideways(name: str, page: Page, reports: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto((reports / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
