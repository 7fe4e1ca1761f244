"""vLLM's Triton kernels taken out of its files and run: on a GPU, in Triton's interpreter, or over numpy.

A kernel's text is read where vLLM was obtained and handed to one of three backends: "triton" (natively, on a
GPU), "triton-interpreter" (Triton's own interpreter, on a CPU), or "numpy" (a stand-in for the primitives
that the acceptance kernels use). None of that text is part of this package.
"""

import ast
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from ddtree_core.diagnosis.vllm import triton_numpy, triton_worker
from ddtree_core.diagnosis.vllm.sites import argument_names, is_kernel
from ddtree_core.diagnosis.vllm.source import VllmSource

BACKENDS = ("triton", "triton-interpreter", "numpy")


class KernelError(RuntimeError):
    """A kernel is not in this version, takes unknown arguments, cannot be run here or failed."""


@dataclass(frozen=True)
class Kernel:
    """One kernel as it stands in a file of vLLM: `text` with its decorators, the first of them on `line`."""

    version: str
    name: str
    file: str
    line: int
    arguments: tuple[str, ...]
    text: str


def find_kernel(source: VllmSource, names: Sequence[str]) -> Kernel:
    """The kernel of `source` that has one of `names`. Raises KernelError when there is none."""
    for file, text in source.files.items():
        if not any(f"def {name}(" in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name in names and is_kernel(node):
                first = node.decorator_list[0].lineno
                lines = text.split("\n")[first - 1 : node.end_lineno]
                kernel = "\n".join(lines) + "\n"
                return Kernel(source.version, node.name, file, first, argument_names(node), kernel)
    raise KernelError(f"vLLM {source.version} has no kernel {' or '.join(names)}; choose another version")


def available_backends() -> tuple[str, ...]:
    """What can run kernels on this machine, best first: "auto" takes the first."""
    if importlib.util.find_spec("triton") is None:
        return BACKENDS[2:]
    return BACKENDS if torch.cuda.is_available() else BACKENDS[1:]


def execute(
    kernel: Kernel, grid: int, known: Mapping[str, Any], backend: str = "auto"
) -> dict[str, np.ndarray]:
    """Run `kernel` for the programs 0 … grid - 1, with those of the `known` values that it has arguments for.

    Returns the arrays among the arguments as they are afterwards; those of `known` stay as they are.
    Raises KernelError for an argument that is not known, and when the kernel fails; ValueError for a backend
    that is not available here.
    """
    missing = [name for name in kernel.arguments if name not in known]
    if missing:
        raise KernelError(
            f"{kernel.name} of vLLM {kernel.version} takes {', '.join(missing)}, which has no known meaning; "
            "choose another version"
        )
    backends = available_backends()
    backend = backends[0] if backend == "auto" else backend
    if backend not in backends:
        raise ValueError(f"backend {backend!r} is not available here; choose one of {', '.join(backends)}")
    arguments = {
        name: known[name].copy() if isinstance(known[name], np.ndarray) else known[name]
        for name in kernel.arguments
    }
    if backend != "numpy":
        return _worker(backend).run(kernel, grid, arguments)
    try:
        triton_numpy.run(kernel.text, grid, arguments, kernel.file, kernel.line)
    except Exception as error:
        raise KernelError(
            f"{kernel.name} of vLLM {kernel.version}: {type(error).__name__}: {error}"
        ) from error
    return {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}


@cache
def _worker(backend: str) -> "_Worker":
    return _Worker(backend)


class _Worker:
    """A process that has imported Triton, with or without its interpreter.

    Importing takes seconds, so the process stays for the next kernel; it ends with this one, which has the
    other end of its input.
    """

    def __init__(self, backend: str) -> None:
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        if backend == "triton":
            del environment["TRITON_INTERPRET"]
        self.messages = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.folder = tempfile.TemporaryDirectory(prefix="ddtree-kernels-")
        self.process = subprocess.Popen(
            # -P: this folder's modules must not be found under the names of others.
            [sys.executable, "-P", triton_worker.__file__, self.folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            env=environment,
        )

    def run(self, kernel: Kernel, grid: int, arguments: dict[str, Any]) -> dict[str, np.ndarray]:
        request = {"source": kernel.text, "name": kernel.name, "grid": grid, "arguments": arguments}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            triton_worker.send(self.process.stdin, request)
            answer = triton_worker.receive(self.process.stdout)
        except OSError:
            answer = None
        except BaseException:  # interrupted: the answer on its way must not be taken for the next kernel's
            self.process.kill()
            _worker.cache_clear()
            raise
        if answer is None:
            _worker.cache_clear()
            answer = f"Triton's process ended ({self._last_message()})"
        if isinstance(answer, str):
            raise KernelError(f"{kernel.name} of vLLM {kernel.version}: {answer}")
        return answer

    def _last_message(self) -> str:
        self.process.wait()
        self.messages.seek(0)
        lines = self.messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"
