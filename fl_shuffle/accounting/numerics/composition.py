"""Many rounds: dominating pairs built from one-round curves, composed exactly on a grid.

A pair (P, Q) dominates a mechanism if its hockey-stick divergence is at least the mechanism's at
every e^eps, negative eps included. Products of dominating pairs dominate adaptive compositions
(Zhu, Dong, Wang 2022, Theorem 10), provided that every round's curve holds whatever the earlier
rounds released. Here P and Q live on finitely many privacy losses ("connect the dots", Doroshenko,
Ghazi, Kamath, Kumar, Manurangsi 2022), so a composition is a convolution.

Every rounding raises the result: interpolation (convexity), the grid (mean-preserving splits of
likelihood ratios), aliasing, a Chernoff bound for what leaves the window at the top (and, where
epsilon lies below the window, at the bottom), and a bound on the round-off of the Fourier
transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.limits import MAX_COMPOSED
from fl_shuffle.accounting.numerics.dominating_pairs import (
    LATTICE_MAX_LOSS,
    DominatingPair,
)
from fl_shuffle.accounting.round_off import ROUND_UP, UNIT
from fl_shuffle.errors import require_integer, require_open_unit, require_real

LATTICE_CELLS_PER_SD = 12.0
"""The grid is at least this many times finer than one round's spread of the privacy loss."""
LATTICE_LEAST_STEP = 2.0**-50
"""The grid's step is at least this share of the largest loss of all rounds together."""
LATTICE_LEAST_SPREAD = 0.25
"""That spread is no less than this share of the standard deviation, where rare large losses decide
the latter."""
LATTICE_WINDOW_SDS = 14.0
"""Width of the grid's window, in standard deviations of the composed loss; what lies outside is
bounded."""
LATTICE_MAX_CELLS = 1 << 20
"""Cells of the largest grid: more take seconds and gain nothing."""
LATTICE_MISSED_SHARE = 1e-8
"""The window is widened while more than about this share of delta may lie above it."""
VANISHING = -45.0
"""Frequencies of a smaller modulus (the logarithm) are left out: all of them together move a mass
by 3e-20, far less than `mass_roundoff` allows for. Of many rounds that is nearly every one."""
USUAL_SHARES_OF_MARKOV = 0.3, 0.9
"""Outside these shares of the epsilon by Markov's inequality other tilts are tried, too: inside
none was seen to gain more than 1e-8."""


TILTS: FloatArray = 1.25 ** np.arange(-80.0, 81.0)
"""Tilts that are tried: on one ladder, so that pairs know their moments from earlier rounds."""


def markov_rates(sd: float) -> FloatArray:
    """Return rates of Markov's inequality for what lies outside the window: powers of two."""
    first = math.floor(-math.log2(256.0 * sd))
    return 2.0 ** np.arange(first, first + 14.0)


