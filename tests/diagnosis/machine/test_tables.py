"""Tables of devices, holders, needs and placements."""

from typing import Any

import pytest

from ddtree_core.diagnosis import machine
from ddtree_core.diagnosis.machine.devices import Device, Holder, parse_gpus
from ddtree_core.diagnosis.machine.placement import lay_out
from ddtree_core.models.footprint import GIB, PARTS, footprint


def test_tables_tell_the_plan() -> None:
    needs = footprint("qwen3.6-27b")
    rows: Any = machine.footprint_table(needs)["memory"]
    assert rows["target"] == "26.896e9 parameters: 50.1 GiB in bfloat16, 100.2 GiB in float32"
    assert rows["keys and values per 1,000 tokens"] == "62.5 MiB (16 layers)"
    assert rows["recurrent and convolution state"] == "147.8 MiB (48 layers)"
    assert rows["vision tower, never loaded"].startswith("0.461e9 parameters: 0.9 GiB")
    table: Any = machine.placement_table(lay_out(needs, parse_gpus("2x48GiB")))
    assert list(table.index) == ["cuda:0", "cuda:1"]
    assert list(table["layers"]) == ["0–31", "32–63"]
    assert table[list(PARTS)].sum(axis=1).tolist() == pytest.approx(table["needed"].tolist())
    assert (table["needed"] + table["left"]).tolist() == pytest.approx([48.0, 48.0])


def test_holders_are_listed_by_device() -> None:
    device = Device(
        "cuda:0",
        48 * GIB,
        20 * GIB,
        "A6000",
        (Holder(7, "python", "ann", 27 * GIB), Holder(8, "Xorg", "root", None)),
    )
    table: Any = machine.holder_table([device])
    assert table.reset_index().to_numpy().tolist() == [
        ["cuda:0", 7, "python", "ann", "27.00"],
        ["cuda:0", 8, "Xorg", "root", "?"],
    ]
    assert machine.device_table([device]).loc["cuda:0"].tolist() == ["A6000", "48.0", "20.0", "python (7)"]
    assert len(machine.holder_table([])) == 0
