"""Outputs of a model's blocks while a context is open."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def captured(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """The output of each of `modules` (the first of several) in the last forward pass, in their order.

    A block's own output is what drafters are trained on; the library's last entry of `hidden_states` is
    already past the final norm.
    """
    outputs: list[Tensor] = [Tensor()] * len(modules)

    def keep(place: int):
        def hook(_module: nn.Module, _args: object, output: Tensor | tuple[Tensor, ...]) -> None:
            outputs[place] = output if isinstance(output, Tensor) else output[0]

        return hook

    handles = [module.register_forward_hook(keep(place)) for place, module in enumerate(modules)]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
