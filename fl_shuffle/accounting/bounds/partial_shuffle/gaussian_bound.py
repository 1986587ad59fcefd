"""delta(epsilon) of Gaussian reports by the Gram order (docs/proofs.md, section 12, Theorem 2).

    delta <= (1/m) sum_g n_g max over boxes B of [ S D_B/(N s_g) + kappa_B ] + (A) + (B) + (C),
    D_B = sum_i p_gi D'(B; x_i),   S = e^(theta beta) prod_g s_g^(n_g/N),   any s_g > 0.

Every free parameter (the cut K, the swap's constants, the line, the boxes) is chosen here; every
choice gives a bound, and what was chosen is paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfcx

from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import Grid, Nodes, law
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    LAMBDA,
    Swap,
    choose_swap,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gram import (
    Cover,
    cover,
    second_moment,
    worst_variance,
)
from fl_shuffle.accounting.bounds.partial_shuffle.line import Line, Transform, bulk
from fl_shuffle.accounting.bounds.partial_shuffle.worst_box import worst_box
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_OFF, ROUND_UP

TOLERANCE = 0.006
"""Boxes may say this much more of the variance than the largest value found, relatively ..."""
MOST_TOLERANCE = 0.1
"""... but not more of delta than this."""
SMALL_DELTA, SMALL_TOLERANCE = 1e-8, 0.3
"""Where delta is about as small as this it is not asked for more closely than that."""
PASSES = 3
"""Costs are chosen for a goal, and again for what was found, if it lies outside ..."""
NEAR_GOAL = 0.3, 4.0
"""... this range of the goal."""
AS_GUESSED = 2.0
"""A bound of at most this many times the first guess needs no further trials. A larger one comes
from poor constants: the goal is set again from what was found, so it confirms itself."""
GOALS = 1.0, 8.0, 64.0, 512.0
"""With few others a small cost cannot be had: a larger one still gives a bound."""
DEARER, DEAREST, TRIES = 100.0, 0.2, 3
"""Where that does not settle, few large ratios decide. Costs are then chosen for DEARER times what
was found, at most DEAREST of the local delta, in so many tries."""
FLAT = 0.1
"""In these tries alpha is so much smaller: beta would cost more than the lift saves."""
LADDER = 1.25
"""Before them delta(epsilon) is taken to be that of the last power of this below epsilon ..."""
LEAST_RUNG = 0.05
"""... unless that is below this."""
LEAST_GOAL = 1e-18
"""Costs are chosen for at least this delta."""
NEGLIGIBLE = 1e-22
"""Smaller local deltas are taken as they are."""
FINE = Nodes.of(96, 27)
"""Nodes of the finite laws; any are valid."""
CHUNK = 32
"""Boxes at a time: their atoms then lie in the cache."""
GRID_NODES = 256
"""Of the grid that all laws of one epsilon lie on: they raise the variance by a few 1e-4."""
WIDE_NODES = 512
"""Of the grid on which K is chosen."""
CUTS = np.geomspace(3.0, 1e12, 124)
"""Candidates for K."""
CUT_WEIGHT = 1.5
"""What is cut off counts so much against an estimate."""
SMALL_SHARE = 0.25
"""Values up to this share of the cut make moduli fall."""
RATES = np.geomspace(0.06, 1.35, 22)
"""Candidates for theta in units of the normal approximation's best."""
LINES = np.array([0.5, 0.58, 0.67, 0.77, 0.88, 1.0, 1.15])
"""Candidates for theta in units of the estimate's."""
NEARLY_LARGEST = 0.75
"""From this share of the largest move on, the cover of the client unit is tried as well. With wide
reports it is still the smaller one at 0.88; what it adds grows as 1 / share^2."""
LOW_END = 1e-7
"""What lies below the grid is raised to its first node: this share of the goal, about."""


