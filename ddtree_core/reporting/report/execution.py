"""Run one notebook through papermill in this very environment, and say where it failed if it did."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbformat import NotebookNode
from traitlets import TraitError

# A bar of a notebook would be stored as a widget of its own; the batch run shows one bar for all. tqdm's
# environment variable reaches its plain bars, its notebook bars have to be told in the kernel.
QUIET = {
    "TQDM_DISABLE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
}
NO_BARS = (
    "import functools as _f, tqdm.notebook as _t; "
    "_t.tqdm.__init__ = _f.partialmethod(_t.tqdm.__init__, disable=True); del _f, _t"
)


class ThisPython(AsyncKernelManager):
    """Starts the kernel with the Python that runs this code.

    A kernel installed by name under the user's home (`python3` of another environment) comes first in
    Jupyter's search and would run the notebooks with other packages than the report names.
    """

    @property
    def kernel_spec(self) -> KernelSpec:
        """ipykernel of `sys.executable`, whatever is installed elsewhere."""
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(
            argv=[*launch, "--log-level=CRITICAL", f"--IPKernelApp.exec_lines={NO_BARS}"],
            display_name="Python 3",
            language="python",
            metadata={"supported_encryption": "curve"},
        )

    async def start_kernel(self, **options: Any) -> None:
        """Start it without progress bars, and encrypted where the libraries can, which spares its warning."""
        with contextlib.suppress(TraitError):
            self.transport_encryption = "auto"
        environment = options.pop("env", None) or os.environ
        await super().start_kernel(**options, env={**environment, **QUIET})


class NotebookFailed(Exception):
    """A notebook stopped with an error; the message says in which cell and why, in one line."""


@dataclass(frozen=True)
class Hooks:
    """What to call when a code cell starts and when it ends."""

    started: Callable[[int], None]
    ended: Callable[[], object]


def execute(source: Path, parameters: Mapping[str, Any], partial: Path, hooks: Hooks) -> NotebookNode:
    """Execute a notebook in its own folder, saving to `partial` after every cell, and return it.

    Raises NotebookFailed if a cell fails or the kernel dies; `partial` then holds what was done.
    """
    try:
        return papermill.execute_notebook(
            source,
            partial,
            parameters=dict(parameters),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            cwd=source.parent,
            kernel_manager_class=ThisPython,
            on_cell_start=lambda cell, cell_index: hooks.started(cell_index),
            on_cell_executed=lambda cell, cell_index, execute_reply: hooks.ended(),
        )
    except Exception as error:
        raise NotebookFailed(_reason(partial, error)) from error


def _reason(partial: Path, error: Exception) -> str:
    """Cell and error line of a failed notebook; the kernel's own trouble where no cell reports one."""
    what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    try:
        cells = nbformat.read(partial, as_version=4).cells
    except Exception:  # nothing was written yet, or not all of it
        return what
    code_cells = [cell for cell in cells if cell.cell_type == "code"]
    for number, cell in enumerate(code_cells, start=1):
        for output in cell.outputs:
            if output.output_type == "error":
                message = str(output.evalue).strip().splitlines() or [""]
                return f"code cell {number} ({_first_line(cell)}): {output.ename}: {message[0]}"
        if cell.metadata.get("papermill", {}).get("status") in ("running", "failed"):
            return f"code cell {number} ({_first_line(cell)}): {what}"
    return what


def _first_line(cell: NotebookNode) -> str:
    lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
    line = next((line for line in lines if not line.startswith("#")), lines[0] if lines else "")
    return f"`{line[:57] + '…' if len(line) > 58 else line}`"