class Composition:
    """The composed distribution of several rounds of one client.

    It has (eps, delta), profile, and trade-off curve. `parts` lists (pair, times). All numbers are
    upper bounds on delta, or epsilon rounded up.
    """

    def __init__(self, parts: Sequence[tuple[DominatingPair, int]]) -> None:
        self._parts = [
            (pair, require_integer("times", times, minimum=0, maximum=MAX_COMPOSED))
            for pair, times in parts
            if times != 0
        ]
        self.rounds = sum(times for _, times in self._parts)
        # Loss is finite only if that of every round is: 1 - prod (1 - infinite)^times.
        log_finite = math.fsum(
            times * math.log1p(-min(pair.infinite, 1.0 - 1e-16)) for pair, times in self._parts
        )
        self.infinite = abs(math.expm1(log_finite))
        spreads = [_spread(pair) ** 2 for pair, _ in self._parts if pair.moments(0.0)[2] > 0.0]
        largest = max((float(pair.losses[-1]) for pair, _ in self._parts), default=0.0)
        self._largest = max(largest, 1e-300)
        # A finer grid would number its points beyond the integers that doubles hold.
        least = self._largest * max(1, self.rounds) * LATTICE_LEAST_STEP
        self.variance = self._moments(0.0)[2]
        self._sd = max(math.sqrt(self.variance), least)
        if spreads:
            # The finest part decides, unless it hardly matters for the whole.
            typical = math.sqrt(min(v for v in spreads if v >= 1e-4 * max(spreads)))
            grids = {pair.grid for pair, _ in self._parts}
            common = grids.pop() if len(grids) == 1 else 0.0
            finest = max(typical / LATTICE_CELLS_PER_SD, 2.0 * least)
            fits = least <= common <= finest
            self._step = common if fits else 2.0 ** math.floor(math.log2(finest))

    def _moments(self, tilt: float) -> tuple[float, float, float]:
        """Return the log moment, mean and variance of the sum of the tilted privacy losses."""
        moments = [(times, *pair.moments(tilt)) for pair, times in self._parts]
        return (
            math.fsum(times * log_moment for times, log_moment, _, _ in moments),
            math.fsum(times * mean for times, _, mean, _ in moments),
            math.fsum(times * variance for times, _, _, variance in moments),
        )

    def tilt(self, objective: Callable[[FloatArray, FloatArray], FloatArray]) -> float:
        """Return the tilt that minimizes objective(tilts, log moments), on a ladder.

        Any tilt gives a valid bound: it decides where the window lies and how round-off is spread.
        """
        least, most = 1e-3 / self._sd, LATTICE_MAX_LOSS / self._largest
        usable = TILTS[(least <= TILTS) & (most >= TILTS)]
        if not usable.size:
            return 0.5 * most
        logs = sum(times * pair.log_moments(usable) for pair, times in self._parts)
        return float(usable[np.argmin(objective(usable, np.asarray(logs)))])

    def lattice(self, tilt: float) -> tuple[float, int, int, float]:
        """Return a window that is wide enough for the tilted sum.

        That is its step, first index and size, and the mass that may lie above it.
        """
        log_moment, mean, variance = self._moments(tilt)
        step, spread = self._step, max(self._sd, math.sqrt(variance))
        furthest = self.furthest(step)
        size = 1 << max(9, math.ceil(math.log2(LATTICE_WINDOW_SDS * spread / step + 4.0)))
        size = min(size, 1 << max(9, (2 * furthest).bit_length()))
        while size > LATTICE_MAX_CELLS:
            size, step = size // 2, step * 2.0
        # Few rounds with rare large losses reach further: about delta, where this tilt is the best.
        matters = LATTICE_MISSED_SHARE * math.exp(min(log_moment - tilt * mean, 0.0))
        matters *= min(1.0, self._sd)
        while True:
            furthest = self.furthest(step)
            first = -furthest if size > 2 * furthest else math.floor(mean / step) - size // 2
            above = self._above(tilt, step, first + size)
            if size >= LATTICE_MAX_CELLS or above <= matters:
                return step, first, size, above
            size *= 2

    def furthest(self, step: float) -> int:
        """Return a grid point beyond which, and below whose mirror image, no sum of losses lies."""
        return sum(times * (math.floor(pair.losses[-1] / step) + 1) for pair, times in self._parts)

    def _above(self, tilt: float, step: float, end: int) -> float:
        """Return Markov's bound on the mass from grid point `end` on."""
        if end > self.furthest(step):
            return 0.0
        return self._beyond(step, end * step, tilt + markov_rates(self._sd))

    def _beyond(self, step: float, edge: float, rates: FloatArray) -> float:
        """Return Markov's bound on P's mass at or beyond `edge`.

        Above it, or below for rates < 0.
        """
        rates = rates[np.abs(rates) * self._largest < 690.0]
        if not rates.size:
            return 1.0
        logs = sum(n * pair.log_moments(rates, step) for pair, n in self._parts)
        return math.exp(min(0.0, float(np.min(logs - rates * edge))))

    def _law(self, tilt: float) -> tuple[FloatArray, FloatArray, float]:
        """Return (losses, upper bounds on P's masses there, mass that may lie above the window)."""
        step, first, size, above = self.lattice(tilt)
        exponent = np.asarray(
            sum(n * pair.log_spectrum(step, size, tilt) for pair, n in self._parts)
        )
        log_scale = math.fsum(n * pair.moments(tilt, step)[0] for pair, n in self._parts)
        spectrum, kept = np.zeros_like(exponent), exponent.real > VANISHING
        spectrum[kept] = np.exp(exponent[kept])
        law = np.roll(np.fft.irfft(spectrum, n=size), -(first % size))
        losses: FloatArray = step * np.arange(first, first + size, dtype=np.float64)
        # Undo the tilt: P's mass is the tilted one times E e^(tilt loss) e^(-tilt loss). Every
        # tilted mass is raised by its largest round-off first.
        weights = np.exp(np.minimum(log_scale - tilt * losses, 700.0))
        masses: FloatArray = (np.maximum(law, 0.0) + mass_roundoff(size, self.rounds)) * weights
        return losses, masses, above

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the composed divergence at `epsilon` >= 0."""
        budget = require_real("epsilon", epsilon, minimum=0.0)
        if self.variance == 0.0:
            return min(1.0, self.infinite)
        tilt = self.tilt(lambda tilt, log_moment: log_moment - tilt * budget)
        # Where rare large losses decide, round-off may spoil the tilt that Markov likes best.
        return min(self._delta_at(budget, each) for each in (tilt, 0.5 * tilt, 0.0))

    def _delta_at(self, budget: float, tilt: float) -> float:
        losses, masses, above = self._law(tilt)
        gain = np.where(losses > budget, -np.expm1(np.minimum(budget - losses, 0.0)), 0.0)
        total, first = float(masses @ gain) + above, float(losses[0])
        if first > budget:
            # What lies below the window wraps to its top, where a tilted distribution weighs it too
            # lightly.
            step = float(losses[1] - losses[0])
            total += self._beyond(step, first - step, -markov_rates(self._sd))
        return min(1.0, total * ROUND_UP + self.infinite)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 on this composition at `delta`, rounded up.

        It may be infinite.
        """
        target = require_open_unit("delta", delta)
        if self.infinite >= target:
            return math.inf
        if self.variance == 0.0:
            return 0.0
        goal = -math.log(target)
        tilt = self.tilt(lambda tilt, log_moment: (log_moment + goal) / tilt)
        found, markov = self._epsilon_at(target, tilt), (self._moments(tilt)[0] + goal) / tilt
        least, most = USUAL_SHARES_OF_MARKOV
        if least * markov <= found <= most * markov:
            return found
        # Rare large losses decide: round-off, or the window, may have spoilt this tilt.
        return min(found, *(self._epsilon_at(target, tilt / 1.25**rung) for rung in (1, 2, 3)))

    def _epsilon_at(self, target: float, tilt: float) -> float:
        """Return an epsilon >= 0 at which delta is at most `target`, rounded up.

        Infinite where the window holds none. With B_j the masses from loss j on, each aged to
        e^(loss j - loss) of itself, delta at loss j is D_j = D_{j+1} + (1 - e^-step) B_{j+1}, and
        D_j + (1 - e^(eps - loss j)) B_j at eps between losses j - 1 and j: sums of positive terms
        alone, for a large tilt makes masses of neighbors differ by more than the precision of
        doubles.
        """
        from scipy.linalg.blas import dtbsv  # slow to load, and no single round needs it

        losses, masses, above = self._law(tilt)
        # Where delta is small enough all through the window, its start is an answer.
        start = max(float(losses[0]), 0.0) * ROUND_UP
        first = int(np.searchsorted(losses, 0.0))
        losses, masses = losses[first:], masses[first:]
        allowed = (target - self.infinite) / ROUND_UP - above
        step = losses[1] - losses[0]
        # B_j = m_j + e^-step B_{j+1}: a triangular system of two bands.
        bands = np.ones((2, losses.size), order="F")
        bands[1] = -math.exp(-step)
        aged = dtbsv(1, bands, masses[::-1], lower=1, diag=1)[::-1]
        delta = -math.expm1(-step) * np.append(np.cumsum(aged[:0:-1])[::-1], 0.0)
        too_much = np.flatnonzero(delta > allowed)
        if not too_much.size:
            return start
        j = int(too_much[-1]) + 1
        if j == losses.size or allowed <= 0.0:
            return math.inf
        share = (allowed - delta[j]) / aged[j]
        exact = losses[j] + (math.log1p(-share) if share < 1.0 else -math.inf)
        return float(min(max(exact, losses[j - 1]), losses[j])) * ROUND_UP

    def profile(self, epsilons: ArrayLike) -> FloatArray:
        """Return delta at each of `epsilons` (>= 0, any order)."""
        values = np.asarray(epsilons, dtype=np.float64).ravel()
        return np.array([self.delta(float(value)) for value in values])


