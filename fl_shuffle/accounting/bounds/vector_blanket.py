"""The blanket bound for vector reports: Laplace noise on l1 balls, Gaussian noise on l2 balls.

Client 1's mean report moves from x0 to x1. Let r be any reference point, s >= |x_b - r| and
rho_j >= |x_j - r| for every mean x_j another client may have. With one noise law for all,

    delta(eps) <= E[L_1 1{L_1 + sum_j B_j L_j > 0}] + penalty(eps),

L the law of the opposite pair at distance s from the blanket's centre, B_j ~ Bernoulli(gamma_j):

* Laplace, scale b: gamma_j = e^(-rho_j / b), no penalty.
* Gaussian, sigma: gamma_j = e^(-eps_j) for any eps_j >= 0, and
  penalty = (e^eps - 1 + 2 delta_local(eps)) sum_j gamma_j delta_G(eps_j; rho_j / sigma),
  delta_G the Gaussian profile. Every eps_j = z c_j + c_j^2 / 2 with c_j = rho_j / sigma; z is free.

The dimension does not enter. The bound is symmetric: it covers both directions. docs/proofs.md,
section 5; clients that may be absent in secret: `participation`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.participation import with_absence
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.engine.tilted_moments import TINY
from fl_shuffle.accounting.laws.amplification import AmplificationLaw
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.reports import RoundType

RELATIVE_ERROR = 5e-4
"""Asked of the engine, relative to delta ..."""
DEAR_ERROR = 0.02
"""... and where few terms of a heavy tail make it dear: far below 1% of epsilon."""
HEAVY_TAIL_DISTANCE, FEW_REPORTS = 0.4, 200.0
"""That is from so many noise widths on, with fewer blanket reports than this."""
LEAST_REPORTS, LEAST_REPORTS_FAR = 0.1, 3.0
"""With fewer expected blanket reports nothing is computed: it gains little. Far out it is slow."""
NEAR_REFERENCE = 0.3
"""What is not far out, in noise widths."""
MAX_EXPONENT = 500.0
"""Larger exponents of the amplification law would overflow."""
DEPTHS = np.arange(3.5, 8.0, 0.1)
"""Values of z: any is valid."""
RISE, LEAST_RISE = 0.9, 0.1
"""From each to the next the blankets' own term is taken to grow by this, in logarithms: a first
guess, and no less than seen."""
TRIES = 5
"""So many of them are looked at."""

FloatArray = NDArray[np.float64]


class VectorBlanket:
    """The bound for one client of a batch, in which clients may be absent in secret."""

    def __init__(self, batch: RoundType) -> None:
        self._gaussian = batch.noise == "gaussian"
        self._rate = batch.participation
        self._move, radius, radii, self._counts = batch.in_widths
        # Two reference points: the balls' centre, and the middle between the client's two means.
        places = [(radius, radii), (0.5 * self._move, radii + radius)]
        self._own, self._reach = min(places, key=lambda place: self._mu(*place))
        self.predicted_mu = self._mu(self._own, self._reach)
        """A normal approximation of the curve: not a bound, only a scale."""
        reports = self._expected(self._reach)
        needed = LEAST_REPORTS if self._own < NEAR_REFERENCE else LEAST_REPORTS_FAR
        self.credit = self._move > 0.0 and reports >= needed
        """Whether the theorem is expected to say more than the local curve."""
        dear = self._own > HEAVY_TAIL_DISTANCE and reports < FEW_REPORTS
        self._error = DEAR_ERROR if dear else RELATIVE_ERROR

    def _masses(self, reach: FloatArray, depth: float) -> FloatArray:
        exponent = depth * reach + 0.5 * reach**2 if self._gaussian else reach
        masses: FloatArray = np.exp(-np.minimum(exponent, MAX_EXPONENT))
        return np.where(exponent < MAX_EXPONENT, masses, 0.0)

    def _expected(self, reach: FloatArray) -> float:
        """How many of the others' reports come from the blanket, about."""
        return float(self._masses(reach, 6.0) @ self._counts)

    def _mu(self, own: float, reach: FloatArray) -> float:
        """The deviation of L over the root of the number of blanket reports."""
        c = min(own, 15.0)
        if self._gaussian:
            variance = 4.0 * math.sinh(c * c)
        else:
            variance = (math.expm1(3.0 * c) / 3.0) - 2.0 * math.expm1(c) - math.expm1(-c)
            variance += math.exp(-c) * math.expm1(2.0 * c) ** 2
            variance *= math.exp(-2.0 * c)
        return math.sqrt(self._rate * variance / (1.0 + self._expected(reach)))

    def delta(self, epsilon: float, below: float = math.inf) -> float:
        """An upper bound on the divergence at `epsilon` >= 0, both directions; may be infinite.

        Of Gaussian reports only one below `below` is looked for.
        """
        if not self.credit or epsilon > MAX_EXPONENT:
            return math.inf
        if not self._gaussian:
            against_centre = LaplaceLaw(self._own, epsilon)
            return self._certified(against_centre, self._masses(self._reach, 0.0), epsilon)
        local = self._rate * float(gaussian_profile(epsilon, self._move))
        # Moving a client's report law by total variation t moves delta by at most kappa t.
        kappa = math.expm1(epsilon) + 2.0 * local
        found = below
        # With z the blankets' own term grows and the penalty falls, both steeply: the least of
        # their sum lies about where they are equal.
        penalties = kappa * np.array([self._leak(depth) for depth in DEPTHS.tolist()])
        first = int(np.searchsorted(-penalties, -found, side="right"))
        place = first if math.isfinite(below) else len(DEPTHS) // 2
        rise, before = RISE, (place, 0.0)
        for trial in range(TRIES if first < len(DEPTHS) else 0):
            depth, penalty = float(DEPTHS[place]), float(penalties[place])
            # The top of the law is cut where what is left hardly adds to delta.
            guess = min(local, float(gaussian_profile(epsilon, self.predicted_mu)) + penalty)
            law = GaussianLaw(self._own, epsilon, tail=max(0.1 * self._error * guess, 1e-290))
            own = self._certified(law, self._masses(self._reach, depth), epsilon)
            found, log = min(found, own + penalty), math.log(own + TINY)
            if 0.5 * penalty < own < 2.0 * penalty:
                break
            if trial and log != before[1]:
                rise = max((log - before[1]) / (place - before[0]), LEAST_RISE)
            before = place, log
            expected = log + rise * (np.arange(first, len(DEPTHS)) - place)
            place = first + int(np.argmin(np.abs(np.log(penalties[first:] + TINY) - expected)))
            if place == before[0]:
                break
        return found

    def _certified(self, law: AmplificationLaw, masses: FloatArray, epsilon: float) -> float:
        blanket = list(zip(masses.tolist(), self._counts.tolist(), strict=True))
        law, blanket = with_absence(law, blanket, self._rate, epsilon)
        return amplified_delta(law, blanket, relative_error=self._error, best_effort=True).delta

    def _leak(self, depth: float) -> float:
        """sum_j gamma_j delta_G(eps_j; c_j): what the blankets miss."""
        reach = self._reach
        exponent = depth * reach + 0.5 * reach**2
        missed = np.where(reach > 0.0, gaussian_profile(exponent, reach), 0.0)
        leak = float(self._counts @ (np.exp(-np.minimum(exponent, 700.0)) * missed))
        return self._rate * leak * (1.0 + 1e-9)
