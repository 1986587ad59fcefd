"""Clipped gradient means of many virtual clients at once; see `docs/gradients.md`."""

from fl_shuffle.gradients.blocks import Packing, SumPlan, packing_of
from fl_shuffle.gradients.engine import GradientEngine, Loss, PreparedSum
from fl_shuffle.gradients.factory import load_ahead, make_gradient_engine
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords

__all__ = [
    "GradientEngine",
    "Loss",
    "NonfiniteRecords",
    "Packing",
    "PreparedSum",
    "SumPlan",
    "load_ahead",
    "make_gradient_engine",
    "packing_of",
]
