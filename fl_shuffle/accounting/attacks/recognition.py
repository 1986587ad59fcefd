"""The attack that recognises a client's Gaussian report among the others', and what it certainly
gets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, log_ndtr

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows
from fl_shuffle.accounting.rounds.events import ClientClass

RECOGNITION_CLASSES = 256
"""More classes than this are put in bins of scale and radius ..."""
RECOGNITION_BIN = 0.01
"""... as wide as this in logarithms: whether the attack is certain is then decided a little
late."""

Vector = NDArray[np.float64]


class Recognition:
    """A lower bound on epsilon at `delta`: the attack that knows the others. Gaussian noise only.

    `counts[j]` is how many clients of class j there are; at most so many reports hide one of a
    class in every round. The others' means lie at -C_j u, the client's own at +C u or `sensitivity`
    Delta below it. Of the reports whose part orthogonal to u is no longer than tau, the attacker
    takes the one furthest along u. It is the client's, except with probability at most

      eta = P(sigma^2 chi^2 > tau^2)
            + sum_j n_j Phi(-(C + C_j - Delta) / hypot(sigma, sigma_j)) P(sigma_j^2 chi^2 <= tau^2)

    a round (chi^2 with `dimension` - 1 degrees of freedom; both parts of a report are independent;
    without a dimension tau is infinite). On the rest the client's own Gaussian pair is observed, so
    the divergence at eps is at least delta_G(eps; mu sqrt(T)) - (1 + e^eps) T eta. Nothing is
    claimed where eta is not negligible. Reports are taken as they are before rounding to the grid.

    Many classes are put in bins, and eta is that of each bin's least favourable corner.
    """

    def __init__(
        self,
        classes: Sequence[ClientClass],
        counts: NDArray[np.int64],
        delta: float,
        dimension: int | None = None,
    ) -> None:
        self._classes = ClassTable.of(classes)
        self._delta = delta
        self._dimension = dimension
        self._applies = bool(self._classes.is_noise("gaussian").all())
        scale, radius = self._classes.scale, self._classes.radius
        bins = distinct_rows(scale, radius).inverse
        if bins.max(initial=0) >= RECOGNITION_CLASSES:
            finest = RECOGNITION_BIN
            near = np.maximum(radius, 1e-9 * radius.max())
            bins = distinct_rows(
                *(np.floor(np.log(np.maximum(v, 1e-300)) / finest) for v in (scale, near))
            ).inverse
        size = int(bins.max(initial=-1)) + 1
        self._bin_of = bins
        self._others = np.bincount(bins, counts, minlength=size)
        self._narrowest, self._nearest = np.full(size, np.inf), np.full(size, np.inf)
        self._widest = np.zeros(size)
        np.minimum.at(self._narrowest, bins, scale)
        np.maximum.at(self._widest, bins, scale)
        np.minimum.at(self._nearest, bins, radius)

    def epsilon(self, index: int, rounds: int) -> float | None:
        """For a client of class `index` over `rounds` rounds; None where it is not certain."""
        own = self._classes[index]
        if own.exposure == 0.0 or not self._applies:
            return None
        others = self._others.copy()
        others[self._bin_of[index]] -= 1.0
        there = others > 0.0
        gap = own.radius + self._nearest[there] - own.sensitivity
        if np.any(gap <= 0.0):
            return None
        mu = own.exposure * math.sqrt(rounds)
        slack = 1e-3 * self._delta
        allowed = math.log(slack) - gaussian_epsilon(self._delta, mu) - math.log(2.0 * rounds)
        beaten = np.exp(log_ndtr(-gap / np.hypot(own.scale, self._widest[there])))
        mistaken = others[there] * beaten
        missed = 0.0
        if self._dimension is not None and self._dimension > 1:
            # Half of what is allowed for the client's own report being too long (Laurent, Massart).
            depth, freedom = math.log(2.0) - allowed, self._dimension - 1.0
            reach = freedom + 2.0 * math.sqrt(freedom * depth) + 2.0 * depth
            narrowest = own.scale / self._narrowest[there]
            mistaken *= gammainc(0.5 * freedom, 0.5 * reach * narrowest**2)
            missed = 0.5 * math.exp(allowed)
        if missed + math.fsum(mistaken.tolist()) > math.exp(allowed):
            return None
        return gaussian_epsilon(self._delta + slack, mu) * (1.0 - 1e-9)
