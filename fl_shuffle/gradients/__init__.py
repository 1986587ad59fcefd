"""Clipped gradient means of many virtual clients at once; see `docs/gradients.md`."""

from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.factory import make_gradient_engine

__all__ = ["GradientEngine", "Loss", "make_gradient_engine"]
