"""Where a pair would lie on given devices, and whether it fits: `device_map="auto"` without any weights.

The split of the target is the library's own, computed on the meta device; it looks at weights alone. Caches
then follow their layers, and the drafter goes beside the output head that it shares.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from transformers.integrations.accelerate import (
    expand_device_map,
    get_balanced_memory,
    infer_auto_device_map,
)

from ddtree_core.diagnosis.machine.devices import Device
from ddtree_core.models.footprint import BUDGET, CONTEXT, GIB, PARTS, RESERVE, Footprint, Memory

OFFLOADED = "offloaded"


@dataclass(frozen=True)
class Share:
    """One device's share of a pair, in bytes."""

    device: str
    free: int
    layers: tuple[int, ...]  # decoder layers of the target
    memory: Memory  # what lies on it

    @property
    def left(self) -> int:
        """Bytes that stay free; negative where the device is too small."""
        return self.free - self.memory.total


@dataclass(frozen=True, eq=False)
class Placement:
    """A pair laid out over devices, for one generation of `context` tokens with trees of `budget` nodes."""

    footprint: Footprint
    context: int
    budget: int
    shares: tuple[Share, ...]  # one per device, then what the split leaves to RAM or the disk

    @property
    def fits(self) -> bool:
        return all(share.left >= 0 for share in self.shares)

    @property
    def memory(self) -> Memory:
        """What the pair takes over all devices together."""
        totals = {part: sum(getattr(share.memory, part) for share in self.shares) for part in PARTS}
        return Memory(**totals)

    @property
    def verdict(self) -> str:
        """One sentence: what it needs, whether that fits, and if not, what is too small by how much."""
        dtype = str(self.footprint.dtype).removeprefix("torch.")
        needs = f"{self.footprint.pair.name} needs {self.memory} in {dtype}"
        tightest, last = min(self.shares, key=lambda share: share.left), self.shares[-1]
        if self.fits:
            left = tightest.left / GIB
            return f"{needs} and fits: {tightest.device}, the tightest, keeps {left:.1f} GiB free."
        if last.device == OFFLOADED:
            return (
                f"{needs} and does not fit: {last.memory.weights / GIB:.1f} GiB of its weights would leave "
                f"the devices, and every pass would wait for them; use more or larger devices."
            )
        return f"{needs} and does not fit: {tightest.device} is short of {-tightest.left / GIB:.1f} GiB."


def lay_out(
    needs: Footprint, devices: Sequence[Device], context: int = CONTEXT, budget: int = BUDGET
) -> Placement:
    """Lay a pair out over `devices` as `load_pair` would: over all GPUs, or in RAM where there are none.

    `context` counts the tokens of prompt and answer, `budget` the nodes of a draft tree. Raises ValueError
    for no devices or counts below 1.
    """
    if not devices or min(context, budget) < 1:
        raise ValueError(
            f"cannot plan for {len(devices)} devices, {context} tokens and {budget} nodes; expected at least "
            f"one of each"
        )
    gpus = [device for device in devices if device.is_gpu]
    rest = [device for device in devices if not device.is_gpu]
    used = gpus or rest[:1]
    contents = _contents(needs, _split(needs, gpus, rest) if len(gpus) > 1 else {"": used[0].name})
    shares = []
    for device in [*used, Device(OFFLOADED, 0, 0)] if OFFLOADED in contents else used:
        content = contents.get(device.name, _Content())
        memory = needs.memory_of(content.weights, content.layers, content.head, context, budget)
        memory = replace(memory, reserve=0 if device.name == OFFLOADED else RESERVE)
        shares.append(Share(device.name, device.free, tuple(content.layers), memory))
    return Placement(needs, context, budget, tuple(shares))


def _split(needs: Footprint, gpus: Sequence[Device], rest: Sequence[Device]) -> dict[str, str]:
    """The device of every module, as `device_map="auto"` would choose it."""
    model: Any = needs.model
    whole = model._no_split_modules
    memory: dict[int | str, Any] = {i: gpu.free for i, gpu in enumerate(gpus)}
    memory |= {device.name: device.free for device in rest}
    with _absent_devices_allowed():
        balanced = get_balanced_memory(model, memory, whole)
        placed = infer_auto_device_map(model, balanced, whole)
    return {name: gpus[at].name if isinstance(at, int) else OFFLOADED for name, at in placed.items()}


@contextmanager
def _absent_devices_allowed() -> Iterator[None]:
    """Without the library's warning of GPUs that this machine does not have: they are only planned for."""
    logger = logging.getLogger("accelerate.utils.modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass
class _Content:
    """What the split puts on one device."""

    weights: int = 0  # bytes
    layers: list[int] = field(default_factory=list)
    head: bool = False  # the output head, beside which the drafter goes


def _contents(needs: Footprint, placed: Mapping[str, str]) -> dict[str, _Content]:
    model: Any = needs.model
    parameters = dict(model.named_parameters())  # tied ones once
    where = expand_device_map(dict(placed), list(parameters))
    contents: dict[str, _Content] = {}
    for name, parameter in parameters.items():
        content = contents.setdefault(where[name], _Content())
        content.weights += parameter.numel() * parameter.element_size()
        content.head |= parameter is model.get_output_embeddings().weight
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if layer and int(layer[1]) not in content.layers:
            content.layers.append(int(layer[1]))
    return contents
