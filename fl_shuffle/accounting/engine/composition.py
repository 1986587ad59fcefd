"""Many rounds: dominating pairs built from one-round curves, composed exactly on a lattice.

A pair (P, Q) dominates a mechanism if its hockey-stick divergence is at least the mechanism's at
every e^eps, negative eps included. Products of dominating pairs dominate adaptive compositions
(Zhu, Dong, Wang 2022, Theorem 10), provided that every round's curve holds whatever the earlier
rounds released. Here P and Q live on finitely many privacy losses ("connect the dots", Doroshenko,
Ghazi, Kamath, Kumar, Manurangsi 2022), so a composition is a convolution.

Every rounding raises the result: interpolation (convexity), the lattice (mean-preserving splits of
likelihood ratios), aliasing, a Chernoff bound for what leaves the window at the top (and, where
epsilon lies below the window, at the bottom), and a bound on the round-off of the Fourier
transforms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair, trade_off_from_profile
from fl_shuffle.accounting.engine.tilted_moments import UNIT
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.limits import MAX_COMPOSED
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, require_integer, require_open_unit, require_real

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]


class Composition:
    """The composed law of several rounds of one client: (eps, delta), profile, trade-off curve.

    `parts` lists (pair, times). All numbers are upper bounds on delta, or epsilon rounded up.
    """

    def __init__(self, parts: Sequence[tuple[DominatingPair, int]]) -> None:
        self._parts = [
            (pair, require_integer("times", times, minimum=0, maximum=MAX_COMPOSED))
            for pair, times in parts
            if times != 0
        ]
        self.rounds = sum(times for _, times in self._parts)
        log_finite = 0.0
        for pair, times in self._parts:
            log_finite += times * math.log1p(-min(pair.infinite, 1.0 - 1e-16))
        self.infinite = -math.expm1(log_finite)
        spreads = [_spread(pair) ** 2 for pair, _ in self._parts if pair.moments(0.0)[2] > 0.0]
        self._variance = self._moments(0.0)[2]
        self._sd = math.sqrt(self._variance)
        if spreads:
            # The finest part decides, unless it hardly matters for the whole.
            typical = math.sqrt(min(v for v in spreads if v >= 1e-4 * max(spreads)))
            grids = {pair.grid for pair, _ in self._parts}
            common = grids.pop() if len(grids) == 1 else 0.0
            finest = typical / TOLERANCES.lattice_cells_per_sd
            self._step = common if 0.0 < common <= finest else 2.0 ** math.floor(math.log2(finest))
        largest = max((float(pair.losses[-1]) for pair, _ in self._parts), default=0.0)
        self._largest = max(largest, 1e-300)
        self._laws: dict[float, tuple[FloatArray, FloatArray, float]] = {}

    def _best_tilt(self, objective: Callable[[float, float], float], near: float) -> float:
        """The rung of the ladder that minimises objective(tilt, log moment), which is unimodal; it
        is looked for from `near` deviations on.

        Any tilt gives a valid bound: it decides where the window lies and how round-off is spread.
        """

        def value(rung: int) -> float:
            tilt = TOLERANCES.tilt_ladder**rung
            if tilt * self._largest > TOLERANCES.lattice_max_loss:
                return math.inf
            return objective(tilt, self._moments(tilt)[0])

        rung = math.ceil(math.log(near / self._sd) / math.log(TOLERANCES.tilt_ladder))
        last = math.floor(
            math.log(TOLERANCES.lattice_max_loss / self._largest) / math.log(TOLERANCES.tilt_ladder)
        )
        rung = min(rung, last)
        lowest = rung - TOLERANCES.tilt_ladder_down
        found = value(rung)
        while rung > lowest and (lower := value(rung - 1)) <= found:
            rung, found = rung - 1, lower
        while (higher := value(rung + 1)) < found:
            rung, found = rung + 1, higher
        return TOLERANCES.tilt_ladder**rung

    def _window(self, tilt: float) -> tuple[float, int]:
        """Lattice step and size: wide enough for the tilted and the plain sum."""
        log_moment, mean, variance = self._moments(tilt)
        width = (
            TOLERANCES.lattice_window_sds * max(self._sd, math.sqrt(variance)) + 4.0 * self._step
        )
        size = 1 << max(9, math.ceil(math.log2(width / self._step)))
        size = min(size, 1 << max(9, (2 * self._furthest(self._step)).bit_length()))
        if size > TOLERANCES.lattice_max_cells:
            return self._step * 2.0 ** math.ceil(
                math.log2(size / TOLERANCES.lattice_max_cells)
            ), TOLERANCES.lattice_max_cells
        # Few rounds with rare large losses reach further: about delta, where this tilt is the best.
        matters = TOLERANCES.lattice_missed_share * math.exp(min(log_moment - tilt * mean, 0.0))
        matters *= min(1.0, self._sd)
        while (
            size < TOLERANCES.lattice_max_cells
            and self._above(tilt, self._step, self._first(tilt, self._step, size) + size) > matters
        ):
            size *= 2
        return self._step, size

    def _furthest(self, step: float) -> int:
        """No sum of losses lies beyond this lattice point, or below its mirror image."""
        return sum(times * (math.floor(pair.losses[-1] / step) + 1) for pair, times in self._parts)

    def _first(self, tilt: float, step: float, size: int) -> int:
        """Index of a window's first loss: all losses fit, or its middle is the tilted mean."""
        furthest = self._furthest(step)
        if size > 2 * furthest:
            return -furthest
        return math.floor(self._moments(tilt)[1] / step) - size // 2

    def _above(self, tilt: float, step: float, end: int) -> float:
        """A bound on the mass from lattice point `end` on."""
        if end > self._furthest(step):
            return 0.0
        return self._beyond(step, end * step, [tilt + rate for rate in self._markov_rates()])

    def _law(self, tilt: float) -> tuple[FloatArray, FloatArray, float]:
        """(losses, upper bounds on P's masses there, mass that may lie above the window)."""
        if tilt not in self._laws:
            step, size = self._window(tilt)
            exponent, log_scale = self._log_transform(step, size, tilt)
            law = np.fft.irfft(np.exp(exponent), n=size)
            first = self._first(tilt, step, size)
            index = np.arange(first, first + size)
            law = np.roll(law, -(first % size))
            losses = index.astype(np.float64) * step
            weights = np.exp(np.minimum(log_scale - tilt * losses, 700.0))
            masses: FloatArray = (np.maximum(law, 0.0) + mass_roundoff(size, self.rounds)) * weights
            self._laws[tilt] = (losses, masses, self._above(tilt, step, first + size))
        return self._laws[tilt]

    def frame(self, delta: float) -> tuple[float, float, int, int]:
        """With what `epsilon` is worked out: tilt, the lattice's step, size and first index."""
        tilt = self._tilt_for(-math.log(delta))
        step, size = self._window(tilt)
        return tilt, step, size, self._first(tilt, step, size)

    def _tilt_for(self, goal: float) -> float:
        """Markov's inequality at each tilt gives an epsilon; that of the best is near the
        answer."""
        return self._best_tilt(
            lambda tilt, log_moment: (log_moment + goal) / tilt, math.sqrt(2.0 * goal)
        )

    def _log_transform(self, step: float, size: int, tilt: float) -> tuple[ComplexArray, float]:
        """Logs of the tilted, normalised law's Fourier transform, and of what it was scaled by."""
        exponent = np.zeros(size // 2 + 1, dtype=np.complex128)
        log_scale = 0.0
        for pair, times in self._parts:
            exponent += times * pair.log_spectrum(step, size, tilt)
            log_scale += times * pair.lattice_log_moment(step, tilt)
        return exponent, log_scale

    def _markov_rates(self) -> list[float]:
        lowest, highest = (
            math.floor(math.log(rate / self._sd) / math.log(TOLERANCES.markov_ladder))
            for rate in TOLERANCES.markov_range
        )
        return [TOLERANCES.markov_ladder**rung for rung in range(lowest, highest + 1)]

    def _beyond(self, step: float, edge: float, rates: Iterable[float]) -> float:
        """Markov's bound on P's mass at or beyond `edge`: above it, or below for rates < 0."""
        smallest = 0.0
        for rate in rates:
            smallest = min(smallest, self._lattice_moment(step, rate) - rate * edge)
        return math.exp(smallest)

    def _moments(self, tilt: float) -> tuple[float, float, float]:
        """log moment, mean and variance of the sum of the tilted privacy losses."""
        moments = [(times, *pair.moments(tilt)) for pair, times in self._parts]
        return (
            math.fsum(times * log_moment for times, log_moment, _, _ in moments),
            math.fsum(times * mean for times, _, mean, _ in moments),
            math.fsum(times * variance for times, _, _, variance in moments),
        )

    def _lattice_moment(self, step: float, tilt: float) -> float:
        """log E e^(tilt loss) of the sum on the lattice; infinite if it would overflow."""
        if abs(tilt) * self._largest > 690.0:
            return math.inf
        return math.fsum(times * pair.lattice_log_moment(step, tilt) for pair, times in self._parts)

    def delta(self, epsilon: float) -> float:
        """Upper bound on the composed divergence at `epsilon` >= 0."""
        budget = require_real("epsilon", epsilon, minimum=0.0)
        if self._variance == 0.0:
            return min(1.0, self.infinite)
        tilt = self._best_tilt(lambda tilt, log_moment: log_moment - tilt * budget, 0.3)
        best = self._delta_at(budget, tilt)
        if self._law(tilt)[0][0] > budget:
            best = min(best, self._delta_at(budget, 0.0))
        if best < TOLERANCES.tilt_far_below * math.exp(self._moments(tilt)[0] - tilt * budget):
            best = min(best, *(self._delta_at(budget, lower) for lower in _below(tilt)))
        return best

    def _delta_at(self, budget: float, tilt: float) -> float:
        losses, masses, above = self._law(tilt)
        gain = np.where(losses > budget, -np.expm1(np.minimum(budget - losses, 0.0)), 0.0)
        total, first = float(masses @ gain) + above, float(losses[0])
        if first > budget:
            # What lies below the window wraps to its top, where a tilted law weighs it too lightly.
            step = float(losses[1] - losses[0])
            total += self._beyond(step, first - step, [-rate for rate in self._markov_rates()])
        return min(1.0, total * TOLERANCES.lattice_safety + self.infinite)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 on this composition at `delta`, rounded up; may be infinite."""
        target = require_open_unit("delta", delta)
        if self.infinite >= target:
            return math.inf
        if self._variance == 0.0:
            return 0.0
        goal = -math.log(target)
        tilt = self._tilt_for(goal)
        found = self._epsilon_at(target, tilt)
        markov = (self._moments(tilt)[0] + goal) / tilt
        if markov / TOLERANCES.tilt_far_off <= found < markov:
            return found
        # Losses far from what is usual decide: round-off, or the window, may have spoilt this tilt.
        lower = (
            self._epsilon_at(target, tilt / TOLERANCES.tilt_ladder**rung) for rung in (1, 2, 3)
        )
        return min(found, *lower)

    def _epsilon_at(self, target: float, tilt: float) -> float:
        # The law repeats beyond its window, so that nothing above it is missing here.
        allowed = (target - self.infinite) / TOLERANCES.lattice_safety
        if allowed <= 0.0:
            return math.inf
        tails, goal = self._tails(tilt), math.log(allowed)
        step, bad, last = tails.step, max(tails.first, 0), max(tails.last, tails.first + 1, 1)
        if tails.logs(bad)[0] <= goal:
            return bad * step
        # Markov's inequality, sharpened as for normal losses: about where the answer is.
        log_moment, _, variance = self._moments(tilt)
        sharper = math.log(max(1.0, tilt * (1.0 + tilt) * math.sqrt(2.0 * math.pi * variance)))
        guess = math.ceil((log_moment - math.log(target) - sharper) / (tilt * step))
        good, values, turns = last, None, 0
        at = min(max(guess, bad + 1), last)
        while good > bad:
            found = tails.logs(at)
            if found[0] > goal:
                bad = at
            else:
                good, values = at, found
            if good - bad <= 1:
                break
            # Newton's method: a step further out what is gained falls by step times what is
            # discounted. Halved now and then, so that it ends whatever the law.
            turns, fall = turns + 1, step * math.exp(found[1] - found[0])
            halved = turns % 6 == 0 or fall < 1e-300
            middle = (good + bad) // 2 if halved else at + round((found[0] - goal) / fall)
            at = min(max(middle, bad + 1), good - 1)
        gained, discounted = values or tails.logs(last)
        if gained > goal:
            return math.inf
        # At eps between losses j - 1 and j only what lies from j on counts: A_j - e^(eps - loss j)
        # B_j, with A and B the masses above, plain and discounted, and A - B what is gained.
        share = 1.0 - (allowed - math.exp(gained)) / math.exp(discounted)
        exact = step * good + (math.log(share) if share > 0.0 else -step)
        return min(max(exact, step * (good - 1)), step * good) * TOLERANCES.lattice_safety

    def _tails(self, tilt: float) -> Tails:
        step, size = self._window(tilt)
        exponent, log_scale = self._log_transform(step, size, tilt)
        first, roundoff = self._first(tilt, step, size), mass_roundoff(size, self.rounds)
        return Tails.of(exponent, log_scale, step, size, tilt, first, roundoff)

    def profile(self, epsilons: ArrayLike) -> FloatArray:
        """delta at each of `epsilons` (>= 0, any order)."""
        values = np.asarray(epsilons, dtype=np.float64).ravel()
        return np.array([self.delta(float(value)) for value in values])

    def trade_off(self, type_one: ArrayLike) -> FloatArray:
        """Lower bound on an attacker's type II error at each type I error (f-DP, Dong et al. 2022).

        f(a) = max over eps of max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a)).
        """
        errors = np.asarray(type_one, dtype=np.float64).ravel()
        if not np.all((errors >= 0.0) & (errors <= 1.0)):
            raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
        grid = np.linspace(0.0, max(gaussian_epsilon(1e-9, max(self._sd, 1e-12)), 1e-9), 200)
        return trade_off_from_profile(errors, grid, self.profile(grid))


def _below(tilt: float) -> list[float]:
    """Tilts to try, too, where losses far from what is usual decide: round-off, or a window that is
    too small, may spoil the one that Markov's inequality likes best."""
    return [tilt / TOLERANCES.tilt_ladder**rung for rung in (1, 2, 3)]


