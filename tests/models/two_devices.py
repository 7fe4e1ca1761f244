"""A hybrid target split over two devices that hold shapes only, run by test_gated_delta in its own process.

The devices are fake tensors of a backend registered for the occasion, so that a machine without a GPU can see
whether an operation ever meets tensors of both. Values are never computed.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddtree_core.models import Target
from ddtree_core.models.cache import RecurrentLayer
from ddtree_core.models.target import check_supported
from ddtree_core.trees import DraftTree
from tests.models.tree_sessions import build


def place(module: nn.Module, chip: int) -> None:
    """Put a module on a chip, and the hook on it that `device_map` would."""
    device = torch.device("chip", chip)
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(
                    torch.empty(value.shape, device=device), requires_grad=False
                )
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = torch.empty(value.shape, device=device)
    add_hook_to_module(module, AlignDevicesHook(execution_device=device, skip_keys=["cache"]))


def zeros(
    data: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> torch.Tensor:
    """`torch.tensor` for fake devices, which it does not know."""
    return torch.zeros(len(data), dtype=dtype or torch.long, device=device)


def main() -> None:
    model: Any = build("qwen3_5")
    check_supported(model)  # while it has values
    _setup_privateuseone_for_python_backend("chip")
    depths = torch.arange(8)
    tree = DraftTree(depths, depths - 1, depths, torch.zeros(8))
    tensors = vars(tree) | {"ancestor_mask": tree.ancestor_mask}  # made here, where they have numbers
    torch.tensor = zeros
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        for chip, modules in enumerate(
            (
                [model.model.embed_tokens, model.model.rotary_emb, *model.model.layers[:2]],
                [*model.model.layers[2:], model.model.norm, model.lm_head],
            )
        ):
            for module in modules:
                place(module, chip)
        for name, tensor in tensors.items():
            vars(tree)[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="chip:0")
        target: Any = Target(model, (0, 3))
        # Inference mode and fake devices do not go together.
        type(target).prefill.__wrapped__(target, torch.zeros(11, dtype=torch.long))
        scores = type(target).verify.__wrapped__(target, tree)
        type(target).commit.__wrapped__(target, [0, 1, 3])
        layers = [layer for layer in target._cache.layers if isinstance(layer, RecurrentLayer)]
        where: list[Any] = [layer.recurrent_states[0] for layer in layers]
    print(f"logits {scores.logits.device}, states {' '.join(str(state.device) for state in where)}")


if __name__ == "__main__":
    main()
