"""Where a number comes from: code, versions, hardware and command behind a run."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ddtree_core.paths import project_root

VERSIONED = ("torch", "transformers", "ddtree_core")
GIB = 2**30


def commit(root: Path | None = None) -> dict[str, Any] | None:
    """Commit of the repository at `root` and whether files differ from it; None outside a repository."""
    root = (root or project_root()).resolve()

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
        )
        return done.stdout.strip()

    try:
        # A package unpacked inside somebody else's repository must not carry that repository's commit.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None
        return {"id": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that decide a result; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@functools.cache
def cpu_model() -> str:
    """Name of the processor as the operating system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def hardware() -> dict[str, Any]:
    """Processor, cores, threads used by torch, memory in GiB, and the GPUs with theirs."""
    import torch  # slow to import, and the only one who knows threads and GPUs

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(logical=False) or os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "gpus": [{"name": gpu.name, "memory_gib": round(gpu.total_memory / GIB, 1)} for gpu in gpus],
    }


def command() -> str:
    """What started this process: the report's command line, the notebook in JupyterLab, or the script."""
    if report := os.environ.get("DDTREE_COMMAND"):
        return report
    if notebook := os.environ.get("JPY_SESSION_NAME"):
        return f"notebook {Path(notebook).name}"
    return shlex.join(sys.orig_argv)


def provenance() -> dict[str, Any]:
    """Everything a reader needs to judge or repeat a number measured by this process, JSON-ready."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }


def describe(info: dict[str, Any], n: str | None = None) -> str:
    """One line for the foot of a figure: n, processor, versions and commit out of `provenance()`."""
    hard, installed, code = info["hardware"], info["versions"], info.get("commit")
    machine = f"{hard['cpu']}, {hard['cores']} cores, {hard['threads']} threads"
    if hard["gpus"]:
        machine = ", ".join(gpu["name"] for gpu in hard["gpus"])
    parts = [n, machine, *(f"{name} {installed[name]}" for name in ("torch", "transformers"))]
    if code:
        parts.append(f"commit {code['id'][:8]}" + (" with local changes" if code["dirty"] else ""))
    return "  ·  ".join(part for part in parts if part)
