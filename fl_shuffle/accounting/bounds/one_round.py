"""What the privacy curves of one client in one round have in common.

Source: docs/research/proofs, section 5.

delta(eps) <= min over eps' <= eps of min{ delta_local(eps'), every theorem's bound at eps' }.

A theorem's bound chooses constants at every epsilon, so it may jump: its value at a larger epsilon
may be the larger one. Epsilon at a delta, and delta at an epsilon, are therefore read from one
curve on one tree of points that the round alone determines: `delta` is the inverse of `epsilon`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from fl_shuffle.accounting.distributions.gaussian_mechanism import MAX_MU
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import require_open_unit, require_real

RUNG = 1.25
"""The tree's coarsest points are the powers of this ..."""
FIRST_DEVIATIONS = 4.5
"""... the first of them about this many predicted deviations out: a delta of about 1e-6 ..."""
LEAST_DEVIATIONS = 0.01
"""... the least one so far out; zero lies below it ..."""
LARGEST_RUNG = 60
"""... and the largest one is this power, 6.5e5: no theorem says anything there."""
SINGLE_STEPS = 40
"""Number of powers that are tried upwards in single steps: a factor of 7,500 in all."""
CHORD_EXCESS = 1e-5
"""A cell is halved until its chord may add no more than this of epsilon, relatively ..."""
NARROWEST = 1e-6
"""... or the cell is this narrow, relatively."""


class Theorem(NamedTuple):
    """What one theorem says of one client in one round."""

    delta: Callable[[float], float]
    """An upper bound at every epsilon >= 0, both directions; may be infinite."""
    predicted_mu: float
    """A normal approximation of that curve: not a bound, only a scale."""
    predicted: Callable[[float], float] | None = None
    """About what `delta` gives, in a small part of its time: not a bound. None: not known."""


