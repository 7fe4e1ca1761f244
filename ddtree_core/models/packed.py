"""CPU: linear layers over weights that oneDNN has laid out once, at load, in its own blocked order.

A stock float32 linear walks the row-major weight at every call. A draft tree asks for 4 to 64 rows at a time,
where the blocked layout is 1.4 to 2 times as fast and the cost grows more slowly with the rows, which is what
makes trees pay on a CPU.
"""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A frozen float32 `nn.Linear` on the CPU over a oneDNN-packed weight. (…, in_features) → (…,
    out_features).
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        # Opaque tensors cannot be buffers (no storage to save or move), so plain attributes: a packed model
        # stays where it is.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        return self._run(x, self._weight, self._bias, "none", [], "")

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self._bias is not None}"
        )


def can_pack(module: nn.Module) -> bool:
    """Whether the module's linears can be packed: all parameters on the CPU in float32, and a torch built
    with oneDNN.
    """
    return torch.backends.mkldnn.is_available() and all(
        p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters()
    )


def pack_linears(module: nn.Module) -> int:
    """Replace every `nn.Linear` below `module` by a `PackedLinear`, freeing its weight; returns how many were
    replaced.

    One layer is packed at a time, so memory peaks one weight above what the packed model needs. A weight
    shared with an embedding stays for the embedding. Raises `ValueError` for a module that is not float32 on
    the CPU.
    """
    if not can_pack(module):
        raise ValueError("only float32 models on a CPU can be packed for oneDNN; load with packed=False")
    replaced = 0
    for parent in module.modules():
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))
                replaced += 1
    return replaced