def _spread(pair: DominatingPair) -> float:
    """The standard deviation of one round's losses, unless rare large ones decide it."""
    sd = math.sqrt(pair.moments(0.0)[2])
    # For normal losses delta at epsilon 0 is about sd / sqrt(2 pi).
    return min(sd, max(2.51 * pair.delta(0.0), TOLERANCES.lattice_least_spread * sd))


def mass_roundoff(size: int, rounds: float) -> float:
    """No mass of a tilted law of `rounds` rounds on `size` losses is off by more."""
    return 8.0 * UNIT * (math.log2(size) * (1.0 + rounds) + 8.0)


@dataclass(frozen=True)
class Tails:
    """Sums over the upper tail of a law on multiples of `step`, from its Fourier transform.

    The tilted law repeats every `size` steps, its mass at loss l weighs e^-(tilt l) times the
    scale, so that a tail is a geometric series for each frequency:

        sum over j >= J of e^(-tilt j step) e^(2 pi i j k / size) = rho^J / (1 - rho).

    Repetitions only add. Frequencies at which the transform is negligible are left out: with
    the round-off of what is summed they are less than what `roundoff` allows each mass. As the law
    spreads over more rounds fewer and fewer frequencies are left, whatever the step.
    """

    step: float
    size: int
    first: int
    last: int
    frequencies: NDArray[np.int64]
    gained: ComplexArray
    discounted: ComplexArray
    log_scale: float
    slope: float
    lost: tuple[float, float]
    """What round-off may hide of `gained` and `discounted`."""

    @classmethod
    def of(
        cls,
        log_transform: ComplexArray,
        log_scale: float,
        step: float,
        size: int,
        tilt: float,
        first: int,
        roundoff: float,
    ) -> Tails:
        """Of the law with this transform, tilted by `tilt` > 0; the window begins at `first`."""
        heard = np.flatnonzero(log_transform.real > TOLERANCES.lattice_log_negligible)
        twice = np.where((heard == 0) | (2 * heard == size), 1.0, 2.0) / size
        terms = twice * np.exp(log_transform[heard])
        turn = 2j * math.pi / size * heard - tilt * step
        # 1 - rho, and 1 - rho e^-step; their inverses differ by rho (1 - e^-step) over both.
        plain, aged = -np.expm1(turn), -np.expm1(turn - step)
        gain = np.exp(turn) * -math.expm1(-step) / (plain * aged)
        alone = -math.expm1(-tilt * step), -math.expm1(-(tilt + 1.0) * step)
        hidden = math.exp(-tilt * step) * -math.expm1(-step) / (alone[0] * alone[1])
        return cls(
            step,
            size,
            first,
            first + size - 1,
            heard,
            terms * gain,
            terms / aged,
            log_scale,
            tilt * step,
            (roundoff * hidden, roundoff / alone[1]),
        )

    def logs(self, index: int) -> tuple[float, float]:
        """Logs of what is gained and what is discounted, rounded up: the sums over j >= index of
        (1 - e^-((j - index) step)) masses[j] and of e^-((j - index) step) masses[j]."""
        angles = self.angles(index)
        turned = np.cos(angles), np.sin(angles)
        return (
            self._log(self.gained, turned, index, self.lost[0]),
            self._log(self.discounted, turned, index, self.lost[1]),
        )

    def angles(self, index: int) -> FloatArray:
        """By what the frequencies turn up to lattice point `index`."""
        turns = (self.frequencies * index % self.size).astype(np.float64)
        return turns * (2.0 * math.pi / self.size)

    def _log(
        self, terms: ComplexArray, turned: tuple[FloatArray, FloatArray], index: int, lost: float
    ) -> float:
        # Summed up in pairs: the round-off of a scalar product could grow with its length.
        total = float(np.sum(terms.real * turned[0] - terms.imag * turned[1]))
        return self.log_scale - self.slope * index + math.log(max(total, 0.0) + lost)
