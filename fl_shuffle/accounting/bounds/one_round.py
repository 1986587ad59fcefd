"""What the privacy curves of one client in one round have in common (docs/proofs.md, section 5).

delta(eps) <= min over eps' <= eps of min{ delta_local(eps'), every theorem's bound at eps' }.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from fl_shuffle.accounting.engine.monotone_search import crossing
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.laws.gaussian_mechanism import MAX_MU, gaussian_epsilon
from fl_shuffle.errors import require_open_unit, require_real

RUNG = 1.25
"""A search for an epsilon first goes up in steps of this factor, from the predicted one ..."""
SEARCH_FROM = 0.01
"""... or, from the second step on, from this share of the local epsilon if that is more."""


class Theorem(NamedTuple):
    """What one theorem says of one client in one round."""

    delta: Callable[[float], float]
    """An upper bound at every epsilon >= 0, both directions; may be infinite."""
    predicted_mu: float
    """A normal approximation of that curve: not a bound, only a scale."""


class OneRoundCurve(ABC):
    """Upper bounds on the divergence at every epsilon (nats): replace-one, both directions."""

    def __init__(self) -> None:
        self._seen: dict[float, float] = {}
        """The points known so far: the bound is their running minimum."""

    @property
    @abstractmethod
    def credit(self) -> bool:
        """Whether a theorem says more than the local curve; if not the curve is that."""

    @property
    @abstractmethod
    def predicted_mu(self) -> float:
        """A normal approximation of the curve: not a bound, only a scale."""

    @abstractmethod
    def local_delta(self, epsilon: float) -> float:
        """The divergence of the client's own report, the shuffler ignored."""

    @abstractmethod
    def local_epsilon(self, delta: float) -> float:
        """The local epsilon at `delta`, rounded up; may be infinite."""

    @abstractmethod
    def _shuffled(self, epsilon: float, local: float) -> float:
        """What the theorems say at `epsilon`, where the local curve is at `local` > 0."""

    def delta(self, epsilon: float) -> float:
        """The bound at `epsilon` >= 0; never above the local curve."""
        budget = require_real("epsilon", epsilon, minimum=0.0)
        if budget not in self._seen:
            local = self.local_delta(budget)
            self._seen[budget] = min(local, self._shuffled(budget, local)) if local > 0.0 else 0.0
        # The true curve is nonincreasing, so an earlier point may say more than this one.
        return min(value for at, value in self._seen.items() if at <= budget)

    def __call__(self, epsilon: float) -> DeltaBound:
        return DeltaBound(self.delta(epsilon), 0.0)

    def epsilon(self, delta: float, *, tolerance: float = 1e-3) -> float:
        """The smallest epsilon found with delta(epsilon) <= `delta`: rounded up; may be infinite.

        The curve there is within `tolerance` (relative) of the target. Never above the local value.
        """
        target = require_open_unit("delta", delta)
        high = self.local_epsilon(target)
        if not self.credit or high == 0.0 or math.isinf(high):
            return high
        # Far out a theorem may say less than nearer by, and what is nearer by holds there, too: the
        # first rung upwards at which the target is met, not the last.
        low, rung = 0.0, gaussian_epsilon(target, min(self.predicted_mu, MAX_MU))
        while rung < high and self.delta(rung) > target:
            low, rung = rung, max(rung * RUNG, high * SEARCH_FROM)
        high = min(rung, high)
        return crossing(self.delta, target, high, minimum=low, tolerance=tolerance)[1]
