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

from ddtree_core.diagnosis.machine.devices import GIB, Device
from ddtree_core.models.footprint import Footprint

# An allowance, not a measurement: CUDA context, cuBLAS workspaces and the activations of a prefill.
RESERVE = 1 * GIB
OFFLOADED = "offloaded"


@dataclass(frozen=True)
class Share:
    """What lies on one device, in bytes."""

    device: str
    free: int
    layers: tuple[int, ...]  # decoder layers of the target
    weights: int = 0
    drafter: int = 0
    caches: int = 0  # of target and drafter, behind the whole context
    tree: int = 0  # what verifying a tree adds
    reserve: int = RESERVE

    @property
    def needed(self) -> int:
        return self.weights + self.drafter + self.caches + self.tree + self.reserve

    @property
    def left(self) -> int:
        """Bytes that stay free; negative where the device is too small."""
        return self.free - self.needed


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
    def verdict(self) -> str:
        """One sentence: whether it fits, and if not, what is too small by how much."""
        what = f"{self.footprint.pair.name} in {str(self.footprint.dtype).removeprefix('torch.')}"
        tightest, last = min(self.shares, key=lambda share: share.left), self.shares[-1]
        if self.fits:
            return f"{what} fits: {tightest.device}, the tightest, keeps {tightest.left / GIB:.1f} GiB free."
        if last.device == OFFLOADED:
            return (
                f"{what} does not fit: {last.weights / GIB:.1f} GiB of its weights would leave the devices, "
                f"and every pass would wait for them; use more or larger devices."
            )
        return f"{what} does not fit: {tightest.device} is short of {-tightest.left / GIB:.1f} GiB."


def lay_out(needs: Footprint, devices: Sequence[Device], context: int = 4096, budget: int = 64) -> Placement:
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
    used = gpus or list(devices[:1])
    rest = [device for device in devices if not device.is_gpu]
    held = _held(needs, _split(needs, gpus, rest) if len(gpus) > 1 else {"": used[0].name})
    shares = [_share(needs, d, held.get(d.name, _Held()), context, budget) for d in used]
    if OFFLOADED in held:
        left_over = _share(needs, Device(OFFLOADED, 0, 0), held[OFFLOADED], context, budget)
        shares.append(replace(left_over, reserve=0))
    return Placement(needs, context, budget, tuple(shares))


def _share(needs: Footprint, device: Device, held: "_Held", context: int, budget: int) -> Share:
    layers = [needs.layers[i] for i in held.layers]
    return Share(
        device.name,
        device.free,
        tuple(held.layers),
        weights=held.weights,
        drafter=needs.drafter_bytes * held.head,
        caches=sum(layer.cache(context) for layer in layers) + needs.draft_cache(context) * held.head,
        tree=budget * (sum(layer.per_node for layer in layers) + needs.logits_per_node * held.head),
    )


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
class _Held:
    """What the split puts on one device."""

    weights: int = 0  # bytes
    layers: list[int] = field(default_factory=list)
    head: bool = False  # the output head, beside which the drafter goes


def _held(needs: Footprint, placed: Mapping[str, str]) -> dict[str, _Held]:
    model: Any = needs.model
    parameters = dict(model.named_parameters())  # tied ones once
    where = expand_device_map(dict(placed), list(parameters))
    held: dict[str, _Held] = {}
    for name, parameter in parameters.items():
        part = held.setdefault(where[name], _Held())
        part.weights += parameter.numel() * parameter.element_size()
        part.head |= parameter is model.get_output_embeddings().weight
        if layer := re.search(r"\.layers\.(\d+)\.", name):
            part.layers += [int(layer[1])] if int(layer[1]) not in part.layers else []
    return held
