"""`./workbook report`: what it refuses, runs, keeps and renders."""

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
from filelock import FileLock
from nbformat.v4 import new_output

from ddtree_core.reporting.report import batch, notebook_source
from ddtree_core.reporting.report.execution import Hooks, NotebookFailed
from ddtree_core.reporting.report.notebook_source import parse_value
from ddtree_core.reporting.report.pages import STAMP, read_executed
from tests.reporting.report.report_pages import write_notebook


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and data go to the test's own folder; the package's files keep out of the fingerprint."""
    monkeypatch.setenv("DDTREE_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("DDTREE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DDTREE_COMMAND", "")
    monkeypatch.setenv("DDTREE_CALLER", "")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Runs without a kernel: notebooks that are run, with their parameters, in order."""
    made: list[tuple[str, dict[str, Any]]] = []

    def fake(source: Path, parameters: Mapping[str, Any], partial: Path, hooks: Hooks) -> Any:
        made.append((source.stem, dict(parameters)))
        notebook = nbformat.read(source, as_version=4)
        nbformat.write(notebook, partial)
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                hooks.started(index)
                if "fail" in cell.source:
                    raise NotebookFailed("code cell 2 (`fail`): ValueError: no such pair")
                if "interrupt" in cell.source:
                    raise KeyboardInterrupt
                cell.outputs = [new_output("stream", name="stdout", text=f"run {len(made)}")]
                hooks.ended()
        return notebook

    monkeypatch.setattr(batch, "execute", fake)
    return made


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def notes(reports: Path) -> list[str]:
    """What the front page says about the state of notebooks, in their order."""
    page = (reports / "index.html").read_text()
    return [" ".join(note.split()) for note in re.findall(r'<p class="note[^"]*">(.*?)</p>', page, re.DOTALL)]