@dataclass(frozen=True)
class Setting:
    """A client of radius `own`, whose means lie at most `move` apart, among `groups` of others.

    Groups: (radius, number). All in noise widths.
    """

    move: float
    own: float
    groups: tuple[tuple[float, int], ...]

    @property
    def count(self) -> int:
        """N, the number of others."""
        return sum(n for _, n in self.groups)

    @property
    def shares(self) -> FloatArray:
        """n_g/N."""
        return np.array([n / self.count for _, n in self.groups])

    @property
    def covers(self) -> list[Cover]:
        """One a group."""
        return [cover(self.own, other, self.move) for other, _ in self.groups]

    @property
    def wider_covers(self) -> list[Cover | None]:
        """Return each group's cover for the largest move, 2 C_1; None where it is not tried.

        It holds every configuration, as |p - q| <= `move` <= 2 C_1. Its boxes follow Lemma 2, which
        needs the ball alone; those of the record unit say more of |p - q| and fit less closely.
        """
        near = NEARLY_LARGEST * 2.0 * self.own <= self.move < 2.0 * self.own
        wide = [cover(self.own, other, 2.0 * self.own) for other, _ in self.groups]
        return [each if near else None for each in wide]

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve at epsilon = 0: not a bound, only a scale."""
        each = [n * worst_variance(self.own, other, self.move, 1.0) for other, n in self.groups]
        return math.sqrt(sum(each)) / self.count

    def worst(self, logs: FloatArray) -> FloatArray:
        """sum_g (n_g/N) of the larger of each group's two ends; ends are along the first axis."""
        result: FloatArray = self.shares @ logs.reshape(len(self.groups), 2, -1).max(axis=1)
        return result


@lru_cache(maxsize=1 << 14)
def predicted_delta(setting: Setting, epsilon: float) -> float:
    """Return about what `gaussian_delta` gives, in a twentieth of its time: not a bound."""
    ends = Ends.of(setting, math.exp(epsilon))
    return choose_cut(ends, setting)[2] / setting.count


@lru_cache(maxsize=1 << 14)
def gaussian_delta(setting: Setting, epsilon: float) -> float:
    """The bound on delta(`epsilon`), both orders; the local delta where no constants are found.

    Kept: batches of one size are one setting, whichever of a run's clients are in them.
    """
    best = local = float(gaussian_profile(epsilon, setting.move)) * ROUND_UP
    if local < NEGLIGIBLE:
        return local
    a = math.exp(epsilon)
    ends = Ends.of(setting, a)
    goal = max(choose_cut(ends, setting)[2] / setting.count, LEAST_GOAL)
    # A normal curve's delta grows with its variance to the power (1 + z^2)/2 at z deviations.
    z = epsilon / setting.predicted_mu
    tolerance = min(0.5 * TOLERANCE * (1.0 + z * z), MOST_TOLERANCE)
    tolerance = tolerance if goal > SMALL_DELTA else SMALL_TOLERANCE

    def with_costs(*goals: float, flatter: float = 1.0) -> float:
        """The bound with constants for the first of these goals that has some; infinite if none."""
        # alpha is the root of this over the weights' spread: it becomes `flatter` times as large.
        second = ends.second * flatter * flatter
        for wanted in goals:
            swap = choose_swap(setting.groups, local, a, second, wanted)
            if swap is not None:
                found = MainTerm(setting, a, ends, swap).delta(tolerance)
                return found * (1.0 + (10.0 + 0.01 * setting.count) * ROUND_OFF)
        return math.inf

    guess, settled = goal, False
    for _ in range(PASSES):
        found = with_costs(*(goal * factor for factor in GOALS if goal * factor <= 8.0 * local))
        best = min(best, found)
        settled = NEAR_GOAL[0] * goal < found < NEAR_GOAL[1] * goal
        if settled or not math.isfinite(found):
            break
        goal = 0.9 * best
    if settled and best <= AS_GUESSED * guess:
        return best
    rung = LADDER ** math.floor(math.log(epsilon, LADDER) - 1e-9) if epsilon > 0.0 else 0.0
    if rung > LEAST_RUNG and not settled:
        best = min(best, gaussian_delta(setting, rung))
    stalled = 0
    for _ in range(TRIES):
        found = with_costs(min(DEARER * best, DEAREST * local), flatter=FLAT)
        stalled = stalled + 1 if found > 0.98 * best else 0
        best = min(best, found)
        if stalled == 2:
            break
    return best


@dataclass(frozen=True)
class Ends:
    """The laws of others on one line with client 1, two for each group: all free choices' guide."""

    values: FloatArray
    masses: FloatArray
    second: float
    """The largest E L^2."""
    wide: FloatArray
    """Nodes of a grid for all of them ..."""
    binned: FloatArray
    """... and the laws on it."""

    @classmethod
    def of(cls, setting: Setting, a: float) -> Ends:
        """At a = e^epsilon."""
        grams = [area.corner(area.ends, a) for area in setting.covers]
        laws = [law(gram, a, FINE) for gram in grams]
        second = max(float(np.max(second_moment(gram, a))) for gram in grams)
        size = max(x.shape[1] for x, _, _ in laws)
        values = np.concatenate([_padded(x, size) for x, _, _ in laws])
        masses = np.concatenate([_padded(p, size) for _, p, _ in laws])
        scale = math.sqrt(second - (a - 1.0) ** 2)
        low, high = float(values.min()), float(values.max())
        grid = Grid.of(min(low, -scale), scale, max(high, scale), WIDE_NODES)
        return cls(values, masses, second, grid.nodes, grid.spread(values, masses)[0])

    def low_end(self, allowed: float) -> float:
        """A node such that raising what lies below to it adds no more than this."""
        rise = np.cumsum(np.cumsum(self.binned[:, :-1], axis=1) * np.diff(self.wide), axis=1)
        return float(self.wide[int(np.searchsorted(rise.max(axis=0), allowed))])


