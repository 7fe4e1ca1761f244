"""Blocks give their outputs while the context is open, and only then."""

import pytest
import torch
from torch import Tensor, nn

from ddtree_core.models.capture import captured


class Add(nn.Module):
    """Adds a number, and returns a tuple where asked to, as the blocks of some decoders do."""

    def __init__(self, number: float, as_tuple: bool = False):
        super().__init__()
        self.number, self.as_tuple = number, as_tuple

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, None]:
        return (x + self.number, None) if self.as_tuple else x + self.number


def test_outputs_of_the_last_pass_come_in_the_order_asked_for():
    """2 + 10 = 12, then 3 + 100 = 103; a block asked for twice is there twice."""
    ten, hundred = Add(10, as_tuple=True), Add(100)
    with captured([hundred, ten, hundred]) as outputs:
        ten(torch.tensor(1.0))
        ten(torch.tensor(2.0))
        hundred(torch.tensor(3.0))
        assert [float(output) for output in outputs] == [103, 12, 103]


def test_hooks_are_gone_when_the_context_closes_even_by_an_error():
    block, nothing = Add(1), "no number"
    with pytest.raises(TypeError), captured([block]) as outputs:
        block(nothing)
    block(torch.tensor(7.0))
    assert outputs[0].numel() == 0
