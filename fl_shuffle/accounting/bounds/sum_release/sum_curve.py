"""One client's curve over all sums its reports were in.

Source: docs/research/proofs, sections 14 and 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_delta, laplace_epsilon
from fl_shuffle.accounting.bounds.sum_release.gaussian import (
    SUM_LATTICE_LOSS,
    sum_epsilon,
    sum_profile,
)
from fl_shuffle.accounting.distributions.gaussian_cover import GaussianCover
from fl_shuffle.accounting.numerics.dominating_pairs import trade_off
from fl_shuffle.errors import InvalidValueError


@dataclass(frozen=True)
class SumCurve:
    """One client's privacy curve against an attacker who sees sums: Gaussian with parameter `mu`.

    For Laplace noise but for probability `rare`. Where `mu` is infinite the curve is the local one
    of `rounds` Laplace reports of budget `pure` each.
    """

    mu: float
    rare: float = 0.0
    pure: float = 0.0
    rounds: int = 0

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon (nats) at `delta`, rounded up."""
        # Section 15: delta(epsilon) <= delta_G(epsilon; mu) + T rho. So the Gaussian part may
        # have delta - T rho.
        if math.isfinite(self.mu) and delta > self.rare:
            return sum_epsilon(delta - self.rare, self.mu)
        return laplace_epsilon(delta, self.pure, self.rounds) if self.rounds else math.inf

    @property
    def cover(self) -> GaussianCover | None:
        """The curve as Gaussian DP; None where it is the local one of Laplace reports."""
        if not math.isfinite(self.mu):
            return None
        # Sections 14 and 15: delta is at most the Gaussian one plus what grids and rare cases cost.
        return GaussianCover(self.mu, self.rare + SUM_LATTICE_LOSS)

    def profile(self, epsilons: ArrayLike) -> Vector:
        """Return upper bounds on delta at each epsilon >= 0."""
        grid = np.asarray(epsilons, dtype=np.float64)
        if math.isfinite(self.mu):
            return np.minimum(1.0, sum_profile(grid, self.mu) + self.rare)
        return laplace_delta(grid, self.pure, self.rounds)

    def trade_off(self, type_one: ArrayLike) -> Vector:
        """Return a lower bound on an attacker's type II error at each type I error (f-DP)."""
        if not math.isfinite(self.mu):
            # The local Laplace curve has no closed trade-off function: it is the envelope of the
            # lines that the profile gives.
            return trade_off(type_one, self.profile, self.epsilon(1e-9), 60)
        errors = np.asarray(type_one, dtype=np.float64)
        if not np.all((errors >= 0.0) & (errors <= 1.0)):
            raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
        # f(a) = Phi(Phi^-1(1 - a) - mu); the rare event may lower both errors of a test by its
        # probability.
        shifted = ndtr(-ndtri(np.minimum(1.0, errors + self.rare)) - self.mu) - self.rare
        return np.asarray(np.maximum(0.0, shifted), dtype=np.float64)