def _padded(x: FloatArray, size: int) -> FloatArray:
    return np.pad(x, ((0, 0), (0, size - x.shape[1])))


def choose_cut(
    ends: Ends, setting: Setting, swap: Swap | None = None
) -> tuple[float, float, float]:
    """(K, theta, about E(sum)_+): the least normal estimate of E(sum min(L, K))_+ plus the cut.

    With a swap, of phi(L) and beta. Decides free parameters, proves nothing.
    """
    n, p, t = setting.count, ends.binned, ends.wide
    x, slope, beta = t, 1.0, 0.0
    if swap is not None:
        x, slope, beta = swap.lift(t, LAMBDA), swap.slope, swap.beta
    mean = p @ x
    sd = math.sqrt(n * float(np.max(p @ (x * x) - mean * mean)))
    drift = max(-n * float(np.max(mean)) / sd, 0.0)
    rates = RATES * 0.5 * (drift + math.sqrt(drift * drift + 6.0)) / sd
    grown = p[:, None, :] * np.exp(np.minimum(np.multiply.outer(rates, x), 600.0))
    sums = [np.cumsum(grown * power, axis=2) for power in (1.0, x, x * x)]
    # What lies above each node: mass, and E(L - node)_+.
    above = np.cumsum(p[:, ::-1], axis=1)[:, ::-1] - p
    lost = np.cumsum((above[:, :-1] * np.diff(t))[:, ::-1], axis=1)[:, ::-1]
    lost = setting.worst(np.append(lost, np.zeros((len(p), 1)), axis=1))
    places = np.append(np.unique(np.searchsorted(t, CUTS[t[-1] > CUTS])), t.size - 1)
    # Rare values near the cut widen the tilted law, but do not make its moduli fall.
    small = np.searchsorted(x, SMALL_SHARE * x[places])
    at = np.exp(np.minimum(np.multiply.outer(rates, x[places]), 600.0))
    m0 = sums[0][:, :, places] + at * above[:, None, places]
    b0, b1, b2 = (each[:, :, small] / m0 for each in sums)
    v = n * np.maximum(b2 - b1 * b1 / b0, 1e-12)
    rate = rates[:, None]
    logs = n * np.log(m0) - np.log(2.0 * rate) + np.log(erfcx(rate * np.sqrt(0.5 * v)))
    shape = rates.size, places.size
    worst = setting.worst(logs.reshape(len(p), -1)).reshape(shape) + rate * beta
    total = np.exp(np.minimum(worst.min(axis=0), 600.0)) + CUT_WEIGHT * n * slope * lost[places]
    # The first that is about the least: what is cut off is certain, the estimate is not.
    best = int(np.argmax(total <= 1.002 * total.min()))
    theta = float(rates[int(np.argmin(worst[:, best]))])
    return float(t[places[best]]), theta, 1.1 * float(total[best])


