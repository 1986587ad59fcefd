"""Gradients with another tuning constant than the product's."""

from __future__ import annotations

import pytest

from fl_shuffle.gradients import blocks
from fl_shuffle.gradients import softmax_regression as engine


def choose_path(patch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """Softmax regression is compiled, or is not, however little there is to do."""
    least = 0 if compiled else 1 << 62
    patch.setattr(engine, "LEAST_PRODUCTS", least)


def small_blocks(patch: pytest.MonkeyPatch, numbers: int) -> None:
    """Blocks of networks have so many numbers."""
    patch.setattr(blocks, "NETWORK_NUMBERS", numbers)
