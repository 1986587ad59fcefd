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

    def certified(j: int, stretches: tuple[float, float, float], hinted: bool) -> float | None:
        least, step, most = stretches
        point = float(low[j]), float(rest[j])
        kept = j, max(float(values[j]), 0.0)
        # Beyond that nothing is left of the smaller variance.
        most = min(most, TOLERANCES.collapse_max_stretch, math.sqrt(whole / float(spread[j])))
        certificate = _Certificate(bounds, kept, point, variance, centre - mean, -centre)
        return certificate.least_stretch((least, step, most), hinted)

    def law(j: int, stretch: float) -> tuple[AtomicLaw, Choice]:
        new = np.concatenate([low[j : j + 1], values[j:]]) * stretch + centre
        masses = np.concatenate([rest[j : j + 1], p[j:]])
        return AtomicLaw(new + TOLERANCES.collapse_round_off * np.abs(new), masses), (j, stretch)

    if hint is not None and hint[0] in inside:
        j = hint[0]
        kappa = max(hint[1], math.sqrt(goal / float(spread[j])))
        step = 4.0 * TOLERANCES.collapse_stretch_step
        found = certified(j, (kappa, step, math.inf), hinted=True)
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
        atom = float(low[j]), float(rest[j])
        # A stretch beyond this one would be no better than what is known.
        most = kappa * (best[0] / score) ** (1.0 / _growth(rate * kappa, values[j:], p[j:], *atom))
        found = certified(j, (kappa, TOLERANCES.collapse_stretch_step, most), hinted=False)
        if found is None:
            continue
        final = _score(rate * found, values[j:], p[j:], *atom)
        if final < best[0]:
            best = final, j, found
    return (atoms, (-1, 1.0)) if best[1] < 0 else law(best[1], best[2])


def _score(rate: float, values: FloatArray, p: FloatArray, low: float, rest: float) -> float:
    exponent = np.minimum(rate * values, TOLERANCES.collapse_max_exponent)
    return float(p @ (np.expm1(exponent) - exponent)) + rest * (math.expm1(rate * low) - rate * low)


def _growth(rate: float, values: FloatArray, p: FloatArray, low: float, rest: float) -> float:
    """The slope of log `_score` in log rate: at least two, and growing with the rate."""
    rise = np.expm1(np.minimum(rate * values, TOLERANCES.collapse_max_exponent))
    change = rate * (float((p * values) @ rise) + rest * low * math.expm1(rate * low))
    return max(2.0, change / _score(rate, values, p, low, rest))


@dataclass(frozen=True)
class _Certificate:
    """Whether the atoms, collapsed and stretched, dominate; everything centred.

    `kept`: the first atom kept, and up to where the comparison is not plain. `point`: the collapsed
    atom and its mass. `surplus`: how far L_k's mean lies below the centre.
    """

    bounds: _Upper
    kept: tuple[int, float]
    point: tuple[float, float]
    variance: float
    surplus: float
    zero: float

    def least_stretch(self, stretches: tuple[float, float, float], hinted: bool) -> float | None:
        """The least certified stretch found; None if there is none up to the largest.

        `stretches`: the first one tried, the accuracy, and the largest. A `hinted` first one needs
        no more most times.
        """
        least, step, most = stretches
        tried = least + step * np.array(TOLERANCES.collapse_steps)
        tried = np.append(tried[tried < most], most) if most > least else tried[:1]
        if hinted and self.holds(tried[:1])[0]:
            return least
        # The nearest ones and the last; those between only where it holds at the last alone.
        near = TOLERANCES.collapse_near_steps
        few = tried if tried.size <= near + 1 else np.append(tried[:near], tried[-1])
        good = self.holds(few)
        if not np.any(good):
            return None
        if few.size < tried.size and not np.any(good[:-1]):
            few = tried[near - 1 :]
            good = np.concatenate([[False], self.holds(few[1:-1]), [True]])
        place = int(np.argmax(good))
        found = float(few[place])
        if place:
            last = float(few[place - 1])
            parts = math.ceil(TOLERANCES.collapse_finer * (found - last) / step)
            finer = np.linspace(last, found, parts + 1)
            low, high = 0, parts
            while high - low > 1:
                # Larger stretches hold as well, or nearly: in a few jumps.
                jump = max(1, math.ceil((high - low) / (near + 1)))
                places = np.arange(low + jump, high, jump)
                good = self.holds(finer[places])
                first = int(np.argmax(good)) if np.any(good) else places.size
                low, high = (
                    low if first == 0 else int(places[first - 1]),
                    high if first == places.size else int(places[first]),
                )
            found = float(finer[high])
        return found

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