def certainly_within(
    pairs: Sequence[DominatingPair],
    times: FloatArray,
    epsilon: float,
    delta: float,
    similar: Composition,
) -> NDArray[np.bool_]:
    """Return whether delta at `epsilon` of each composition is certainly at most `delta`.

    Parameters
    ----------
    pairs : sequence of DominatingPair
        Pairs of single rounds.
    times : ndarray, shape (n, pairs)
        Row i says how often each pair is in composition i.
    epsilon, delta : float
        The point; epsilon in nats.
    similar : Composition
        Grid and tilt are those of this one: any give a valid bound.

    Returns
    -------
    ndarray of bool, shape (n,)
        False where it is not certain.

    Notes
    -----
    Delta is linear in the distribution, hence in its transform (docs/research/proofs, section 6,
    step 6).
    """
    if not similar.rounds or similar.infinite >= delta:
        return np.zeros(len(times), dtype=bool)
    goal = -math.log(delta)
    tilt = similar.tilt(lambda tilt, log_moment: (log_moment + goal) / tilt)
    step, first, size, _ = similar.lattice(tilt)
    losses = step * np.arange(first, first + size)
    if losses[0] > epsilon:
        return np.zeros(len(times), dtype=bool)
    gain = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    gain *= np.exp(np.minimum(-tilt * (losses - epsilon), 700.0))
    # Parseval: the mean of `gain` is an inner product of transforms. Of a real one half is enough:
    # its inner frequencies count twice.
    weights = np.fft.rfft(np.roll(gain, first % size)).conj() / size
    weights[1 : (size + 1) // 2] *= 2.0
    spectra = np.array([pair.log_spectrum(step, size, tilt) for pair in pairs])

    def inside_of(some: FloatArray) -> FloatArray:
        kept = (some @ spectra.real).max(axis=0) > VANISHING
        result: FloatArray = np.sum((np.exp(some @ spectra[:, kept]) * weights[kept]).real, axis=1)
        return result

    # Many compositions and frequencies would fill the memory together.
    at_once = max(1, LATTICE_MAX_CELLS // weights.size)
    parts = np.split(times, range(at_once, len(times), at_once))
    inside = np.concatenate([inside_of(part) for part in parts])
    lost = np.array([mass_roundoff(size, each) for each in times.sum(axis=1).tolist()])
    total = np.maximum(inside, 0.0) + lost * float(np.sum(gain))
    moments = np.array([pair.moments(tilt, step)[0] for pair in pairs])
    total *= np.exp(np.minimum(times @ moments - tilt * epsilon, 700.0)) * ROUND_UP
    # Any of these rounds may reach beyond the window, however short the similar ones are.
    reach = times @ np.array([math.floor(pair.losses[-1] / step) + 1.0 for pair in pairs])
    if first + size <= float(reach.max(initial=0.0)):
        rates = tilt + markov_rates(math.sqrt(similar.variance))
        rates = rates[rates * max(float(pair.losses[-1]) for pair in pairs) < 690.0]
        above = np.array([pair.log_moments(rates, step) for pair in pairs])
        outside = np.min(times @ above - rates * step * (first + size), axis=1)
        total += np.exp(np.minimum(outside, 0.0))
    infinite = np.array([math.log1p(-min(pair.infinite, 1.0 - 1e-16)) for pair in pairs])
    return np.asarray(total - np.expm1(times @ infinite) <= delta)


def _spread(pair: DominatingPair) -> float:
    """Return the standard deviation of one round's losses, unless rare large ones decide it."""
    sd = math.sqrt(pair.moments(0.0)[2])
    # For normal losses delta at epsilon 0 is about sd / sqrt(2 pi).
    return min(sd, max(2.51 * pair.delta(0.0), LATTICE_LEAST_SPREAD * sd))


def mass_roundoff(size: int, rounds: float) -> float:
    """Return a round-off that no mass of a tilted distribution exceeds.

    The distribution is that of `rounds` rounds, on `size` losses.
    """
    return 8.0 * UNIT * (math.log2(size) * (1.0 + rounds) + 8.0)
