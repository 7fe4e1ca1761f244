"""Tables of devices, of what holds their memory, of what a pair needs, and of where it would lie."""

from collections.abc import Sequence

import pandas as pd
import torch

from ddtree_core.diagnosis.machine.devices import Device
from ddtree_core.diagnosis.machine.placement import Placement
from ddtree_core.models.footprint import GIB, PARTS, Footprint

MIB = 2**20
TREES = (16, 64, 256)  # budgets shown


def device_table(devices: Sequence[Device]) -> pd.DataFrame:
    """One row per device: its memory in GiB, how much of it is free, and the process that holds most."""
    rows = []
    for device in devices:
        first = device.holders[0] if device.holders else None
        row = {"device": device.name, "model": device.model}
        row |= {"GiB": f"{device.total / GIB:.1f}", "free, GiB": f"{device.free / GIB:.1f}"}
        rows.append(row | {"held most by": f"{first.name} ({first.pid})" if first else "–"})
    return pd.DataFrame(rows).set_index("device")


def holder_table(devices: Sequence[Device]) -> pd.DataFrame:
    """One row per process that holds memory on a device, in GiB; "?" where the driver does not tell."""
    columns = ["device", "pid", "process", "user", "GiB"]
    rows = [
        (d.name, h.pid, h.name, h.user, "?" if h.bytes is None else f"{h.bytes / GIB:.2f}")
        for d in devices
        for h in d.holders
    ]
    return pd.DataFrame(rows, columns=columns).set_index("device")


def footprint_table(needs: Footprint) -> pd.DataFrame:
    """What a pair needs, whatever the devices: counts of parameters and memory as text."""
    attention = sum(layer.per_token > 0 for layer in needs.layers)
    recurrent = sum(layer.state > 0 for layer in needs.layers)
    rows = {
        "target": _weights(needs.target_parameters),
        "drafter": _weights(needs.draft.parameters) if needs.draft else "no weights",
        "keys and values per 1,000 tokens": f"{_mib(1000 * needs.per_token)} ({attention} layers)",
        "draft cache per 1,000 tokens": _mib(1000 * needs.draft_per_token),
        "recurrent and convolution state": f"{_mib(needs.state_bytes)} ({recurrent} layers)",
    }
    rows |= {f"verifying a tree of {n} nodes": _mib(needs.tree_bytes(n)) for n in TREES}
    if needs.vision_parameters:
        rows["vision tower, never loaded"] = _weights(needs.vision_parameters)
    return pd.DataFrame({"memory": rows})


def _weights(parameters: int) -> str:
    half, single = (parameters * dtype.itemsize / GIB for dtype in (torch.bfloat16, torch.float32))
    return f"{parameters / 1e9:.3f}e9 parameters: {half:.1f} GiB in bfloat16, {single:.1f} GiB in float32"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def placement_table(placement: Placement) -> pd.DataFrame:
    """One row per device in GiB: what lies on it by part, and what stays free."""
    rows = []
    for share in placement.shares:
        layers = f"{share.layers[0]}–{share.layers[-1]}" if share.layers else "–"
        parts = {part: getattr(share.memory, part) / GIB for part in PARTS}
        sums = {"needed": share.memory.total / GIB, "free": share.free / GIB, "left": share.left / GIB}
        rows.append({"device": share.device, "layers": layers} | parts | sums)
    return pd.DataFrame(rows).set_index("device")
