"""Third-order domination from convex order and a variance: collapse the lower part of L*.

Let B1(t) = E(L* - t)_+^2 for atoms L* that dominate every L_k in convex order, and Var L_k <= v.
Every L_k has E(L_k - t)_+^2 <= min{B1(t), v + (1 - a - t)^2}. The law here keeps the atoms of L*
above t0, collapses the rest to their mean, and stretches everything by kappa >= 1 about the
mean. What is kept is L*'s upper tail, which is what decides; the lower part gives way to the
smaller variance.

Certificate, with psi'(t) = E(L' - t)_+^2: above max(t0, mean) every kept atom has moved up, so
psi' >= B1. Below the collapsed atom psi' = Var L' + (mean - t)^2, and Var L' >= v. In between,
on each cell of a partition, psi' lies above its tangent at the right end and the two bounds
below chords.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.amplification import AmplificationLaw, AtomicLaw, FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES


@dataclass(frozen=True)
class ToppedLaw:
    """`law` up to its `upper` = K, and above it one atom that keeps E(L - K)_+ and E(L - K)_+^2.

    It dominates min(L_k, K) in third order if `square` >= E(L_k - K)_+^2 and law.stop_loss
    dominates.
    """

    law: AmplificationLaw
    square: float
    left: float
    """law.stop_loss(K)"""

    @property
    def lower(self) -> float:
        return self.law.lower

    @property
    def upper(self) -> float:
        return self.law.upper + (self.square / self.left if self.left > 0.0 else 0.0)

    @property
    def mean(self) -> float:
        return self.law.mean

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """E(L - t)_+, linear above K."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        start = self.law.upper
        share = np.maximum(self.upper - t, 0.0) / max(
            self.upper - start, TOLERANCES.partial_shuffle_tiny
        )
        return np.where(t < start, self.law.stop_loss(np.minimum(t, start)), self.left * share)


class _Upper:
    """Sums over the atoms above a threshold: E(v - t)_+^2 and E(v - t)_+ at every t."""

    def __init__(self, values: FloatArray, probabilities: FloatArray) -> None:
        self._values = values
        zero = np.zeros(1)

        def tails(terms: FloatArray) -> FloatArray:
            return np.concatenate([np.cumsum(terms[::-1])[::-1], zero])

        self._mass = tails(probabilities)
        self._first = tails(probabilities * values)
        self._second = tails(probabilities * values * values)

    def __call__(
        self, t: FloatArray, stretch: FloatArray | float = 1.0, kept: int = 0
    ) -> tuple[FloatArray, FloatArray]:
        """For the values times `stretch`, from number `kept` on."""
        at = np.maximum(np.searchsorted(self._values, t / stretch, side="right"), kept)
        mass, first = self._mass[at], stretch * self._first[at]
        second = stretch * stretch * self._second[at]
        return second - t * (2.0 * first - t * mass), first - t * mass


Choice = tuple[int, float]
"""The first atom kept (-1: all, as they are), and the stretch."""


def collapse(
    atoms: AtomicLaw, variance: float, mean: float, rate: float, hint: Choice | None = None
) -> tuple[AtomicLaw, Choice]:
    """Atoms L' that dominate every L_k in third order, from L* and `variance`.

    `mean` is at least E L_k. `rate` is the exponential rate that matters; it ranks the candidates.
    `hint` is a choice that was good for nearly the same law: it is taken if it is certified here.
    """
    centre = max(atoms.mean, mean)
    values = atoms.values - centre
    p = atoms.probabilities
    whole = float(p @ values**2)
    goal = variance * (1.0 + 4.0 * TOLERANCES.collapse_slack)
    if whole <= goal:
        return atoms, (-1, 1.0)
    mass = np.cumsum(p[::-1])[::-1]
    first = np.cumsum((p * values)[::-1])[::-1]
    second = np.cumsum((p * values * values)[::-1])[::-1]
    rest = np.maximum(1.0 - mass, TOLERANCES.partial_shuffle_tiny)
    # The collapsed atom: the total stays centred (up to the atoms' own excess over `mean`).
    low = -first / rest
    spread = second + rest * low * low
    inside = np.flatnonzero(np.minimum(rest, mass) > TOLERANCES.collapse_least_mass)
    bounds = _Upper(values, p)

    def certified(j: int, kappa: float, step: float, hinted: bool = False) -> float | None:
        point = float(low[j]), float(rest[j])
        # Beyond that nothing is left of the smaller variance.
        most = min(TOLERANCES.collapse_max_stretch, math.sqrt(whole / float(spread[j])))
        kept = j, max(float(values[j]), 0.0)
        return _stretched(
            bounds, kept, point, (kappa, step, most), variance, centre - mean, -centre, hinted
        )

    def law(j: int, stretch: float) -> tuple[AtomicLaw, Choice]:
        new = np.concatenate([low[j : j + 1], values[j:]]) * stretch + centre
        masses = np.concatenate([rest[j : j + 1], p[j:]])
        return AtomicLaw(new + TOLERANCES.collapse_round_off * np.abs(new), masses), (j, stretch)

    if hint is not None and hint[0] in inside:
        j = hint[0]
        kappa = max(hint[1], math.sqrt(goal / float(spread[j])))
        found = certified(j, kappa, 4.0 * TOLERANCES.collapse_stretch_step, hinted=True)
        if found is not None:
            return law(j, found)
    ranked = []
    for stretch in TOLERANCES.collapse_stretches:
        fits = inside[spread[inside] * stretch * stretch >= goal]
        if fits.size:
            j = int(fits[-1])
            kappa = max(1.0, math.sqrt(goal / float(spread[j])))
            ranked.append((_score(rate * kappa, values[j:], p[j:], low[j], rest[j]), kappa, j))
    # Convex order alone is enough: the atoms as they are.
    best = _score(rate, values, p, 0.0, 0.0), -1, 1.0
    for score, kappa, j in sorted(set(ranked)):
        if score >= best[0]:
            break
        found = certified(j, kappa, TOLERANCES.collapse_stretch_step)
        if found is None:
            continue
        final = _score(rate * found, values[j:], p[j:], float(low[j]), float(rest[j]))
        if final < best[0]:
            best = final, j, found
    return (atoms, (-1, 1.0)) if best[1] < 0 else law(best[1], best[2])


