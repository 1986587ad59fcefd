"""The blanket bound for vector reports: Laplace noise on l1 balls, Gaussian noise on l2 balls.

Client 1's mean report moves from x0 to x1. Let r be any reference point, s >= |x_b - r| and
rho_j >= |x_j - r| for every mean x_j another client may have. With one noise distribution for all,

    delta(eps) <= E[L_1 1{L_1 + sum_j B_j L_j > 0}] + penalty(eps),

L the distribution of the opposite pair at distance s from the blanket's center, B_j ~
Bernoulli(gamma_j):

* Laplace, scale b: gamma_j = e^(-rho_j / b), no penalty.
* Gaussian, sigma: gamma_j = e^(-eps_j) for any eps_j >= 0, and
  penalty = (e^eps - 1 + 2 delta_local(eps)) sum_j gamma_j delta_G(eps_j; rho_j / sigma),
  delta_G the Gaussian profile. Every eps_j = z c_j + c_j^2 / 2 with c_j = rho_j / sigma; z is free.

The dimension does not enter. The bound is symmetric: it covers both directions.
docs/research/proofs, section 5; clients that may be absent in secret: `participation`.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.participation import hidden_delta
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions.amplification import AmplificationDistribution
from fl_shuffle.accounting.distributions.continuous import LaplaceLaw
from fl_shuffle.accounting.distributions.gaussian import GaussianLaw
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_UP

RELATIVE_ERROR = 5e-4
"""Asked of the engine, relative to delta ..."""
DEAR_ERROR = 0.02
"""... and where few terms of a heavy tail make it dear: far below 1% of epsilon."""
HEAVY_TAIL_DISTANCE, FEW_REPORTS = 0.4, 200.0
"""Wide reports begin at this many noise standard deviations, with fewer blanket reports than
this."""
LEAST_REPORTS, LEAST_REPORTS_FAR = 0.1, 3.0
"""With fewer expected blanket reports nothing is computed: it gains little. Far out it is slow."""
NEAR_REFERENCE = 0.3
"""Largest distance that is not far out, in noise standard deviations."""
MAX_EXPONENT = 500.0
"""Larger exponents of the amplification distribution would overflow."""
DEPTHS = np.arange(3.5, 8.0, 0.1)
"""Values of z: any is valid."""
USUAL_DEPTH = 6.0
"""Of which this one says how many blanket reports there are, about."""


class VectorBlanket:
    """The bound around one reference point; lengths in noise standard deviations."""

    def __init__(self, batch: ShuffledRound, own: float, reach: FloatArray) -> None:
        self._gaussian = batch.noise == "gaussian"
        self._rate = batch.participation
        self._own, self._reach = own, reach
        self._move, self._counts = batch.in_widths[0], batch.in_widths[3]
        self.reports = float(self._masses(USUAL_DEPTH) @ self._counts)
        c = min(own, 15.0)
        if self._gaussian:
            # Var L at epsilon = 0: E e^(2cW - c^2) = e^(c^2) twice, less twice the mean product
            # e^(-c^2).
            variance = 4.0 * math.sinh(c * c)
        else:
            variance = (math.expm1(3.0 * c) / 3.0) - 2.0 * math.expm1(c) - math.expm1(-c)
            variance = (variance + math.exp(-c) * math.expm1(2.0 * c) ** 2) * math.exp(-2.0 * c)
        self.predicted_mu = math.sqrt(self._rate * variance / (1.0 + self.reports))
        """The deviation of L over the root of the number of blanket reports: not a bound."""
        needed = LEAST_REPORTS if own < NEAR_REFERENCE else LEAST_REPORTS_FAR
        self.credit = self._move > 0.0 and self.reports >= needed
        dear = own > HEAVY_TAIL_DISTANCE and self.reports < FEW_REPORTS
        self._error = DEAR_ERROR if dear else RELATIVE_ERROR
        self._known: dict[tuple[float, float], float] = {}
        """The blankets' own term of Gaussian reports, by epsilon and z."""

    def _masses(self, depth: float) -> FloatArray:
        return np.asarray(np.exp(-self._exponent(depth)))

    def _exponent(self, depth: float) -> FloatArray:
        reach = self._reach
        # eps_j of section 3, with gamma_j = e^(-eps_j): z c_j + c_j^2/2 for Gaussian noise, any z
        # being valid, and rho_j/b for Laplace noise.
        return depth * reach + 0.5 * reach**2 if self._gaussian else reach

    def delta(self, epsilon: float, below: float = math.inf) -> float:
        """Return an upper bound on the divergence at `epsilon` >= 0, both directions.

        It may be infinite. Of Gaussian reports only one below `below` is looked for.
        """
        if epsilon > MAX_EXPONENT:
            return math.inf
        if not self._gaussian:
            return self._certified(LaplaceLaw(self._own, epsilon), 0.0, epsilon)
        local = self._rate * float(gaussian_profile(epsilon, self._move))
        found, low, high = below, 0, len(DEPTHS)
        # With z the blankets' own term grows and the penalty falls, both steeply: the least of
        # their sum lies about where they are equal.
        while low < high:
            middle = (low + high) // 2
            depth = float(DEPTHS[middle])
            penalty = self.penalty(epsilon, local, depth)
            if penalty >= found:
                low = middle + 1
                continue
            # The top of the distribution is cut where what is left hardly adds to delta.
            guess = min(local, float(gaussian_profile(epsilon, self.predicted_mu)) + penalty)
            if (epsilon, depth) not in self._known:
                law = GaussianLaw(self._own, epsilon, tail=max(0.1 * self._error * guess, 1e-290))
                self._known[epsilon, depth] = self._certified(law, depth, epsilon)
            own = self._known[epsilon, depth]
            found = min(found, own + penalty)
            if 0.5 * penalty < own < 2.0 * penalty:
                break
            if own > penalty:
                high = middle
            else:
                low = middle + 1
        return found

    def _certified(self, law: AmplificationDistribution, depth: float, epsilon: float) -> float:
        blanket = list(zip(self._masses(depth).tolist(), self._counts.tolist(), strict=True))
        return hidden_delta(law, blanket, self._rate, epsilon, self._error).delta

    def penalty(self, epsilon: float, local: float, depth: float) -> float:
        """Return (e^eps - 1 + 2 delta_local) sum_j gamma_j delta_G(eps_j; c_j).

        It is for what blankets miss.
        """
        missed = self._masses(depth) * gaussian_profile(self._exponent(depth), self._reach)
        # Each blanket misses gamma_j eta_j, eta_j <= delta_G(eps_j; c_j): section 3.
        each = math.expm1(epsilon) + 2.0 * local
        return each * self._rate * float(self._counts @ missed) * ROUND_UP


def vector_blanket(batch: ShuffledRound) -> VectorBlanket | None:
    """Return the bound for one client of a batch, in which clients may be absent in secret.

    None where it is not expected to say more than the local curve.
    """
    move, radius, radii, _ = batch.in_widths
    # Two reference points: the balls' center, and the middle between the client's two means.
    places = VectorBlanket(batch, radius, radii), VectorBlanket(batch, 0.5 * move, radii + radius)
    chosen = min(places, key=lambda place: place.predicted_mu)
    return chosen if chosen.credit else None
