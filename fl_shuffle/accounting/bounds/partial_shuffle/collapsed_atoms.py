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


Choice = int
"""The first atom kept; -1: all, as they are."""


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
        return atoms, -1
    mass = np.cumsum(p[::-1])[::-1]
    first = np.cumsum((p * values)[::-1])[::-1]
    second = np.cumsum((p * values * values)[::-1])[::-1]
    rest = np.maximum(1.0 - mass, TOLERANCES.partial_shuffle_tiny)
    # The collapsed atom: the total stays centred (up to the atoms' own excess over `mean`).
    low = -first / rest
    spread = second + rest * low * low
    inside = np.flatnonzero(np.minimum(rest, mass) > TOLERANCES.collapse_least_mass)
    bounds = _Upper(values, p)

    def certificate(j: int) -> _Certificate:
        # Beyond the largest stretch nothing is left of the smaller variance.
        most = min(TOLERANCES.collapse_max_stretch, math.sqrt(whole / float(spread[j])))
        kept, point = (j, max(float(values[j]), 0.0)), (float(low[j]), float(rest[j]))
        return _Certificate(bounds, kept, point, most, variance, centre - mean, -centre)

    def least(j: int) -> float:
        return max(1.0, math.sqrt(goal / float(spread[j])))

    def law(j: int, stretch: float) -> tuple[AtomicLaw, Choice]:
        new = np.concatenate([low[j : j + 1], values[j:]]) * stretch + centre
        masses = np.concatenate([rest[j : j + 1], p[j:]])
        return AtomicLaw(new + TOLERANCES.collapse_round_off * np.abs(new), masses), j

    if hint is not None and hint < 0:
        return atoms, hint
    if hint is not None and hint in inside:
        holds = certificate(hint)
        found = holds.least_stretch(holds.needed(least(hint)))
        if found is not None:
            return law(hint, found)
    tried = set()
    for stretch in TOLERANCES.collapse_stretches:
        fits = inside[spread[inside] * stretch * stretch >= goal]
        tried.update(fits[-1:].tolist())
    ranked = [
        (_score(rate * least(j), values[j:], p[j:], float(low[j]), float(rest[j])), j)
        for j in tried
    ]
    # Convex order alone is enough: the atoms as they are.
    plain = best = _score(rate, values, p, 0.0, 0.0)
    promising = []
    for score, j in sorted(ranked):
        if score >= best:
            break
        holds = certificate(j)
        needed = holds.needed(least(j))
        likely = needed + TOLERANCES.collapse_likely_steps * TOLERANCES.collapse_stretch_step
        final = _score(rate * likely, values[j:], p[j:], float(low[j]), float(rest[j]))
        if final < plain:
            promising.append((final, needed, j, holds))
            best = min(best, final)
    for _, needed, j, holds in sorted(promising, key=lambda each: each[:3]):
        found = holds.least_stretch(needed)
        if found is not None:
            return law(j, found)
    return atoms, -1


def _score(rate: float, values: FloatArray, p: FloatArray, low: float, rest: float) -> float:
    exponent = np.minimum(rate * values, TOLERANCES.collapse_max_exponent)
    return float(p @ (np.expm1(exponent) - exponent)) + rest * (math.expm1(rate * low) - rate * low)


@dataclass(frozen=True)
class _Certificate:
    """Whether the atoms, collapsed and stretched, dominate; everything centred.

    `kept`: the first atom kept, and up to where the comparison is not plain. `point`: the collapsed
    atom and its mass. `most`: the largest stretch of use. `surplus`: how far L_k's mean lies below
    the centre.
    """

    bounds: _Upper
    kept: tuple[int, float]
    point: tuple[float, float]
    most: float
    variance: float
    surplus: float
    zero: float

    def needed(self, least: float) -> float:
        """About the least stretch, from `least` on: a step of Newton's method at every threshold.

        It decides nothing but where `least_stretch` looks.
        """
        first, end = self.kept
        shares = np.arange(1, TOLERANCES.collapse_places + 1) / TOLERANCES.collapse_places
        nodes = self.point[0] * least + (end - self.point[0] * least) * shares
        second = self.variance + (self.surplus + nodes) ** 2
        second[nodes > self.zero] = math.inf
        square, slope = self.bounds(nodes, least, first)
        missing = np.minimum(second, self.bounds(nodes)[0]) - square
        growth = 2.0 / least * (square + nodes * slope)
        step = np.max(missing / np.maximum(growth, TOLERANCES.partial_shuffle_tiny), initial=0.0)
        return least + float(step)

    def least_stretch(self, needed: float) -> float | None:
        """The least certified stretch found near `needed`, and not below; None if there is none."""
        if needed > self.most:
            return None
        steps = np.array(TOLERANCES.collapse_steps)
        tried = np.minimum(needed + TOLERANCES.collapse_stretch_step * steps, self.most)
        good = self.holds(tried)
        return float(tried[np.argmax(good)]) if np.any(good) else None

    def holds(self, stretch: FloatArray) -> NDArray[np.bool_]:
        """For each of several stretches at once."""
        first, end = self.kept
        slack = TOLERANCES.collapse_slack * self.variance
        shares = np.arange(TOLERANCES.collapse_cells + 1) / TOLERANCES.collapse_cells
        low = self.point[0] * stretch
        nodes = low[:, None] + np.multiply.outer(end - low, shares)
        square, slope = self.bounds(nodes[:, 1:], stretch[:, None], first)
        at_left = square + 2.0 * slope * (nodes[:, 1:] - nodes[:, :-1]) - slack
        at_right = square - slack
        second = self.variance + (self.surplus + nodes) ** 2
        second[nodes > self.zero] = math.inf
        good = (at_left >= second[:, :-1]) & (at_right >= second[:, 1:])
        # The other bound is asked where this one is not enough.
        left = np.flatnonzero(~np.all(good, axis=0))
        if left.size:
            part = slice(int(left[0]), int(left[-1]) + 1)
            curve = self.bounds(nodes[:, part.start : part.stop + 1])[0]
            good[:, part] |= (at_left[:, part] >= curve[:, :-1]) & (
                at_right[:, part] >= curve[:, 1:]
            )
        # The variance speaks of thresholds up to zero, and of those below both means.
        result: NDArray[np.bool_] = np.all(good, axis=1) & (low <= min(self.zero, -self.surplus))
        return result


def lifted(atoms: AtomicLaw, gain: float, loss: float) -> AtomicLaw:
    """The law of L + gain L^+ + loss L^-, rounded up: convex and increasing in L."""
    values = np.where(atoms.values > 0.0, (1.0 + gain) * atoms.values, (1.0 - loss) * atoms.values)
    return AtomicLaw(values + TOLERANCES.lift_round_off * np.abs(values), atoms.probabilities)