def _score(rate: float, values: FloatArray, p: FloatArray, low: float, rest: float) -> float:
    exponent = np.minimum(rate * values, TOLERANCES.collapse_max_exponent)
    return float(p @ (np.expm1(exponent) - exponent)) + rest * (math.expm1(rate * low) - rate * low)


def _stretched(
    bounds: _Upper,
    kept: tuple[int, float],
    point: tuple[float, float],
    stretches: tuple[float, float, float],
    variance: float,
    surplus: float,
    zero: float,
    hinted: bool,
) -> float | None:
    """The least certified stretch found, everything centred.

    `kept`: the first atom kept, and up to where the comparison is not plain. `stretches`: the first
    one tried, the accuracy, and the largest.
    """
    least, step, most = stretches
    slack = TOLERANCES.collapse_slack * variance
    first, end = kept
    shares = np.arange(TOLERANCES.collapse_cells + 1) / TOLERANCES.collapse_cells

    def holds(stretch: FloatArray) -> NDArray[np.bool_]:
        """For each of several stretches at once."""
        low = point[0] * stretch
        nodes = low[:, None] + np.multiply.outer(end - low, shares)
        square, slope = bounds(nodes[:, 1:], stretch[:, None], first)
        at_left = square + 2.0 * slope * (nodes[:, 1:] - nodes[:, :-1]) - slack
        at_right = square - slack
        # L_k's mean lies `surplus` below the centre.
        second = np.where(nodes <= zero, variance + (surplus + nodes) ** 2, math.inf)
        good = (at_left >= second[:, :-1]) & (at_right >= second[:, 1:])
        curve = bounds(nodes)[0]
        good |= (at_left >= curve[:, :-1]) & (at_right >= curve[:, 1:])
        # The variance speaks of thresholds up to zero, and of those below both means.
        result: NDArray[np.bool_] = np.all(good, axis=1) & (low <= min(zero, -surplus))
        return result

    tried = least + step * np.array(TOLERANCES.collapse_steps)
    tried = tried[: max(1, int(np.searchsorted(tried, most, side="right")))]
    # A good hint needs no more than the first.
    good = holds(tried[:1] if hinted else tried)
    if hinted and not good[0]:
        good = np.append(good, holds(tried[1:]))
    if not np.any(good):
        return None
    place = int(np.argmax(good))
    found = float(tried[place])
    if place:
        last = float(tried[place - 1])
        parts = math.ceil(TOLERANCES.collapse_finer * (found - last) / step)
        between = np.linspace(last, found, parts + 1)[1:-1]
        good = holds(between)
        found = float(between[np.argmax(good)]) if np.any(good) else found
    return found


def lifted(atoms: AtomicLaw, gain: float, loss: float) -> AtomicLaw:
    """The law of L + gain L^+ + loss L^-, rounded up: convex and increasing in L."""
    values = np.where(atoms.values > 0.0, (1.0 + gain) * atoms.values, (1.0 - loss) * atoms.values)
    return AtomicLaw(values + TOLERANCES.lift_round_off * np.abs(values), atoms.probabilities)
