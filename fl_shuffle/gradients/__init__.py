"""Clipped gradient means of many virtual clients at once; see `docs/concepts/gradients.md`."""

from fl_shuffle.gradients.blocks import Packing, packing_of
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.factory import make_gradient_engine
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords

__all__ = [
    "GradientEngine",
    "Loss",
    "NonfiniteRecords",
    "Packing",
    "make_gradient_engine",
    "packing_of",
]