def edit(path: Path, **metadata: Any) -> None:
    """Change the last cell of a notebook."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += "\n# changed"
    notebook.cells[-1].metadata.update(metadata)
    nbformat.write(notebook, path)


# Bad input, before anything starts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-p", "budgte", "3"],
            "no notebook has a parameter 'budgte': did you mean 'budgets'? known are budgets",
        ),
        (["-p", "fast", "maybe"], "parameter 'fast' takes bool, for example true, not 'maybe'"),
        (["--only", "09"], "no notebook '09': there are 03_run"),
    ],
)
def test_bad_input_stops_before_anything_starts(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    calls: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_notebook(tmp_path / "notebooks", "03_run", "x = 1")
    assert batch.main(arguments, tmp_path / "notebooks") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"report: {message}")
    assert calls == []
    assert not (tmp_path / "reports").exists()


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_notebook(tmp_path / "notebooks", "03_run", "x = 1")
    (tmp_path / "reports").write_text("a file")
    assert batch.main([], tmp_path / "notebooks") == 2
    assert "cannot be written" in capsys.readouterr().err
    assert batch.main([], tmp_path / "nowhere") == 2
    assert "no notebook like 03_name.ipynb" in capsys.readouterr().err
    (tmp_path / "notebooks" / "04_broken.ipynb").write_text("{")
    assert batch.main([], tmp_path / "notebooks") == 2
    assert "04_broken.ipynb is not a notebook that can be read" in capsys.readouterr().err
    assert calls == []


# Running, keeping, failing


def test_notebooks_run_in_order_and_quick_gives_way_to_what_is_given(
    tmp_path: Path, calls: list[Any]
) -> None:
    write_notebook(tmp_path / "notebooks", "04_b", "x = 1")
    write_notebook(tmp_path / "notebooks", "03_a", "x = 1")
    assert batch.main(["--quick", "-p", "pair", "tiny-qwen3"], tmp_path / "notebooks") == 0
    quick = parse_value("budgets", batch.QUICK["budgets"], "list[int]")
    assert calls == [(name, {"pair": "tiny-qwen3", "budgets": quick}) for name in ("03_a", "04_b")]
    assert batch.main(["--quick", "-p", "budgets", "2"], tmp_path / "notebooks") == 0
    assert calls[-1] == ("04_b", {"budgets": [2]})
    assert files(tmp_path / "reports") == ["03_a.html", "03_a.ipynb", "04_b.html", "04_b.ipynb", "index.html"]
    executed = read_executed(tmp_path / "reports" / "04_b.ipynb")
    assert executed is not None
    stamp = executed.metadata[STAMP]
    assert stamp["command"] == "./workbook report --quick -p budgets 2"
    assert stamp["parameters"]["budgets"] == "[2]"
    assert stamp["parameters"]["pair"] == '"tiny"'


def test_what_is_finished_and_unchanged_is_kept(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebooks, report = tmp_path / "notebooks", tmp_path / "reports" / "03_a.ipynb"
    source = write_notebook(notebooks, "03_a", "x = 1")
    other = write_notebook(notebooks, "04_b", "x = 1")

    def ran(*arguments: str) -> list[str]:
        del calls[:]
        assert batch.main(arguments, notebooks) == 0
        return [name for name, _ in calls]

    assert ran() == ["03_a", "04_b"]
    first = report.read_bytes()
    capsys.readouterr()
    assert ran() == []
    assert "report: 03_a: unchanged, kept as it is (--fresh runs it again)" in capsys.readouterr().out
    assert report.read_bytes() == first
    assert ran("--fresh", "--only", "03") == ["03_a"]
    assert ran("-p", "pair", "other") == ["03_a", "04_b"]
    assert ran("-p", "pair", "other") == []
    edit(other, collapsed=True)
    assert ran("-p", "pair", "other") == ["04_b"]
    (tmp_path / "data" / "prompts").mkdir(parents=True)
    (tmp_path / "data" / "prompts" / "chat.jsonl").write_text("{}")
    assert ran("-p", "pair", "other") == ["03_a", "04_b"]
    monkeypatch.setattr(notebook_source, "versions", lambda: {"torch": "9.9"})
    assert ran("-p", "pair", "other") == ["03_a", "04_b"]
    report.write_text("{ not a notebook")
    assert ran("-p", "pair", "other") == ["03_a"]
    assert source.exists()


def test_a_failing_notebook_keeps_earlier_reports_and_is_marked(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notebooks, reports = tmp_path / "notebooks", tmp_path / "reports"
    for name in ("02_a", "03_b", "04_c"):
        write_notebook(notebooks, name, "x = 1")
    assert batch.main([], notebooks) == 0
    earlier = (reports / "03_b.ipynb").read_bytes()
    write_notebook(notebooks, "02_a", "x = 2")
    write_notebook(notebooks, "03_b", "fail")
    capsys.readouterr()
    assert batch.main([], notebooks) == 1
    error = capsys.readouterr().err
    assert "report: 03_b failed in code cell 2 (`fail`): ValueError: no such pair" in error
    assert str(reports / "03_b.failed.ipynb") in error
    assert (reports / "03_b.failed.ipynb").exists()
    assert (reports / "03_b.ipynb").read_bytes() == earlier
    assert [name for name, _ in calls[3:]] == ["02_a", "03_b"]  # the rest is not run
    index = (reports / "index.html").read_text()
    assert "The latest attempt failed: code cell 2 (`fail`): ValueError: no such pair" in index
    assert "This report is from an earlier run." in index
    write_notebook(notebooks, "03_b", "x = 3")
    assert batch.main([], notebooks) == 0
    assert not (reports / "03_b.failed.ipynb").exists()
    assert "failed" not in (reports / "index.html").read_text().replace("note.failed", "")


def test_an_interrupted_run_says_so_in_one_line_and_keeps_earlier_reports(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notebooks, reports = tmp_path / "notebooks", tmp_path / "reports"
    write_notebook(notebooks, "03_a", "x = 1")
    assert batch.main([], notebooks) == 0
    before = {name: (reports / name).read_bytes() for name in files(reports)}
    write_notebook(notebooks, "03_a", "interrupt")
    capsys.readouterr()
    assert batch.main([], notebooks) == 130
    assert capsys.readouterr().err.startswith("report: stopped; what is finished stays in")
    assert files(reports) == sorted(before)
    assert "Interrupted: the same command runs it again." in (reports / "index.html").read_text()
    del before["index.html"]
    assert {name: (reports / name).read_bytes() for name in before} == before
    assert calls[-1] == ("03_a", {})


def test_pages_appear_as_notebooks_are_done_and_the_front_page_says_what_is_to_come(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebooks, reports = tmp_path / "notebooks", tmp_path / "reports"
    for name in ("02_a", "03_b", "04_c"):
        write_notebook(notebooks, name, "x = 1" if name != "03_b" else "fail")
    seen: dict[str, tuple[list[str], list[str]]] = {}
    run = batch.execute

    def look_first(source: Path, *others: Any) -> Any:
        pages = [name for name in files(reports) if name.endswith(".html")]
        seen[source.stem] = (pages, notes(reports))
        return run(source, *others)

    monkeypatch.setattr(batch, "execute", look_first)
    assert batch.main([], notebooks) == 1
    running, queued = "Running since", "Still to come: waiting for those before it."
    assert seen["02_a"][0] == ["index.html"]
    assert [note.startswith(running) for note in seen["02_a"][1]] == [True, False, False]
    assert seen["02_a"][1][1:] == [queued, queued]
    assert seen["03_b"][0] == ["02_a.html", "index.html"]
    assert [note.startswith(running) for note in seen["03_b"][1]] == [True, False]
    failed, last = notes(reports)
    assert failed.startswith("The latest attempt failed: code cell 2")
    assert last == "Not reached: the report ended before it."


def test_a_second_report_in_the_same_folder_waits_for_the_first(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_notebook(tmp_path / "notebooks", "03_a", "x = 1")
    (tmp_path / "reports").mkdir()
    with ThreadPoolExecutor() as threads, FileLock(tmp_path / "reports" / ".lock"):
        second = threads.submit(batch.main, [], tmp_path / "notebooks")
        said = ""
        while "another report is being made" not in said and not second.done():
            time.sleep(0.05)
            said += capsys.readouterr().out
        assert f"{tmp_path / 'reports'}: waiting for its end" in said
        assert calls == []
    assert second.result() == 0
    assert calls == [("03_a", {})]
