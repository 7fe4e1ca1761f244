"""A target that writes markup: the report of notebook 03 shows what it wrote, as text."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from playwright.sync_api import Browser, Page

from ddtree_core.reporting.report import batch

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "03_run_ddtree.ipynb"
MARKUP = "<h1>Title</h1> <script>window.run = 1</script> $x^2$ | **bold** `code` &amp;"
PROMPT = "<h1>Prompt</h1> <script>window.run = 2</script>"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of notebook 03 with a tiny pair whose every token, and so every text, reads as markup."""
    folder = tmp_path_factory.mktemp("report")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    last_import = next(i for i, cell in enumerate(notebook.cells) if "loaded = load_pair" in cell.source)
    writes_markup = new_code_cell(f"loaded.tokenizer.decode = lambda ids, **options: {MARKUP!r}")
    in_markdown = new_code_cell(
        "from ddtree_core.reporting.tables import code_span\n"
        "display(Markdown(f'It wrote {code_span(plain.text)} here.'))"
    )
    notebook.cells = [*notebook.cells[: last_import + 1], writes_markup, *notebook.cells[last_import + 1 :]]
    notebook.cells.append(in_markdown)
    (folder / "notebooks").mkdir()
    nbformat.write(notebook, folder / "notebooks" / NOTEBOOK.name)
    parameters = {"pair": "tiny-llama", "max_new_tokens": "8", "prompt": PROMPT}
    args = [part for name, value in parameters.items() for part in ("-p", name, value)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DDTREE_REPORTS", str(folder / "reports"))
        patched.setenv("DDTREE_COMMAND", "")
        patched.setenv("DDTREE_CALLER", "")
        assert batch.main(args, folder / "notebooks") == 0
    return folder / "reports"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


def test_the_page_shows_what_was_written(page: Page, reports: Path, tmp_path: Path) -> None:
    page.goto((reports / "03_run_ddtree.html").as_uri())
    assert page.locator("h1").all_inner_texts() == ["One prompt, three ways: autoregressive, DFlash, DDTree"]
    assert page.evaluate("window.run") is None
    cells = page.locator("td", has_text="Title")
    assert cells.all_inner_texts() == [MARKUP] * 3  # a text for each method, side by side
    (sentence,) = page.locator("p", has_text="It wrote").all_inner_texts()
    assert sentence == f"It wrote {MARKUP} here."
    assert page.locator("figure svg title", has_text="window.run").count() > 0  # tooltips of the trees
    page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_the_front_page_shows_the_prompt_as_text(page: Page, reports: Path) -> None:
    page.goto((reports / "index.html").as_uri())
    assert page.locator("h1").all_inner_texts() == ["DDTree workbook"]
    assert page.evaluate("window.run") is None
    page.locator("summary", has_text="Parameters").click()
    assert PROMPT in page.locator("table.dataframe").inner_text()