class OneRoundCurve(ABC):
    """Upper bounds on the divergence at every epsilon (nats): replace-one, both directions."""

    def __init__(self) -> None:
        self._seen: dict[float, float] = {}
        """Values of `certified`."""

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
        """Return the divergence of the client's own report, the shuffler ignored."""

    @abstractmethod
    def local_epsilon(self, delta: float) -> float:
        """Return the local epsilon at `delta`, rounded up; may be infinite."""

    @abstractmethod
    def _shuffled(self, epsilon: float, local: float) -> float:
        """Return what the theorems say at `epsilon`, where the local curve is at `local` > 0."""

    @property
    def improves(self) -> bool:
        """Whether `epsilon` and `delta` ask the theorems, too, or the local curve alone."""
        return self.credit

    @property
    def least_delta(self) -> float:
        """Below this delta the theorems say nothing: `epsilon` is that of the local curve."""
        return 0.0

    def certified(self, epsilon: float) -> float:
        """Return the theorems' bound at `epsilon` >= 0 alone; never above the local curve.

        It depends on nothing that was asked before. It may jump up where `epsilon` grows.
        """
        budget = require_real("epsilon", epsilon, minimum=0.0)
        if budget not in self._seen:
            local = self.local_delta(budget)
            self._seen[budget] = min(local, self._shuffled(budget, local)) if local > 0.0 else 0.0
        return self._seen[budget]

    def __call__(self, epsilon: float) -> DeltaBound:
        """Return the certified delta at `epsilon`, its errors inside."""
        return DeltaBound(self.certified(epsilon), 0.0)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon on the tree's curve at `delta`: rounded up; may be infinite.

        It does not rise with `delta`, and is never above the local value.

        Notes
        -----
        Every step down the tree compares one bound with `delta`, at a point that does not depend on
        `delta`: a larger `delta` never goes right where a smaller one goes left. The way ends in a
        cell with f(low) > delta >= f(high). The true curve is convex in a = e^eps, so it lies below
        the chord between any two points on the way. The least of these chords decides in the cell.
        """
        target = require_open_unit("delta", delta)
        local = self.local_epsilon(target)
        if not self.improves or local == 0.0 or math.isinf(local) or target < self.least_delta:
            return local

        def enough(point: float) -> bool:
            return self.local_delta(point) <= target or self.certified(point) <= target

        lows, highs = _sides(self._way(enough))
        if not highs or min(highs) == 0.0:
            return min(highs, default=local)
        found = math.inf
        for low, high in itertools.product(lows, highs):
            top, bottom = self.certified(low), self.certified(high)
            # The chord at a: delta = bottom + (top - bottom) (a_high - a) / (a_high - a_low).
            share = (target - bottom) / (top - bottom)
            found = min(found, high + math.log1p(share * math.expm1(low - high)))
        found = max(found * ROUND_UP, *lows)
        return min(found, local, *highs)

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta on the tree's curve at `epsilon` >= 0: rounded up.

        Never above the local curve. Any delta with `epsilon`(delta) <= `epsilon` is at least this,
        but for rounding.

        Notes
        -----
        The search of `epsilon`(delta) ends at or below `epsilon` if, on the way to the cell with
        `epsilon` in it, a value at or below `epsilon` is at most delta, and so are the values at
        all points above `epsilon` before that. Or it ends in this cell, where the chords decide.
        """
        budget = require_real("epsilon", epsilon, minimum=0.0)
        local = self.local_delta(budget)
        if not self.improves or local == 0.0:
            return local
        if budget == 0.0:
            return self.certified(0.0)
        way = self._way(lambda point: point > budget)
        least, needed = local, 0.0
        for point, left in way:
            value = self.certified(point)
            if left:
                needed = max(needed, value)
            else:
                least = min(least, max(value, needed))
        lows, highs = _sides(way)
        chord = math.inf
        for low, high in itertools.product(lows or [0.0], highs):
            top, bottom = self.certified(low), self.certified(high)
            share = math.expm1(budget - high) / math.expm1(low - high)
            chord = min(chord, bottom + max(top - bottom, 0.0) * share)
        return min(least, max(needed, chord * ROUND_UP))

    def _way(self, left: Callable[[float], bool]) -> list[tuple[float, bool]]:
        """Return the points at which `left` was asked on which side to go on, with its answers.

        It begins near `FIRST_DEVIATIONS`, goes down in growing steps or up in single ones, and
        halves what is left.
        """
        way: list[tuple[float, bool]] = []

        def asked(point: float) -> bool:
            way.append((point, left(point)))
            return way[-1][1]

        mu = min(max(self.predicted_mu, 1.0 / MAX_MU), MAX_MU)
        least = math.floor(math.log(LEAST_DEVIATIONS * mu, RUNG))
        low = high = min(math.floor(math.log(FIRST_DEVIATIONS * mu, RUNG)), LARGEST_RUNG)
        if asked(RUNG**low):
            step = 1
            while asked(RUNG ** (low := max(high - step, least))):
                if low == least:
                    if not asked(0.0):
                        self._halve(0.0, RUNG**least, asked)
                    return way
                high, step = low, 2 * step
        else:
            # Far out a theorem may say less than nearer by: no larger steps, unless the prediction
            # was for something else.
            first, step = low, 1
            while not asked(RUNG ** (high := max(low + 1, min(low + step, LARGEST_RUNG)))):
                if (low := high) >= LARGEST_RUNG:
                    return way
                step = 2 * step if low - first >= SINGLE_STEPS else 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if asked(RUNG**middle) else (middle, high)
        self._halve(RUNG**low, RUNG**high, asked)
        return way

    def _halve(self, low: float, high: float, left: Callable[[float], bool]) -> None:
        """Go down the tree from the cell between these points, as `left` says."""
        while not self._is_fine(low, high):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if left(middle) else (middle, high)

    def _is_fine(self, low: float, high: float) -> bool:
        """Return whether the chord between these points is close enough to the curve.

        Of a curve that falls from delta to delta/r over a width h, as e^(-c eps) does with
        c = log(r)/h, the chord is at most about log(r)^2/8 above, relatively: that is log(r) h/8 of
        epsilon.
        """
        width, top, bottom = high - low, self.certified(low), self.certified(high)
        if width <= NARROWEST * high or bottom >= top:
            return True
        return bottom > 0.0 and math.log(top / bottom) * width <= 8.0 * CHORD_EXCESS * high


def _sides(way: list[tuple[float, bool]]) -> tuple[list[float], list[float]]:
    """Return the points from which the way goes up, and those from which it goes down."""
    lows = [point for point, left in way if not left]
    return lows, [point for point, left in way if left]
