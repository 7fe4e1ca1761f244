"""What memory this machine has, how much is free, and which processes hold it: looked up, never changed.

The usual advice for a full GPU, `fuser -k /dev/nvidia*`, kills every process that has the device open, other
people's jobs included. Who holds the memory is a question that can be asked first.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, replace

import psutil
import torch

_UNITS = {"GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6}
_PART = re.compile(r"(?:(\d+)\s*[x×]\s*)?(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)", re.IGNORECASE)


@dataclass(frozen=True)
class Holder:
    """A process and the memory that it holds on a device."""

    pid: int
    name: str
    user: str
    bytes: int | None  # None where the driver does not tell


@dataclass(frozen=True)
class Device:
    """A place for tensors: a GPU or the machine's RAM, sizes in bytes."""

    name: str  # as torch calls it: "cuda:0", "cpu"
    total: int
    free: int
    model: str = ""
    holders: tuple[Holder, ...] = ()  # largest first

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda")


def parse_gpus(text: str) -> tuple[Device, ...]:
    """GPUs named by number and free memory, for instance "2x48GiB" or "1x80GB+2x24GiB".

    Raises ValueError for anything else.

    >>> [(d.name, d.free) for d in parse_gpus("2x48GiB")]
    [('cuda:0', 51539607552), ('cuda:1', 51539607552)]
    """
    sizes: list[int] = []
    for part in text.split("+"):
        found = _PART.fullmatch(part.strip())
        if not found or int(found[1] or 1) < 1 or float(found[2]) <= 0:
            raise ValueError(
                f"{text!r} does not name GPUs; expected number x memory in GiB, GB, MiB or MB, as in 2x48GiB "
                f"or 1x80GB+2x24GiB"
            )
        sizes += [int(float(found[2]) * _UNITS[found[3].upper()])] * int(found[1] or 1)
    return tuple(Device(f"cuda:{i}", size, size, "named") for i, size in enumerate(sizes))


def present_devices(processes: int = 5) -> tuple[Device, ...]:
    """The GPUs and then the RAM of this machine, with up to `processes` processes that hold most of the RAM.

    GPUs are those that torch may use, in its order; without a torch that can, those of the driver's.
    """
    return (*_gpus(), _ram(processes))


def _ram(processes: int) -> Device:
    memory = psutil.virtual_memory()
    holders = []
    for process in psutil.process_iter(["pid", "name", "username", "memory_info"]):
        info, used = process.info, process.info["memory_info"]
        if used is not None:  # None of a process that may not be looked at, or is gone
            holders.append(Holder(info["pid"], info["name"], info["username"] or "?", used.rss))
    holders.sort(key=lambda holder: -(holder.bytes or 0))
    return Device("cpu", memory.total, memory.available, "RAM", tuple(holders[:processes]))


def _gpus() -> list[Device]:
    by_uuid = _gpus_of_driver()
    if not torch.cuda.is_available():
        return [replace(device, name=f"cuda:{i}") for i, device in enumerate(by_uuid.values())]
    found = []
    for index in range(torch.cuda.device_count()):
        uuid = _bare(str(torch.cuda.get_device_properties(index).uuid))
        found.append(replace(by_uuid.get(uuid) or _gpu_of_torch(index), name=f"cuda:{index}"))
    return found


def _gpu_of_torch(index: int) -> Device:
    free, total = torch.cuda.mem_get_info(index)
    return Device(f"cuda:{index}", total, free, torch.cuda.get_device_name(index))


def _gpus_of_driver() -> dict[str, Device]:
    """GPUs by UUID as `nvidia-smi` lists them, with the processes that hold their memory; none without it."""
    holders: dict[str, list[Holder]] = {}
    for uuid, pid, used, name in _nvidia_smi("compute-apps", "gpu_uuid,pid,used_memory,process_name"):
        holder = Holder(int(pid), name, _user(int(pid)), _mebibytes(used))
        holders.setdefault(_bare(uuid), []).append(holder)
    devices = {}
    for uuid, total, free, model in _nvidia_smi("gpu", "uuid,memory.total,memory.free,name"):
        largest = sorted(holders.get(_bare(uuid), []), key=lambda holder: -(holder.bytes or 0))
        size, left = _mebibytes(total) or 0, _mebibytes(free) or 0
        devices[_bare(uuid)] = Device("", size, left, model, tuple(largest))
    return devices


def _nvidia_smi(query: str, fields: str) -> list[list[str]]:
    """Rows of a query to the driver, which changes nothing; none where there is no driver or no answer.

    The last field is a name, which may hold a comma.
    """
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-{query}={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(",", fields.count(",")) for line in done.stdout.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) == fields.count(",") + 1]


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _mebibytes(text: str) -> int | None:
    return int(float(text) * 2**20) if re.fullmatch(r"[\d.]+", text) else None  # "[N/A]" in some containers


def _user(pid: int) -> str:
    try:
        return psutil.Process(pid).username()
    except (psutil.Error, KeyError):  # gone, of another container, or a user without a name
        return "?"
