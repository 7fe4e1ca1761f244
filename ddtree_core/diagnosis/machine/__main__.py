"""The machine report: devices, free memory, who holds it, and where a pair would lie.

    python -m ddtree_core.diagnosis.machine --pair qwen3.6-27b --gpus 2x48GiB

Everything is read only: no process is touched, no weight is read, and registry pairs need no network.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

from ddtree_core.diagnosis.machine.devices import parse_gpus, present_devices
from ddtree_core.diagnosis.machine.placement import lay_out
from ddtree_core.diagnosis.machine.tables import (
    device_table,
    footprint_table,
    holder_table,
    placement_table,
)
from ddtree_core.models.footprint import BUDGET, CONTEXT, footprint
from ddtree_core.models.registry import DEFAULT_PAIR


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 1 where the pair does not fit, 2 for a request that cannot be answered."""
    parser = argparse.ArgumentParser(prog="python -m ddtree_core.diagnosis.machine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pair", default=DEFAULT_PAIR, help='registry name, or "TARGET + DRAFTER"')
    parser.add_argument("--gpus", help="plan for these instead of this machine: 2x48GiB, 1x80GB+2x24GiB")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: bfloat16 on GPUs")
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens of prompt and answer")
    parser.add_argument("--budget", type=int, default=BUDGET, help="nodes of a draft tree")
    args = parser.parse_args(arguments)
    try:
        devices = parse_gpus(args.gpus) if args.gpus else present_devices()
        default = "bfloat16" if any(device.is_gpu for device in devices) else "float32"
        needs = footprint(args.pair, getattr(torch, args.dtype or default))
        placement = lay_out(needs, devices, args.context, args.budget)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not args.gpus:
        print(device_table(devices).to_string(), end="\n\n")
        print(holder_table(devices).to_string(), end="\n\n")
    print(f"{needs.pair.name}: {needs.pair.target}, drafted for by {needs.pair.drafter}", end="\n\n")
    print(footprint_table(needs).to_string(header=False), end="\n\n")
    print(f"GiB per device, for {placement.context} tokens and trees of {placement.budget} nodes:")
    print(placement_table(placement).to_string(float_format="{:.2f}".format), end="\n\n")
    print(placement.verdict)
    return 0 if placement.fits else 1


if __name__ == "__main__":
    sys.exit(main())
