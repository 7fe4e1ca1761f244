"""This machine and a pair: devices, who holds their memory, and where a pair would lie."""

from ddtree_core.diagnosis.machine.devices import Device, parse_gpus, present_devices
from ddtree_core.diagnosis.machine.placement import Placement, lay_out
from ddtree_core.diagnosis.machine.tables import (
    device_table,
    footprint_table,
    holder_table,
    placement_table,
)

__all__ = [
    "Device",
    "Placement",
    "device_table",
    "footprint_table",
    "holder_table",
    "lay_out",
    "parse_gpus",
    "placement_table",
    "present_devices",
]
