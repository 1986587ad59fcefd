"""Others by their distance from client 1's own mean: what each ring of them can do at most.

One law for all others must have the upper tail of those far from P (R near Q) and the variance of
those near it, which no single report has. So they are told apart by |p - r|, r the other's mean: a
ring near < |p - r| <= far (noise widths) has its own upper tail, that of L with P at most `far`
away, and its own variance. Which others lie in which ring is the data set's choice; `second_order`
takes the worst. For means in one ball of diameter mu (client unit, equal radii).

Variance, with u, v the means of P, Q seen from R's, U = |u|^2 >= near^2, the smallest ball around
the three points of diameter d <= mu:

* R on its boundary: u^(k), v^(k) (tensor powers) lie in the ball with diameter d^(k), so the
  largest |u^(k) - a v^(k)| is |u^(k) - a d^(k)/2| + a |d|^k/2, and |u^(k) - a d^(k)/2|^2 <=
  a^2 |d|^(2k)/4 - (a - 1) U^k: so Var L <= sum_k (sqrt(a^2 mu^(2k)/4 - (a - 1) U^k)
  + a mu^k/2)^2/k!.
* else P and Q are its ends, x = -<u, v> >= 0, |v|^2 <= mu^2 - U - 2x, and Var L = e^U - 1 + a^2
  (e^|v|^2 - 1) + 2a(1 - e^-x) falls with x: at most e^U - 1 + a^2 (e^(mu^2 - U) - 1), convex in U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    GaussianSplitLaw,
)
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES


@dataclass(frozen=True)
class RingLaw:
    """L* for others at most `far` from P: its upper tail; the lower one is that of all others."""

    all_others: ConvexOrderLaw
    above: GaussianSplitLaw
    far: float

    @property
    def epsilon(self) -> float:
        return self.above.epsilon

    @property
    def mean(self) -> float:
        return self.above.mean

    @property
    def lower(self) -> float:
        return self.all_others.lower

    @property
    def upper(self) -> float:
        return self.above.upper

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """E(L - t)_+ at most; both branches meet at zero in H(P, Q)."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        positive = t > 0.0
        result = np.empty_like(t)
        result[positive] = self.above.stop_loss(t[positive])
        result[~positive] = self.all_others.stop_loss(t[~positive])
        return result


@dataclass(frozen=True)
class Ring:
    """One ring's law, cut where no more is left than `left`, and a bound on its variance."""

    law: RingLaw
    variance: float


def rings(law: ConvexOrderLaw, mu: float, left: float) -> list[Ring]:
    """The rings of others in a ball of diameter `mu`; each law ends where `left` is left of it."""
    epsilon = law.epsilon
    count = TOLERANCES.rings
    # The upper tail matters most where a = e^epsilon is large: finer rings far out.
    power = 1.0 + min(TOLERANCES.rings_skew * epsilon, 1.0)
    edges = mu * np.sqrt(1.0 - (1.0 - np.arange(count + 1) / count) ** power)
    found = []
    for near, far in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        above = GaussianSplitLaw(epsilon, mu, far, law.lower, law.upper)
        lowest = TOLERANCES.rings_lowest_cut * law.upper
        places = np.geomspace(lowest, law.upper, TOLERANCES.rings_cut_places)
        enough = above.stop_loss(places) <= left * (1.0 + TOLERANCES.partial_shuffle_round_off)
        cut = float(places[np.argmax(enough)]) if enough.any() else law.upper
        ring = RingLaw(law, replace(above, upper=cut), far)
        found.append(Ring(ring, ring_variance(math.exp(epsilon), mu, near, far)))
    return found


def ring_variance(a: float, mu: float, near: float, far: float) -> float:
    """Var L at most, L = (P - aQ)/R, means in a ball of diameter `mu`, near <= |p - r| <= far."""
    k = np.arange(1.0, TOLERANCES.ring_powers + 1.0)
    weight = np.exp(-np.cumsum(np.log(k)))
    whole, own = (mu * mu) ** k, (near * near) ** k
    root = np.sqrt(np.maximum(0.25 * a * a * whole - (a - 1.0) * own, 0.0))
    boundary = float(np.sum(weight * (root + 0.5 * a * np.sqrt(whole)) ** 2))
    # Every left-out power is at most a^2 mu^(2k)/k!, and they fall by more than half.
    boundary += 2.0 * a * a * float(weight[-1] * whole[-1])
    inside = max(math.expm1(U) + a * a * math.expm1(mu * mu - U) for U in (near * near, far * far))
    return max(boundary, inside) * (1.0 + TOLERANCES.partial_shuffle_round_off)
