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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle.accounting.gaussian import gaussian_epsilon
from fl_shuffle.errors import InvalidValueError, require_integer, require_real

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

CELLS_PER_SD = 12.0
"""The lattice is at least this many times finer than one round's spread of the privacy loss."""
WINDOW_SDS = 20.0
MAX_LATTICE = 1 << 20
TILT_LADDER = 1.25
LADDER_DOWN = 40
MARKOV_LADDER = 2.0
MARKOV_RANGE = 0.003, 30.0
"""Rates of Markov's inequality, in units of 1 / sd, tried for what lies outside the window.

They are powers of the ladder, so that their moments are computed once for many rounds.
"""
RARE = 1e-60
UNIT = 2.0**-53
MAX_LOSS = 600.0
SAFETY = 1.0 + 1e-9
MAX_ROUNDS = 10**9


@dataclass(frozen=True, eq=False)
class DominatingPair:
    """A symmetric pair of laws through its privacy loss under P: atoms and a mass at infinity.

    `losses` increase and are symmetric about zero; `masses` are P's; Q's mass at loss l is e^-l
    times P's, and equals P's mass at -l. `infinite` is P's mass where Q has none.
    """

    losses: FloatArray
    masses: FloatArray
    infinite: float
    grid: float = 0.0
    """A step whose multiples all losses are, where one is known: no need to round them."""
    _spectra: dict[tuple[float, int, float], ComplexArray] = field(default_factory=dict, repr=False)
    _lattices: dict[float, tuple[NDArray[np.int64], FloatArray]] = field(
        default_factory=dict, repr=False
    )
    _lattice_moments: dict[tuple[float, float], float] = field(default_factory=dict, repr=False)
    _moments: dict[float, tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_curve(
        cls, epsilons: ArrayLike, deltas: ArrayLike, *, grid: float = 0.0
    ) -> DominatingPair:
        """The least pair that dominates every mechanism whose curve is at most `deltas`.

        `epsilons` increase from 0 and `deltas` are upper bounds there, valid in *both* directions
        (data set D against D' and D' against D). Then u(-eps) = 1 - e^-eps + e^-eps u(eps) bounds
        the curve at negative eps. The true curve is convex in e^eps and below u at the nodes, hence
        below the lower convex envelope of the nodes and below the chords between them.

        `grid` may name a step of which all `epsilons` are multiples.

        Raises `InvalidValueError` unless `epsilons` starts at 0, increases, stays below 600, and
        `deltas` lie in [0, 1].
        """
        eps = np.asarray(epsilons, dtype=np.float64).ravel()
        u = np.asarray(deltas, dtype=np.float64).ravel()
        if eps.size == 0 or eps.size != u.size:
            raise InvalidValueError("deltas", u.size, f"needs one value per epsilon ({eps.size})")
        if not (eps[0] == 0.0 and np.all(np.diff(eps) > 0.0) and eps[-1] <= MAX_LOSS):
            raise InvalidValueError("epsilons", eps.tolist(), "must increase from 0 to at most 600")
        if not np.all((u >= 0.0) & (u <= 1.0)):
            raise InvalidValueError("deltas", u.tolist(), "must lie in [0, 1]")
        u = np.minimum.accumulate(u)
        kept = _envelope(eps, u)
        eps, u = eps[kept], u[kept]
        # Kinks of the piecewise linear curve carry the mass: p_i = alpha_i (s_i - s_{i-1}), with
        # s_i the slope in alpha = e^eps after node i, and slope 0 after the last.
        positive = eps[eps > 0.0]
        if positive.size == 0:
            return cls(np.zeros(1), np.array([1.0 - u[-1]]), float(u[-1]), grid)
        if eps[0] > 0.0:
            # Zero is not a vertex: the chord joins the two mirror images of the first vertex.
            mirrored = -math.expm1(-eps[0]) + math.exp(-eps[0]) * u[0]
            before = (u[0] - mirrored) / -math.expm1(-2.0 * eps[0])
            steps = np.concatenate([[before], np.diff(u) / -np.expm1(-np.diff(eps))])
            forward = np.diff(u) / np.expm1(np.diff(eps))
        else:
            steps = np.diff(u) / -np.expm1(-np.diff(eps))
            forward = (np.diff(u) / np.expm1(np.diff(eps)))[1:]
        masses = np.maximum(np.append(forward, 0.0) - steps, 0.0)
        mirror = masses * np.exp(-positive)
        centre = max(0.0, 1.0 - float(u[-1]) - float(np.sum(masses)) - float(np.sum(mirror)))
        # Atoms too small to matter become certain loss (P's mass where Q has none): large losses
        # would only narrow the choice of tilts.
        rare = masses < RARE
        certain = float(u[-1]) + float(np.sum(masses[rare])) + float(np.sum(mirror[rare]))
        positive, masses, mirror = positive[~rare], masses[~rare], mirror[~rare]
        return cls(
            np.concatenate([-positive[::-1], [0.0], positive]),
            np.concatenate([mirror[::-1], [centre], masses]),
            certain,
            grid,
        )

    def delta(self, epsilon: float) -> float:
        """The pair's own hockey-stick divergence at `epsilon`."""
        gain = np.where(self.losses > epsilon, -np.expm1(epsilon - self.losses), 0.0)
        return min(1.0, float(self.masses @ gain) + self.infinite)

    def moments(self, tilt: float) -> tuple[float, float, float]:
        """log E e^(tilt loss), and mean and variance of the loss tilted so; finite part; cached."""
        if tilt not in self._moments:
            with np.errstate(divide="ignore"):
                exponent = np.log(self.masses) + tilt * self.losses
            top = float(np.max(exponent))
            weights = np.exp(exponent - top)
            total = float(np.sum(weights))
            mean = float(weights @ self.losses) / total
            variance = float(weights @ (self.losses - mean) ** 2) / total
            self._moments[tilt] = top + math.log(total), mean, variance
        return self._moments[tilt]

    def log_spectrum(self, step: float, size: int, tilt: float) -> ComplexArray:
        """log of the Fourier transform of the tilted, normalised lattice law; cached."""
        key = (step, size, tilt)
        if key not in self._spectra:
            index, exponent = self._tilted(step, tilt)
            weights = np.exp(exponent - self.lattice_log_moment(step, tilt))
            transform = np.fft.rfft(np.bincount(np.mod(index, size), weights, minlength=size))
            modulus = np.maximum(np.abs(transform), 1e-300)
            self._spectra[key] = np.log(modulus) + 1j * np.angle(transform)
        return self._spectra[key]

    def lattice_log_moment(self, step: float, tilt: float) -> float:
        """log of the sum of lattice masses times e^(tilt loss); cached."""
        key = (step, tilt)
        if key not in self._lattice_moments:
            exponent = self._tilted(step, tilt)[1]
            top = float(np.max(exponent))
            total = top + math.log(float(np.sum(np.exp(exponent - top))))
            self._lattice_moments[key] = total
        return self._lattice_moments[key]

    def _tilted(self, step: float, tilt: float) -> tuple[NDArray[np.int64], FloatArray]:
        """Lattice indices and the logarithms of mass times e^(tilt loss) there."""
        if step not in self._lattices:
            self._lattices[step] = self._on_lattice(step)
        index, mass = self._lattices[step]
        with np.errstate(divide="ignore"):
            return index, np.log(mass) + tilt * step * index

    def _on_lattice(self, step: float) -> tuple[NDArray[np.int64], FloatArray]:
        """Split every atom between its lattice neighbours, keeping both P's and Q's mass."""
        below = np.floor(self.losses / step)
        rest = np.clip(self.losses - below * step, 0.0, step)
        share_of_q = np.expm1(rest - step) / math.expm1(-step)
        low = self.masses * share_of_q * np.exp(-rest)
        index = np.concatenate([below, below + 1.0]).astype(np.int64)
        return index, np.concatenate([low, np.maximum(self.masses - low, 0.0)])


def _envelope(eps: FloatArray, u: FloatArray) -> NDArray[np.int64]:
    """Indices of the vertices (eps >= 0) of the lower convex envelope of the mirrored curve."""
    alpha = np.concatenate([[0.0], np.exp(-eps[:0:-1]), np.exp(eps)])
    left = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * u[:0:-1]
    height = np.concatenate([[1.0], left, u])
    centre = eps.size
    hull: list[int] = []
    x, y = alpha.tolist(), height.tolist()
    for point in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            before = (y[b] - y[a]) / (x[b] - x[a])
            after = (y[point] - y[b]) / (x[point] - x[b])
            if after > before:
                break
            hull.pop()
        hull.append(point)
    return np.array([index - centre for index in hull if index >= centre], dtype=np.int64)


class Composition:
    """The composed law of several rounds of one client: (eps, delta), profile, trade-off curve.

    `parts` lists (pair, times). All numbers are upper bounds on delta, or epsilon rounded up.
    """

    def __init__(self, parts: Sequence[tuple[DominatingPair, int]]) -> None:
        self._parts = [
            (pair, require_integer("times", times, minimum=0, maximum=MAX_ROUNDS))
            for pair, times in parts
            if times != 0
        ]
        self.rounds = sum(times for _, times in self._parts)
        log_finite = 0.0
        for pair, times in self._parts:
            log_finite += times * math.log1p(-min(pair.infinite, 1.0 - 1e-16))
        self.infinite = -math.expm1(log_finite)
        spreads = [pair.moments(0.0)[2] for pair, _ in self._parts]
        spreads = [value for value in spreads if value > 0.0]
        self._variance = self._moments(0.0)[2]
        self._sd = math.sqrt(self._variance)
        if spreads:
            # The finest part decides, unless it hardly matters for the whole.
            typical = math.sqrt(min(v for v in spreads if v >= 1e-4 * max(spreads)))
            grids = {pair.grid for pair, _ in self._parts}
            common = grids.pop() if len(grids) == 1 else 0.0
            finest = typical / CELLS_PER_SD
            self._step = common if 0.0 < common <= finest else 2.0 ** math.floor(math.log2(finest))
        largest = max((float(pair.losses[-1]) for pair, _ in self._parts), default=0.0)
        self._largest = max(largest, 1e-300)
        self._laws: dict[float, tuple[FloatArray, FloatArray, float]] = {}

    def _best_tilt(self, objective: Callable[[float, float], float]) -> float:
        """The rung of the ladder that minimises objective(tilt, log moment), which is unimodal.

        Any tilt gives a valid bound: it decides where the window lies and how round-off is spread.
        """

        def value(rung: int) -> float:
            tilt = TILT_LADDER**rung
            if tilt * self._largest > MAX_LOSS:
                return math.inf
            return objective(tilt, self._moments(tilt)[0])

        rung = math.ceil(math.log(0.3 / self._sd) / math.log(TILT_LADDER))
        last = math.floor(math.log(MAX_LOSS / self._largest) / math.log(TILT_LADDER))
        rung = min(rung, last)
        lowest = rung - LADDER_DOWN
        found = value(rung)
        while rung > lowest and (lower := value(rung - 1)) <= found:
            rung, found = rung - 1, lower
        while (higher := value(rung + 1)) < found:
            rung, found = rung + 1, higher
        return TILT_LADDER**rung

    def _window(self, tilt: float) -> tuple[float, int]:
        """Lattice step and size: wide enough for the tilted and the plain sum."""
        width = WINDOW_SDS * max(self._sd, math.sqrt(self._moments(tilt)[2])) + 4.0 * self._step
        size = 1 << max(9, math.ceil(math.log2(width / self._step)))
        if size <= MAX_LATTICE:
            return self._step, size
        return self._step * 2.0 ** math.ceil(math.log2(size / MAX_LATTICE)), MAX_LATTICE

    def _law(self, tilt: float) -> tuple[FloatArray, FloatArray, float]:
        """(losses, upper bounds on P's masses there, mass that may lie above the window)."""
        if tilt not in self._laws:
            step, size = self._window(tilt)
            exponent = np.zeros(size // 2 + 1, dtype=np.complex128)
            log_scale = 0.0
            for pair, times in self._parts:
                exponent += times * pair.log_spectrum(step, size, tilt)
                log_scale += times * pair.lattice_log_moment(step, tilt)
            law = np.fft.irfft(np.exp(exponent), n=size)
            first = math.floor(self._moments(tilt)[1] / step) - size // 2
            index = np.arange(first, first + size)
            law = np.take(law, np.mod(index, size))
            roundoff = 8.0 * UNIT * math.log2(size) * (1.0 + self.rounds)
            losses = index.astype(np.float64) * step
            weights = np.exp(np.minimum(log_scale - tilt * losses, 700.0))
            masses: FloatArray = (np.maximum(law, 0.0) + roundoff) * weights
            end = float(losses[-1]) + step
            above = self._beyond(step, end, [tilt + rate for rate in self._markov_rates()])
            self._laws[tilt] = (losses, masses, above)
        return self._laws[tilt]

    def _markov_rates(self) -> list[float]:
        lowest, highest = (
            math.floor(math.log(rate / self._sd) / math.log(MARKOV_LADDER)) for rate in MARKOV_RANGE
        )
        return [MARKOV_LADDER**rung for rung in range(lowest, highest + 1)]

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
        tilt = self._best_tilt(lambda tilt, log_moment: log_moment - tilt * budget)
        best = self._delta_at(budget, tilt)
        if self._law(tilt)[0][0] > budget:
            best = min(best, self._delta_at(budget, 0.0))
        return best

    def _delta_at(self, budget: float, tilt: float) -> float:
        losses, masses, above = self._law(tilt)
        gain = np.where(losses > budget, -np.expm1(np.minimum(budget - losses, 0.0)), 0.0)
        total = float(masses @ gain) + above
        first = float(losses[0])
        if first > budget:
            # What lies below the window wraps to its top, where a tilted law weighs it too lightly.
            step = float(losses[1] - losses[0])
            total += self._beyond(step, first - step, [-rate for rate in self._markov_rates()])
        return min(1.0, total * SAFETY + self.infinite)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 on this composition at `delta`, rounded up; may be infinite."""
        target = require_real(
            "delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
        )
        if self.infinite >= target:
            return math.inf
        if self._variance == 0.0:
            return 0.0
        # Markov's inequality at each tilt gives an epsilon; the best of them is near the answer.
        goal = -math.log(target)
        tilt = self._best_tilt(lambda tilt, log_moment: (log_moment + goal) / tilt)
        return min(self._epsilon_at(target, tilt), self._epsilon_at(target, tilt / TILT_LADDER**2))

    def _epsilon_at(self, target: float, tilt: float) -> float:
        losses, masses, above = self._law(tilt)
        allowed = (target - self.infinite) / SAFETY - above
        if allowed <= 0.0:
            return math.inf
        # At eps between losses j - 1 and j only what lies from j on counts: A_j - e^(eps - loss j)
        # B_j, with A and B the masses above, plain and discounted. D = A - B is summed up from
        # positive parts: as a difference it would drown where round-off leaves huge masses below.
        step = float(losses[1] - losses[0])
        with np.errstate(over="ignore"):  # infinite masses far below the answer: no candidates
            discounted = _discounted_tails(masses, step)
            gained = np.zeros_like(discounted)
            gained[:-1] = np.cumsum(-math.expm1(-step) * discounted[:0:-1])[::-1]
        good = np.flatnonzero(gained <= allowed)
        if good.size == 0:
            return math.inf
        j = int(good[0])
        if j == 0 or losses[j] <= 0.0:
            return max(0.0, float(losses[j]))
        share = 1.0 - (allowed - gained[j]) / discounted[j] if discounted[j] > 0.0 else 0.0
        exact = losses[j] + math.log(share) if share > 0.0 else losses[j - 1]
        return max(0.0, float(min(max(exact, losses[j - 1]), losses[j]))) * SAFETY

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


def _discounted_tails(masses: FloatArray, step: float) -> FloatArray:
    """sum over k >= j of e^(-(k - j) step) masses[k], for every j; sums of positive terms only."""
    tails = np.empty_like(masses)
    carried = 0.0
    # Pieces short enough that no weight over- or underflows, from the far end.
    length = max(1, int(300.0 / step))
    for end in range(masses.size, 0, -length):
        piece = slice(max(0, end - length), end)
        ages = step * np.arange(end - piece.start, dtype=np.float64)
        summed = np.cumsum((masses[piece] * np.exp(-ages))[::-1])[::-1] * np.exp(ages)
        tails[piece] = summed + carried * np.exp(ages - (ages[-1] + step))
        carried = float(tails[piece.start])
    return tails


def trade_off_from_profile(
    type_one: FloatArray, epsilons: FloatArray, deltas: FloatArray
) -> FloatArray:
    """The trade-off curve implied by finitely many (epsilon, delta) statements."""
    a = type_one[:, None]
    growth = np.exp(epsilons)[None, :]
    rest = (1.0 - deltas)[None, :]
    lines = np.maximum(rest - growth * a, (rest - a) / growth)
    result: FloatArray = np.maximum(np.max(lines, axis=1), 0.0)
    return result
