"""E(sum of independent terms)_+ by moduli on a line (docs/research/proofs, section 12, "The line").

The trapezoidal rule on Re s = theta with step h, for a sum blurred by N(0, v), is at least
E(sum)_+. Moduli, and Hoelder's inequality for the sum over frequencies and for the distribution of
the weights' nodes, leave one number for every distribution A: with c_i the rule's weights,

    D(A) = sum_i c_i m_i(A)^N,   m_i(A) >= |E e^(s_i X)|, X ~ A,   E(sum)_+ <= prod_j D(A_j)^(1/N).

Up to k_1 the moduli are exact; from k_1 to k_2 Lemma 4 bounds them all at once; beyond, M(theta).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.round_off import LONG_SUM_ULPS, UNIT

BULK_SDS, BULK_STEPS = 2.5, 6
"""Atoms within this many of their own tilted deviations, in this many steps, are the bulk of
Lemma 4: any set of atoms is valid."""
EXACT_SDS = 7.0
"""Moduli are exact up to about k_1 = 7/sd, sd that of the sum of bulks; any k_1 is valid."""
MOST_EXACT = 48
"""Largest number of frequencies: where few large values decide, the step is short."""
MOST_FREQUENCIES = 1 << 16
"""Largest number up to k_2: beyond, the variance of the blur is a 1e-9th of the sum's."""


@dataclass(frozen=True)
class Frequencies:
    """Frequencies 0, h, .., their weights c_i up to k_1, and what the rest of them weigh."""

    theta: float
    count: int
    step: float
    weights: FloatArray
    rest: float
    """Weight of all frequencies above k_2; they have |M| <= M(theta)."""
    middle: float
    """Weight of those in [k_1, k_2]."""
    k1: float
    k2: float
    shift: float
    """log of e^(v theta^2/2)."""

    @classmethod
    def of(
        cls, theta: float, count: int, sd: float, own: float, most_exact: int = MOST_EXACT
    ) -> Frequencies:
        """Return the frequencies for `count` terms.

        `sd` is the deviation of the sum of the widest of them, and `own` that of the widest term's
        bulk, which decides how fast moduli fall. At most `most_exact` moduli are exact: any number
        gives an upper bound.
        """
        # The period T = 2 pi/h is wide against the sum and against 1/theta, so that the copies
        # shifted by multiples of T weigh little. They are nonnegative: any h gives an upper bound.
        h = 2.0 * math.pi / (8.0 * sd + 8.0 / theta)
        exact = min(int(min(EXACT_SDS / math.sqrt(count), 1.5) / own / h) + 2, most_exact)
        last = max(min(int(0.8 / own / h), MOST_FREQUENCIES), exact) + 1
        k = h * np.arange(last + 1)
        k1, k2 = exact * h, float(k[-1])
        # The blur N(0, v) lowers the weight at k_2 by a factor of e^-3.1. By Jensen, any v gives an
        # upper bound.
        v = (2.5 / k2) ** 2
        # c_k = (h/2 pi) e^(v (theta^2 - k^2)/2)/(theta^2 + k^2), for k and -k together; e^(v
        # theta^2/2) is kept as `shift`.
        c = np.where(k == 0.0, 1.0, 2.0) * np.exp(-0.5 * v * k * k) / (theta**2 + k * k)
        c *= h / (2.0 * math.pi)
        # Beyond k_2 the rule is at most the integral of e^(-v k^2/2)/(pi k^2), which is at most
        # this.
        rest = math.exp(-0.5 * v * k2 * k2) / (math.pi * v * k2**3)
        middle = float(c[exact:].sum())
        return cls(theta, count, h, c[:exact], rest, middle, k1, k2, 0.5 * v * theta * theta)

    def modulus_between(self, share: FloatArray, s2: FloatArray, mu4: FloatArray) -> FloatArray:
        """Return at least |M(theta + ik)|/M(theta) for all k in [k_1, k_2], by Lemma 4.

        `share` of the tilted mass is the bulk, with this variance and fourth central moment.
        """
        # v(k) is convex in k^2: on [k_1, k_2] it is largest at one of the ends. Atoms outside of
        # the bulk count with their whole mass.
        v = np.maximum(_bulk(self.k1, s2, mu4), _bulk(self.k2, s2, mu4))
        bound = share * np.sqrt(np.maximum(v, 0.0)) + 1.0 - share + LONG_SUM_ULPS * UNIT
        result: FloatArray = np.minimum(bound, 1.0)
        return result


def _bulk(k: float, s2: FloatArray, mu4: FloatArray) -> FloatArray:
    """Return v(k) of Lemma 4: E cos k(X - X') is at most this."""
    result: FloatArray = 1.0 - k**2 * s2 + k**4 * (2.0 * mu4 + 6.0 * s2 * s2) / 24.0
    return result


