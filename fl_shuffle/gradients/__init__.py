"""Clipped gradient means of many virtual clients at once; see `docs/gradients.md`."""

from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.factory import make_gradient_engine
from fl_shuffle.gradients.spoilt import Spoilt, mend_

__all__ = ["GradientEngine", "Loss", "Spoilt", "make_gradient_engine", "mend_"]
