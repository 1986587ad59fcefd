"""How large blocks of clients are: what is held of their records at once, whatever the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients.blocks import (
    GENERAL_NUMBERS,
    GENERAL_RECORDS,
    ROW_NUMBERS,
    packing_of_network,
)


class Wide(nn.Module):
    """Few parameters, and so many numbers that autograd keeps of a record."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.weight, self.numbers = nn.Parameter(torch.ones(3)), numbers

    def forward(self, x: Tensor) -> Tensor:
        spread = x[:, :1].expand(-1, self.numbers) + self.weight[0]
        return spread.exp().sum(dim=1, keepdim=True) * self.weight


@pytest.mark.parametrize("numbers", [10, 10_000, 1_000_000, GENERAL_NUMBERS])
def test_general_blocks_hold_what_autograd_keeps_as_well(numbers: int) -> None:
    """Of a model of a few parameters a block of 512 records would take gigabytes."""
    packing = packing_of_network(Wide(numbers), (4,), None)
    assert packing.records == 1 or packing.records * numbers <= GENERAL_NUMBERS
    # And no smaller than it has to be: a few times as much is kept.
    assert packing.records >= min(GENERAL_RECORDS, max(1, GENERAL_NUMBERS // (4 * numbers + 100)))


@pytest.mark.parametrize("width", [1, 1000, 3_000_000])
def test_rows_and_gradients_of_a_block_are_bounded(width: int) -> None:
    packing = packing_of_network(nn.Linear(width, 2, bias=False), (width,), None)
    assert packing.clients == 1 or packing.clients * 2 * width <= ROW_NUMBERS
    assert packing.records == 1 or packing.records * 2 * width <= GENERAL_NUMBERS
    assert 1 <= packing.records <= GENERAL_RECORDS