def bulk(x: FloatArray, q: FloatArray) -> tuple[float, float, float]:
    """Return center, radius, and deviation of atoms that suit Lemma 4.

    They hold most of the masses `q`, and few of them lie far out.
    """
    centre, radius, deviation = 0.0, math.inf, 0.0
    for _ in range(BULK_STEPS):
        chosen = np.where(np.abs(x - centre) <= radius, q, 0.0)
        mass = float(chosen.sum())
        centre = float(chosen @ x) / mass
        deviation = math.sqrt(float(chosen @ (x - centre) ** 2) / mass)
        radius = BULK_SDS * deviation + 1e-9 * float(np.ptp(x))
    return centre, radius, deviation


@dataclass(frozen=True)
class LogModuli:
    """log D of many distributions on one grid, for several functions phi of their atoms at once.

    Row i of `first` (negative nodes) and of `last` (the others) is what phi makes of them; `pairs`
    says which two rows a phi consists of. A phi is 0 at the node 0.
    """

    line: Frequencies
    first: Sequence[FloatArray]
    last: Sequence[FloatArray]
    pairs: Sequence[tuple[int, int]]
    centre: float
    radius: float
    """Atoms with |phi - center| <= radius are the bulk."""

    def _columns(self, x: FloatArray) -> FloatArray:
        """Return e^(theta x) times cos kx and sin kx at all exact frequencies.

        The bulk's moments follow.
        """
        grown = np.exp(self.line.theta * x)
        y = x - self.centre
        bulk = grown * (np.abs(y) <= self.radius)
        moments = bulk[:, None] * y[:, None] ** np.arange(5)
        turned = self._turned(grown, x)
        return np.concatenate([turned.real, turned.imag, moments], axis=1)

    def _turned(self, grown: FloatArray, x: FloatArray) -> NDArray[np.complex128]:
        """Return grown e^(ijhx) for every exact frequency jh, by doubling.

        Products cost less than sines. Each of its six products adds a few units in the last place,
        far below the N ROUND_OFF / 100 that the whole bound is raised by.
        """
        size = self.line.weights.size
        turned = np.empty((x.size, size), dtype=np.complex128)
        turned[:, 0] = grown
        done = 1
        while done < size:
            more = min(done, size - done)
            turn = np.exp(1j * (done * self.line.step) * x)[:, None]
            np.multiply(turned[:, :more], turn, out=turned[:, done : done + more])
            done += more
        return turned

    def prepared(self) -> tuple[FloatArray, FloatArray]:
        """Return the matrices that masses are multiplied by."""
        low = np.concatenate([self._columns(x) for x in self.first], axis=1)
        high = np.concatenate([self._columns(x) for x in self.last], axis=1)
        return low, high

    def log_d(self, masses: FloatArray, prepared: tuple[FloatArray, FloatArray]) -> FloatArray:
        """Return log D, one row a distribution, one column a phi.

        It is infinite where it overflows.
        """
        size, line = self.first[0].size, self.line
        low = (masses[:, :size] @ prepared[0]).reshape(len(masses), len(self.first), -1)
        high = (masses[:, size:] @ prepared[1]).reshape(len(masses), len(self.last), -1)
        every = np.stack([low[:, i] + high[:, j] for i, j in self.pairs], axis=1)
        exact = line.weights.size
        real, imaginary = every[..., :exact], every[..., exact : 2 * exact]
        whole = real[..., 0]
        square = (real[..., 1:] ** 2 + imaginary[..., 1:] ** 2) / (whole * whole)[..., None]
        # m_k^N, m_k = |M(theta + ik)|/M(theta). At k = 0 it is one; beyond k_2 one bounds it.
        powers = np.exp(0.5 * line.count * np.log(np.maximum(square, 1e-300)))
        between = line.modulus_between(*_central(every[..., 2 * exact :], whole))
        d = line.weights[0] + line.rest + powers @ line.weights[1:]
        d += line.middle * between**line.count
        # log D = N log M(theta) + log(sum of c_k m_k^N) + v theta^2/2.
        result: FloatArray = line.count * np.log(whole) + np.log(d) + line.shift
        return result


def _central(moments: FloatArray, whole: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the bulk's share, variance and fourth central moment from its raw moments."""
    mass = np.maximum(moments[..., 0], 1e-300)
    m1, m2, m3, m4 = (moments[..., i] / mass for i in range(1, 5))
    s2 = np.maximum(m2 - m1 * m1, 0.0)
    mu4 = np.maximum(m4 - 4.0 * m1 * m3 + 6.0 * m1 * m1 * m2 - 3.0 * m1**4, 0.0)
    return np.minimum(moments[..., 0] / whole, 1.0), s2, mu4