class MainTerm:
    """The main term and what is cut off, for one choice of K, the line and the swap's constants."""

    def __init__(
        self,
        setting: Setting,
        a: float,
        ends: Ends,
        swap: Swap,
        chosen: tuple[float, float] | None = None,
    ) -> None:
        """`chosen`: K and theta, instead of the best ones."""
        self._setting, self._a, self._swap = setting, a, swap
        spread = math.sqrt(ends.second - (a - 1.0) ** 2)
        cut, theta, goal = choose_cut(ends, setting, swap)
        cut, theta = chosen or (cut, theta)
        low = ends.low_end(LOW_END * goal / setting.count)
        self._grid = Grid.of(min(low, -spread), spread, cut, GRID_NODES)
        masses = self._grid.spread(ends.values, ends.masses)[0]
        thetas = LINES * theta if chosen is None else np.array([theta])
        self._transform = self._best_line(masses, thetas)
        self._prepared = self._transform.prepared()

    @property
    def line(self) -> Line:
        """The line that was chosen."""
        return self._transform.line

    @property
    def theta(self) -> float:
        """Where it lies."""
        return self.line.theta

    @property
    def cut(self) -> float:
        """K."""
        return float(self._grid.nodes[-1])

    def _best_line(self, masses: FloatArray, thetas: FloatArray) -> Transform:
        """The line on which the ends' sums are least."""
        swap, n = self._swap, self._setting.count
        phi = swap.lift(self._grid.nodes, LAMBDA)
        mean, second = masses @ phi, masses @ (phi * phi)
        sd = math.sqrt(n * float(np.max(second - mean * mean)))
        found = []
        for theta in thetas.tolist():
            grown = masses * np.exp(theta * phi)
            whole = grown.sum(axis=1)
            widest = int(np.argmax((grown @ phi**2) / whole - ((grown @ phi) / whole) ** 2))
            centre, radius, own = bulk(phi, grown[widest])
            line = Line.of(theta, n, sd, max(own, 1e-3 * sd / math.sqrt(n)))
            transform = self._transform_on(line, centre, radius)
            logs = transform.log_d(masses, transform.prepared())[:, 1]
            found.append((float(self._setting.worst(logs)[0]) + theta * swap.beta, transform))
        return min(found, key=lambda pair: pair[0])[1]

    def _transform_on(self, line: Line, centre: float, radius: float) -> Transform:
        """phi_w agrees with phi_lambda above zero for w >= lambda, below it for w <= lambda."""
        t, swap = self._grid.nodes, self._swap
        negative, positive = t[: self._grid.below], t[self._grid.below :]
        first = [swap.lift(negative, w) for w in swap.nodes[1:].tolist()]
        last = [swap.lift(positive, w) for w in (LAMBDA, 0.0)]
        pairs = [(0, 1)] + [(i, 0) for i in range(len(first))]
        return Transform(line, first, last, pairs, centre, radius)

    def delta(self, tolerance: float) -> float:
        """The whole bound: the mean over the others of what the worst of their group adds.

        prod_g D_g^(n_g/N) <= S sum_g (n_g/N) D_g/s_g (weighted means): s_g is the largest D_g on
        the line through client 1's means, and main and cut are one maximum.
        """
        swap, n = self._swap, self._setting.count
        covers = self._setting.covers
        groups = list(zip(covers, self._setting.wider_covers, swap.weights, strict=True))
        scales = [float(self.value(area, p, area.ends)[0].max()) for area, _, p in groups]
        log_main = float(self._setting.shares @ np.array(scales))
        log_main += self.theta * swap.beta
        main = math.exp(min(max(log_main, -600.0), 600.0))

        def added(area: Cover, weights: FloatArray, scale: float) -> float:
            def value(boxes: FloatArray) -> FloatArray:
                log, kappa = self.value(area, weights, boxes)
                with np.errstate(over="ignore", invalid="ignore"):
                    result: FloatArray = np.exp(log - scale) + n * kappa / main
                return result

            return worst_box(area, value, tolerance)

        # Both covers hold every configuration: the smaller maximum bounds the group.
        each = [
            min(added(area, p, s) for area in (narrow, wide) if area is not None)
            for (narrow, wide, p), s in zip(groups, scales, strict=True)
        ]
        return main * float(self._setting.shares @ np.array(each)) / swap.m + swap.cost

    def value(
        self, area: Cover, weights: FloatArray, boxes: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """log D_B = log sum_i p_i D'(B; x_i) and kappa_B of every box's corner."""
        logs, cuts = [], []
        for part in np.array_split(boxes, 1 + len(boxes) // CHUNK):
            gram = area.corner(part, self._a)
            x, p, missing = law(gram, self._a, FINE)
            masses, over = self._grid.spread(x, p)
            logs.append(self._transform.log_d(masses, self._prepared))
            cuts.append(self._swap.slope * (over + missing))
        log = np.concatenate(logs)
        with np.errstate(over="ignore"):
            raised = nondecreasing(np.exp(log - log[:, 1:2]))
        return log[:, 1] + np.log(raised @ weights), np.concatenate(cuts) * ROUND_UP


def nondecreasing(d: FloatArray) -> FloatArray:
    """D' of Theorem 2, step 4: at 0 at least that at lambda, from lambda on a running maximum."""
    result = np.maximum.accumulate(d, axis=1)
    result[:, 0] = np.maximum(d[:, 0], d[:, 1])
    result[:, 1:] = np.maximum.accumulate(d[:, 1:], axis=1)
    return result
