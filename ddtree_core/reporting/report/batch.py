"""Run the notebooks in order and render the report: `python -m ddtree_core.reporting.report.batch --help`.

A report that was finished with the same notebook, parameters, package and data is kept as it is; everything
is written under a temporary name and moved into place, so a killed run loses only the notebook it was in.
Pages appear as soon as their notebooks are done. Two reports in one folder take turns.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
from filelock import FileLock, Timeout
from tqdm import tqdm

from ddtree_core.experiments.provenance import provenance
from ddtree_core.paths import caller_dir, caller_path, project_root
from ddtree_core.reporting.report.execution import Hooks, NotebookFailed, execute
from ddtree_core.reporting.report.export import Progress
from ddtree_core.reporting.report.notebook_source import Notebook, assign, digest, find_notebooks, select
from ddtree_core.reporting.report.pages import STAMP, read_executed, render_pages

QUICK = {
    "prompts_per_domain": "1",
    "max_new_tokens": "24",
    "budgets": "4,16",
    "baseline_prompts": "1",
    "repeats": "2",
    "steps": "40",
}


@dataclass(frozen=True)
class Batch:
    """What is to be run, and where."""

    notebooks: list[Notebook]  # all of the workbook
    chosen: list[Notebook]
    parameters: dict[str, dict[str, Any]]
    reports: Path
    fresh: bool
    progress: dict[str, Progress] = field(default_factory=dict)  # of notebooks that are not done, by name

    def render(self, pages: Sequence[str] | None = None) -> int:
        """Render the front page, and the pages of the notebooks named (default: all that are finished)."""
        return render_pages(self.notebooks, self.reports, self.progress, pages)


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Entry point of `./workbook report`; 0 done, 1 a notebook failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser().parse_args(arguments)
    os.environ["DDTREE_COMMAND"] = shlex.join(["./workbook", "report", *arguments])  # for run.json
    os.environ["DDTREE_CALLER"] = str(caller_dir())  # kernels run in the folder of their notebook
    try:
        batch = make_batch(args, folder or project_root() / "notebooks", reports_dir())
    except ValueError as error:
        _say(str(error), sys.stderr)
        return 2
    try:
        with _alone(batch.reports):
            succeeded = run(batch)
            count = batch.render()  # all of them, since each links to the others
    except KeyboardInterrupt:
        _say(
            f"stopped; what is finished stays in {batch.reports}, the same command goes on from there",
            sys.stderr,
        )
        return 130
    _say(f"report of {count} notebooks: {batch.reports / 'index.html'}")
    return 0 if succeeded else 1


def reports_dir() -> Path:
    """Folder of the reports: `$DDTREE_REPORTS`, else `reports/` of the repository."""
    return caller_path(os.environ.get("DDTREE_REPORTS") or project_root() / "reports").resolve()


def make_batch(args: argparse.Namespace, folder: Path, reports: Path) -> Batch:
    """Check everything that can be checked before a notebook starts.

    Raises ValueError for an unknown notebook or parameter, a value of the wrong type, or a folder that cannot
    be written.
    """
    notebooks = find_notebooks(folder)
    chosen = select(notebooks, args.only)
    parameters = assign(chosen, args.parameters, QUICK if args.quick else None)
    try:
        reports.mkdir(parents=True, exist_ok=True)
        probe = reports / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"the reports folder {reports} cannot be written ({error.strerror or error}): "
            "free the place, or set DDTREE_REPORTS to a folder that can"
        ) from error
    return Batch(notebooks, chosen, parameters, reports, args.fresh)


@contextmanager
def _alone(reports: Path) -> Iterator[None]:
    """Wait until no other report is made in this folder, and keep others waiting meanwhile.

    The files of two would mix, and each would slow down what the other measures.
    """
    lock = FileLock(reports / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say(f"another report is being made in {reports}: waiting for its end (DDTREE_REPORTS names another)")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def run(batch: Batch) -> bool:
    """Run the chosen notebooks that need it, in order, up to the first that fails; whether all succeeded."""
    waiting = []
    for notebook in batch.chosen:
        if batch.fresh or not _is_current(batch, notebook):
            waiting.append(notebook)
        else:
            _say(f"{notebook.name}: unchanged, kept as it is (--fresh runs it again)")
    batch.progress.update({notebook.name: Progress("queued") for notebook in waiting})
    cells = sum(_code_cells(batch, notebook) for notebook in waiting)
    done: list[str] = []
    with tqdm(total=cells, unit="cell", disable=None, leave=False) as bar:
        for notebook in waiting:
            batch.progress[notebook.name] = Progress("running", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
            batch.render(pages=done[-1:])
            try:
                seconds = run_notebook(batch, notebook, bar)
            except NotebookFailed as error:
                _stop(batch, notebook, Progress("failed", str(error)))
                kept = batch.reports / f"{notebook.name}.failed.ipynb"
                _say(
                    f"{notebook.name} failed in {error}\n"
                    f"        executed up to there: {kept}; finished reports are kept",
                    sys.stderr,
                )
                return False
            except KeyboardInterrupt:
                _stop(batch, notebook, Progress("interrupted"))
                batch.render(pages=[])
                raise
            del batch.progress[notebook.name]
            done.append(notebook.name)
            _say(f"{notebook.name}: done in {seconds:.1f} s")
    return True


def _stop(batch: Batch, notebook: Notebook, progress: Progress) -> None:
    """This notebook came to a bad end, and those behind it are not reached."""
    for name, before in batch.progress.items():
        if before.state == "queued":
            batch.progress[name] = Progress("not reached")
    batch.progress[notebook.name] = progress


def run_notebook(batch: Batch, notebook: Notebook, bar: tqdm) -> float:
    """Run one notebook and move it into the reports folder when it has succeeded; seconds it took.

    Raises NotebookFailed; the executed part is then kept as `<name>.failed.ipynb`.
    """
    parameters = batch.parameters[notebook.name]
    partial = batch.reports / f".{notebook.name}.partial.ipynb"
    failed = batch.reports / f"{notebook.name}.failed.ipynb"
    before = digest(notebook, parameters)  # a file that changes while it runs makes the result stale
    hooks = Hooks(
        started=lambda cell: bar.set_description(f"{notebook.name}, cell {cell + 1}"),
        ended=lambda: bar.update(),
    )
    started = time.perf_counter()
    try:
        executed = execute(notebook.path, parameters, partial, hooks)
    except NotebookFailed:
        if partial.exists():
            partial.replace(failed)
        raise
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    seconds = time.perf_counter() - started
    shown = {name: default for name, (_, default) in notebook.parameters.items()}
    shown |= {name: repr(value) for name, value in parameters.items()}
    executed.metadata[STAMP] = {
        "digest": before,
        "given": parameters,
        "parameters": shown,
        "seconds": round(seconds, 1),
        **provenance(),
    }
    nbformat.write(executed, partial)
    partial.replace(batch.reports / f"{notebook.name}.ipynb")
    failed.unlink(missing_ok=True)
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./workbook report",
        description="Run the notebooks in order and render reports/index.html with one page per notebook.",
    )
    parser.add_argument(
        "-p",
        dest="parameters",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter in every notebook that has it; lists as 8,16",
    )
    parser.add_argument("--only", metavar="03,04", help="run only these notebooks")
    parser.add_argument("--fresh", action="store_true", help="run also what is finished and unchanged")
    quick = ", ".join(f"{name} {value}" for name, value in QUICK.items())
    parser.add_argument("--quick", action="store_true", help=f"a small run to see it work: {quick}")
    return parser


def _is_current(batch: Batch, notebook: Notebook) -> bool:
    executed = read_executed(batch.reports / f"{notebook.name}.ipynb")
    wanted = digest(notebook, batch.parameters[notebook.name])
    return executed is not None and executed.metadata[STAMP]["digest"] == wanted


def _code_cells(batch: Batch, notebook: Notebook) -> int:
    cells = nbformat.read(notebook.path, as_version=4).cells
    own = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in cells)
    return own + bool(batch.parameters[notebook.name])  # parameters come in a cell of their own


def _say(text: str, file: Any = None) -> None:
    tqdm.write(f"report: {text}", file=file or sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
