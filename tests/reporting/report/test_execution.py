"""The batch run with a real kernel: the right Python and parameters, and no harm when it fails or dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from ddtree_core.reporting.report import batch
from ddtree_core.reporting.report.notebook_source import find_notebooks
from ddtree_core.reporting.report.pages import render_pages
from tests.reporting.report.report_pages import loads_of, write_executed, write_notebook

pytestmark = pytest.mark.notebook


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and data go to the test's own folder."""
    monkeypatch.setenv("DDTREE_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("DDTREE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DDTREE_COMMAND", "")
    monkeypatch.setenv("DDTREE_CALLER", "")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.fixture
def strange_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another `python3` kernel is installed, and Jupyter prefers it."""
    spec = tmp_path / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps({"argv": ["false"], "display_name": "x", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")


@pytest.mark.usefixtures("strange_kernel")
def test_a_notebook_runs_here_with_its_parameters_and_without_bars(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from tqdm.auto import tqdm\n"
        "for _ in tqdm(range(2)): pass\n"
        "print([sys.executable, os.getcwd(), budgets, temperature, os.environ['DDTREE_COMMAND']])"
    )
    write_notebook(tmp_path / "notebooks", "03_a", code)
    assert batch.main(["-p", "budgets", "1,2"], tmp_path / "notebooks") == 0
    executed = nbformat.read(tmp_path / "reports" / "03_a.ipynb", as_version=4)
    (output,) = executed.cells[-1].outputs
    folder = str((tmp_path / "notebooks").resolve())
    command = "./workbook report -p budgets 1,2"
    assert output.text.strip() == str([sys.executable, folder, [1, 2], 0.0, command])
    assert loads_of(tmp_path / "reports" / "03_a.html") == []
    assert "Parameters of this run" in (tmp_path / "reports" / "03_a.html").read_text()


def test_relative_paths_mean_the_callers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs beside the notebook; parameters and settings were given in another folder."""
    (tmp_path / "here" / "data" / "prompts").mkdir(parents=True)
    (tmp_path / "here" / "mine.jsonl").write_text('{"id": "a", "prompt": "hi"}')
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DDTREE_DATA", "data")
    monkeypatch.setenv("DDTREE_REPORTS", "reports")
    code = (
        "from ddtree_core import load_prompts\n"
        "from ddtree_core.models.loading import locate\n"
        "from ddtree_core.paths import caller_path, data_dir\n"
        "print([data_dir(), caller_path(work), locate(drafter), load_prompts(prompts)[0]['id']])"
    )
    parameters = "work: str = ''\ndrafter: str = ''\nprompts: list[str] = []"
    write_notebook(tmp_path / "notebooks", "03_a", code, parameters=parameters)
    given = {"work": "made/here", "drafter": "./data", "prompts": "./mine.jsonl"}
    args = [part for name, value in given.items() for part in ("-p", name, value)]
    assert batch.main(args, tmp_path / "notebooks") == 0
    here = tmp_path / "here"
    executed = nbformat.read(here / "reports" / "03_a.ipynb", as_version=4)
    (output,) = executed.cells[-1].outputs
    assert output.text.strip() == str([here / "data", here / "made/here", str(here / "data"), "a"])
    assert files(tmp_path / "notebooks") == ["03_a.ipynb"]


def test_a_failing_cell_is_named_with_its_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(tmp_path / "notebooks", "03_a", "x = 1", "# why\nraise ValueError('no such pair\\nmore')")
    assert batch.main([], tmp_path / "notebooks") == 1
    error = capsys.readouterr().err
    assert "03_a failed in code cell 3 (`raise ValueError('no such pair\\nmore')`): " in error
    assert "ValueError: no such pair\n" in error
    assert files(tmp_path / "reports") == ["03_a.failed.ipynb", "index.html"]
    assert "Not run yet" not in (tmp_path / "reports" / "index.html").read_text()


def test_a_killed_run_leaves_earlier_reports_whole(tmp_path: Path) -> None:
    notebooks, reports = tmp_path / "notebooks", tmp_path / "reports"
    source = write_notebook(notebooks, "03_a", "import time\ntime.sleep(600)")
    write_executed(source, reports)
    render_pages(find_notebooks(notebooks), reports, {})
    before = {name: (reports / name).read_bytes() for name in files(reports)}
    program = (
        "import pathlib, sys\n"
        "from ddtree_core.reporting.report import batch\n"
        "batch.main([], pathlib.Path(sys.argv[1]))"
    )
    running = subprocess.Popen([sys.executable, "-c", program, str(notebooks)], env=dict(os.environ))
    partial = reports / ".03_a.partial.ipynb"
    try:
        deadline = time.monotonic() + 60
        while not (partial.exists() and '"status": "running"' in partial.read_text()):
            assert time.monotonic() < deadline, "the notebook did not start within a minute"
            assert running.poll() is None
            time.sleep(0.1)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert {name for name in files(reports) if not name.startswith(".")} == set(before)
    assert "Running since" in (reports / "index.html").read_text()
    del before["index.html"]
    assert {name: (reports / name).read_bytes() for name in before} == before
