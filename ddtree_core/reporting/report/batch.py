"""Run the notebooks in order and render the report: `python -m ddtree_core.reporting.report.batch --help`.

A report that was finished with the same notebook, parameters, package and data is kept as it is; everything
is written under a temporary name and moved into place, so a killed run loses only the notebook it was in.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from tqdm import tqdm

from ddtree_core.experiments.provenance import provenance
from ddtree_core.paths import caller_dir, caller_path, project_root
from ddtree_core.reporting.report.execution import Hooks, NotebookFailed, execute
from ddtree_core.reporting.report.notebook_source import Notebook, assign, digest, find_notebooks, select
from ddtree_core.reporting.report.pages import STAMP, read_executed, render_reports

QUICK = {
    "prompts_per_domain": "1",
    "max_new_tokens": "24",
    "budgets": "4,16",
    "baseline_prompts": "1",
    "repeats": "2",
    "steps": "40",
}


@dataclass(frozen=True)
class Plan:
    """What is to be run, and where."""

    notebooks: list[Notebook]  # all of the workbook
    chosen: list[Notebook]
    parameters: dict[str, dict[str, Any]]
    reports: Path
    fresh: bool
    failures: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None, folder: Path | None = None) -> int:
    """Entry point of `./workbook report`; 0 done, 1 a notebook failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)
    os.environ["DDTREE_COMMAND"] = shlex.join(["./workbook", "report", *arguments])  # for run.json
    os.environ["DDTREE_CALLER"] = str(caller_dir())  # kernels run in the folder of their notebook
    try:
        plan = make_plan(options, folder or project_root() / "notebooks", reports_dir())
    except ValueError as error:
        _say(str(error), sys.stderr)
        return 2
    try:
        run(plan)
        render(plan)
    except KeyboardInterrupt:
        _say(
            f"stopped; what is finished stays in {plan.reports}, the same command goes on from there",
            sys.stderr,
        )
        return 130
    return 1 if plan.failures else 0


def reports_dir() -> Path:
    """Folder of the reports: `$DDTREE_REPORTS`, else `reports/` of the repository."""
    return caller_path(os.environ.get("DDTREE_REPORTS") or project_root() / "reports").resolve()


def make_plan(options: argparse.Namespace, folder: Path, reports: Path) -> Plan:
    """Check everything that can be checked before a notebook starts.

    Raises ValueError for an unknown notebook or parameter, a value of the wrong type, or a folder that cannot
    be written.
    """
    notebooks = find_notebooks(folder)
    chosen = select(notebooks, options.only)
    parameters = assign(chosen, options.parameters, QUICK if options.quick else None)
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
    return Plan(notebooks, chosen, parameters, reports, options.fresh)


def run(plan: Plan) -> None:
    """Run the chosen notebooks that need it, in order, up to the first that fails."""
    waiting = []
    for notebook in plan.chosen:
        if plan.fresh or not _is_current(plan, notebook):
            waiting.append(notebook)
        else:
            _say(f"{notebook.name}: unchanged, kept as it is (--fresh runs it again)")
    with tqdm(
        total=sum(_code_cells(plan, notebook) for notebook in waiting), unit="cell", disable=None, leave=False
    ) as bar:
        for notebook in waiting:
            try:
                seconds = run_one(plan, notebook, bar)
            except NotebookFailed as error:
                plan.failures[notebook.name] = str(error)
                _say(
                    f"{notebook.name} failed in {error}\n        executed up to there: "
                    f"{plan.reports / notebook.name}.failed.ipynb; finished reports are kept",
                    sys.stderr,
                )
                return
            _say(f"{notebook.name}: done in {seconds:.1f} s")


def run_one(plan: Plan, notebook: Notebook, bar: tqdm) -> float:
    """Run one notebook and move it into the reports folder when it has succeeded; seconds it took.

    Raises NotebookFailed; the executed part is then kept as `<name>.failed.ipynb`.
    """
    parameters = plan.parameters[notebook.name]
    partial = plan.reports / f".{notebook.name}.partial.ipynb"
    failed = plan.reports / f"{notebook.name}.failed.ipynb"
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
    partial.replace(plan.reports / f"{notebook.name}.ipynb")
    failed.unlink(missing_ok=True)
    return seconds


def render(plan: Plan) -> None:
    """Render every finished notebook and the front page anew; pages link to each other."""
    pages = render_reports(plan.notebooks, plan.reports, plan.failures)
    _say(f"report of {pages} notebooks: {plan.reports / 'index.html'}")


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


def _is_current(plan: Plan, notebook: Notebook) -> bool:
    executed = read_executed(plan.reports / f"{notebook.name}.ipynb")
    wanted = digest(notebook, plan.parameters[notebook.name])
    return executed is not None and executed.metadata[STAMP]["digest"] == wanted


def _code_cells(plan: Plan, notebook: Notebook) -> int:
    cells = nbformat.read(notebook.path, as_version=4).cells
    own = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in cells)
    return own + bool(plan.parameters[notebook.name])  # parameters come in a cell of their own


def _say(text: str, file: Any = None) -> None:
    tqdm.write(f"report: {text}", file=file or sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
