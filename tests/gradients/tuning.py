"""Gradients with another tuning constant than the product's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fl_shuffle.gradients import blocks
from fl_shuffle.gradients.compiled_linear import engine
from fl_shuffle.gradients.tolerances import TOLERANCES


def choose_path(patch: pytest.MonkeyPatch, *, compiled: bool) -> None:
    """Softmax regression is compiled, or is not, however little there is to do."""
    least = 0 if compiled else 1 << 62
    patch.setattr(engine, "TOLERANCES", replace(TOLERANCES, compiled_min_products=least))


def small_blocks(patch: pytest.MonkeyPatch, numbers: int) -> None:
    """Blocks of networks have so many numbers."""
    patch.setattr(blocks, "TOLERANCES", replace(TOLERANCES, network_numbers=numbers))
