"""Devices and who holds their memory are looked up and left alone."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from ddtree_core.diagnosis.machine import devices
from ddtree_core.diagnosis.machine.devices import parse_gpus, present_devices
from ddtree_core.models.footprint import GIB


def test_named_gpus_are_numbered_and_sized() -> None:
    named = parse_gpus("1x80GB+2 x 24GiB + 512mib")
    assert [(d.name, d.free) for d in named] == [
        ("cuda:0", 80 * 10**9),
        ("cuda:1", 24 * 2**30),
        ("cuda:2", 24 * 2**30),
        ("cuda:3", 512 * 2**20),
    ]


@pytest.mark.parametrize(
    "text", ["", "2x", "48", "x48GiB", "0x48GiB", "2x48TB", "2x0GiB", "2x48GiB+", "-1x4GB"]
)
def test_what_does_not_name_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected number x memory"):
        parse_gpus(text)


def test_the_ram_is_the_machines_and_its_holders_are_the_largest() -> None:
    ram = present_devices(processes=3)[-1]
    assert (ram.name, ram.total) == ("cpu", psutil.virtual_memory().total)
    assert 0 < ram.free < ram.total
    sizes = [holder.bytes or 0 for holder in ram.holders]
    assert 1 <= len(sizes) <= 3
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] >= psutil.Process().memory_info().rss * 0.9  # at least as large as this process


UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-8888-7777-6666-555555555555")


@pytest.fixture
def child():
    """A process of somebody else's, so to say."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts an `nvidia-smi` in the path that answers for two GPUs and writes down what it was asked."""

    def install(apps: str = "", status: int = 0) -> Path:
        gpus = f"{UUIDS[0]}, 49140, 20140, NVIDIA RTX A6000\n{UUIDS[1]}, 49140, 49140, NVIDIA RTX A6000\n"
        answers, log, tool = tmp_path / "answers.json", tmp_path / "asked", tmp_path / "nvidia-smi"
        answers.write_text(json.dumps({"--query-gpu": gpus, "--query-compute-apps": apps}))
        tool.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            f"print(json.load(open({str(answers)!r}))[sys.argv[1].split('=')[0]], end='')\n"
            f"sys.exit({status})\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return log

    return install


def test_gpus_and_their_holders_are_what_the_driver_tells(
    driver: Callable[..., Path], child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    log = driver(
        f"{UUIDS[0]}, {child.pid}, 5000, /usr/bin/python3\n"
        f"{UUIDS[0]}, 999999999, 24000, a name, with a comma\n"
        f"{UUIDS[1]}, 999999998, [N/A], hidden\n"
    )
    first, second, _ram = present_devices()
    assert (first.name, first.model, first.is_gpu) == ("cuda:0", "NVIDIA RTX A6000", True)
    assert (first.total, first.free) == (49140 * 2**20, 20140 * 2**20)
    assert [(h.pid, h.name, h.bytes) for h in first.holders] == [
        (999999999, "a name, with a comma", 24000 * 2**20),
        (child.pid, "/usr/bin/python3", 5000 * 2**20),
    ]
    assert [h.user for h in first.holders] == ["?", psutil.Process().username()]
    assert [(h.name, h.bytes) for h in second.holders] == [("hidden", None)]
    # Queries and nothing else; whoever holds the memory goes on.
    assert all(asked.startswith("--query-") for asked in log.read_text().splitlines())
    assert child.poll() is None


def test_the_driver_is_asked_about_the_gpus_that_torch_may_use(
    driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver()
    seen = [UUIDS[1].removeprefix("GPU-"), "00000000-0000-0000-0000-000000000000"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=seen[i]))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (3 * GIB, 4 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "of a slice")
    first, second, _ram = present_devices()
    assert (first.name, first.free) == ("cuda:0", 49140 * 2**20)  # the driver's second one
    assert (second.name, second.free, second.total, second.model) == (
        "cuda:1",
        3 * GIB,
        4 * GIB,
        "of a slice",
    )


@pytest.mark.parametrize("installed", [True, False])
def test_without_an_answering_driver_there_are_no_gpus(
    installed: bool, driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if installed:
        driver(status=9)
    else:
        monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    assert [d.name for d in present_devices()] == ["cpu"]
