"""Pages of the report: complete without a network, with figures, tables and provenance."""

from pathlib import Path

from ddtree_core.reporting.report.notebook_source import find_notebooks
from ddtree_core.reporting.report.pages import render_pages
from tests.reporting.report.report_pages import loads_of, write_executed, write_notebook


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pages_load_nothing_and_show_figures_tables_and_provenance(tmp_path: Path) -> None:
    source = write_notebook(tmp_path / "notebooks", "03_a", "x = 1")
    write_notebook(tmp_path / "notebooks", "04_b", "x = 1")
    reports = tmp_path / "reports"
    write_executed(source, reports)
    assert render_pages(find_notebooks(tmp_path / "notebooks"), reports, {}) == 1
    assert files(reports) == ["03_a.html", "03_a.ipynb", "index.html"]
    assert loads_of(reports / "03_a.html") == []
    assert loads_of(reports / "index.html") == []
    page = (reports / "03_a.html").read_text(encoding="utf-8")
    assert "<text" in page  # the tree is inlined with its text
    assert "token 5</title>" in page
    assert 'alt="What does loading cost? Resident memory in GiB"' in page  # the figure with its alternative
    assert "2.5" in page
    assert "on stderr" in page
    assert "secret" not in page  # the widgets' state stays out
    assert "TreeView(" not in page
    assert "A &lt;fast&gt; CPU, 2 cores, 2 threads, 23.5 GiB; no GPU" in page
    assert "0123456789abcdef, with local changes" in page
    index = (reports / "index.html").read_text(encoding="utf-8")
    assert "Title of 03_a" in index
    assert "The claim of <em>03_a</em>." in index
    assert "data:image/svg+xml;base64," in index
    assert "31.5 s on A &lt;fast&gt; CPU" in index
    assert "has changed since this run" in index  # the digest of the executed notebook is another
    assert "Not run yet." in index
    assert 'href="04_b.html"' not in index


def test_loads_are_found_where_there_are_some(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<style>@import 'http://a/1.css'; p { background: url(http://a/2.png) }</style>"
        '<link href="http://a/3.css"><script src="http://a/4.js"></script><a href="http://a/no">x</a>'
        "<p style=\"background: url('http://a/5.png')\"><img src='data:image/png;base64,xx'></p>"
    )
    assert sorted(loads_of(page)) == [f"http://a/{n}" for n in ("1.css", "2.png", "3.css", "4.js", "5.png")]
