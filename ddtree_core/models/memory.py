"""How much memory there is and whether a pair fits, before anything large is fetched or loaded."""

import psutil
import torch

from ddtree_core.models.footprint import BUDGET, CONTEXT, GIB, Memory, footprint
from ddtree_core.models.pair_spec import PairSpec, Revisions
from ddtree_core.models.registry import PAIRS


class OutOfMemoryError(ValueError):
    """A pair that would not fit; the message tells what would."""


def available_bytes(device: str) -> int:
    """Free memory in bytes where a model would be loaded: RAM, one GPU ("cuda:1"), or all GPUs ("auto")."""
    if device == "cpu" or not torch.cuda.is_available():
        return psutil.virtual_memory().available
    if device == "auto":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return torch.cuda.mem_get_info(torch.device(device))[0]


def peak_rss_bytes() -> int:
    """The highest resident memory of this process so far, in bytes."""
    import resource  # Unix only
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def required(
    pair: str | tuple[str, str] | PairSpec,
    dtype: torch.dtype,
    device: str,
    revisions: Revisions = (None, None),
) -> Memory:
    """What a pair takes on `device` ("auto": all GPUs together) for 4,096 tokens and trees of 64 nodes.

    Raises what `footprint` raises.
    """
    devices = torch.cuda.device_count() if device == "auto" else 1
    return footprint(pair, dtype, revisions).memory(devices=max(devices, 1))


def check_fits(pair: PairSpec, dtype: torch.dtype, device: str, revisions: Revisions = (None, None)) -> None:
    """Raise `OutOfMemoryError`, before any weight is fetched or loaded, for a pair that does not fit."""
    free, needed = available_bytes(device), required(pair, dtype, device, revisions)
    if needed.total <= free:
        return
    in_half = required(pair, torch.bfloat16, device, revisions).total
    would_fit = [f"{pair.name} with dtype='bfloat16' ({in_half / GIB:.1f} GiB)"] if in_half <= free else []
    would_fit += [row.name for row in PAIRS.values() if required(row, dtype, device).total <= free]
    raise OutOfMemoryError(
        f"{pair.name} needs {needed} in {str(dtype).removeprefix('torch.')} for {CONTEXT} tokens and trees "
        f"of {BUDGET} nodes, but {free / GIB:.1f} GiB are free on {device}; what would fit: "
        f"{', '.join(would_fit) or 'nothing known, so use a device with more memory'}"
    )
