"""How much memory a model needs and how much there is, before anything is loaded."""

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ddtree_core.models.registry import PAIRS

GB = 1e9
OVERHEAD = 1.08  # caches, activations and a draft tree, on top of the weights


class OutOfMemoryError(ValueError):
    """A model whose weights would not fit; the message tells what would."""


def parameter_count(config: PreTrainedConfig) -> int:
    """Parameters of a causal language model of this config, from shapes alone (shared tensors once); nothing
    is allocated.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def available_bytes(device: str) -> int:
    """Free memory in bytes where a model would be loaded: RAM, one GPU ("cuda:1"), or all GPUs together
    ("auto").
    """
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


def required_bytes(parameters: float, dtype: torch.dtype) -> float:
    """Memory in bytes that a pair of so many parameters takes when it decodes."""
    return parameters * dtype.itemsize * OVERHEAD


def check_fits(name: str, parameters: float, dtype: torch.dtype, device: str) -> None:
    """Raise `OutOfMemoryError`, before anything is downloaded or loaded, for a pair that does not fit."""
    free = available_bytes(device)
    if required_bytes(parameters, dtype) <= free:
        return
    in_half = required_bytes(parameters, torch.bfloat16)
    would_fit = [f"{name} with dtype='bfloat16' ({in_half / GB:.1f} GB)"] if in_half <= free else []
    would_fit += [s.name for s in PAIRS.values() if required_bytes(s.parameters, dtype) <= free]
    raise OutOfMemoryError(
        f"{name} needs about {required_bytes(parameters, dtype) / GB:.1f} GB in "
        f"{str(dtype).removeprefix('torch.')}, but {free / GB:.1f} GB are free on {device}; what would fit: "
        f"{', '.join(would_fit) or 'nothing known, so use a device with more memory'}"
    )
