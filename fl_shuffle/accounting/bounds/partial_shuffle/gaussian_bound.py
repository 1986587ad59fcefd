"""delta(epsilon) of Gaussian reports by the Gram order.

Source: docs/research/proofs, section 12, Theorem 2.

    delta <= (1/m) sum_g n_g max over boxes B of [ S D_B/(N s_g) + kappa_B ] + (A) + (B) + (C),
    D_B = sum_i p_gi D'(B; x_i),   S = e^(theta beta) prod_g s_g^(n_g/N),   any s_g > 0.

Every free parameter (the cut K, the swap's constants, the line, the boxes) is chosen here; every
choice gives a bound, and what was chosen is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import erfcx

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.branch_and_bound import SaysMore, kept_boxes
from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import (
    CellEdges,
    Grid,
    factors,
    law,
)
from fl_shuffle.accounting.bounds.partial_shuffle.fourier_moduli import (
    MOST_EXACT,
    Frequencies,
    LogModuli,
    bulk,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    LAMBDA,
    Swap,
    choose_swap,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gram import (
    Cover,
    Gram,
    cover,
    second_moment,
    worst_variance,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_OFF, ROUND_UP

TOLERANCE = 0.006
"""Boxes may say this much more of the variance than the largest value found, relatively ..."""
MOST_TOLERANCE = 0.1
"""... but not more of delta than this."""
FLAT_TOLERANCE, STEP = 0.02, 1.1
"""A tolerance above FLAT_TOLERANCE is limited by the slope of the predicted curve, from epsilon to
STEP times epsilon: where the curve is flat, a small share of delta is much of epsilon."""
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
was found, at most DEAREST of the local delta, in this number of tries."""
HARDLY_LESS, MOST_STALLED = 0.98, 2
"""This many tries in a row that leave more than this share of the bound end the tries."""
FLAT = 0.1
"""Factor by which alpha is smaller in these tries: beta would cost more than the lift saves."""
LADDER = 1.25
"""Before them delta(epsilon) is taken to be that of the last power of this below epsilon ..."""
LEAST_RUNG = 0.05
"""... unless that is below this."""
LEAST_GOAL = 1e-18
"""Costs are chosen for at least this delta."""
NEGLIGIBLE = 1e-22
"""Smaller local deltas are taken as they are."""
FINE = CellEdges.of(96, 27)
"""Edges of the cells of the finite distributions; any are valid."""
FITTED_CELLS = 80, 40
"""Of wide reports, numbers of fitted edges instead. Others off the line have a wide Lambda, and far
out few large values decide: neither suits edges that are the same for every epsilon."""
WIDE_REACH = 1.02, 1.2
"""Up to the first of these distances between means no cells are fitted, from the second one on as
many as may be; in between a growing share, so that no bound jumps where a radius grows."""
FIT_BOXES = 3
"""Cells are fitted to the guides and to the middles of boxes, this number to a side."""
CHUNK = 32
"""Boxes at a time: their atoms then lie in the cache."""
GRID_NODES = 256
"""Of the grid that all distributions of one epsilon lie on: they raise the variance by a few
1e-4."""
WIDE_NODES = 512
"""Of the grid on which K is chosen."""
CUTS = np.geomspace(3.0, 1e12, 124)
"""Candidates for K."""
CUT_WEIGHT = 1.5
"""Weight of what is cut off against an estimate."""
SMALL_SHARE = 0.25
"""Values up to this share of the cut make moduli fall."""
RATES = np.geomspace(0.06, 1.35, 22)
"""Candidates for theta in units of the normal approximation's best."""
LINES = np.array([0.5, 0.58, 0.67, 0.77, 0.88, 1.0, 1.15])
"""Candidates for theta in units of the estimate's."""
NEARLY_LARGEST = 0.75
"""From this share of the largest move on, the client unit is tried as well: its cover, and its
whole bound. With wide reports they are still the smaller ones at 0.88; what they add grows as
1 / share^2."""
SCALES = 4
"""Number of times that the weighted means' s_g are set for the boxes that turned out to decide."""
OFF_LINE, GUIDED = 1.2, 3
"""Where configurations off the line reach OFF_LINE times what those on it reach, beyond the boxes'
tolerance, they guide the choice of constants too, at most GUIDED times."""
LOW_END = 1e-7
"""What lies below the grid is raised to its first node: this share of the goal, about."""


class GroupsOfOthers(Protocol):
    """Groups of others, as free choices need them."""

    @property
    def count(self) -> int:
        """N, the number of others."""

    def worst(self, logs: FloatArray) -> FloatArray:
        """Return sum_g (n_g/N) of the largest of each group's guides, the first axis."""


class Guides(Protocol):
    """Distributions of others that guide free choices, on one grid."""

    @property
    def wide(self) -> FloatArray:
        """Values of a grid for all of them ..."""

    @property
    def binned(self) -> FloatArray:
        """... and the distributions on it."""


@dataclass(frozen=True)
class ClientAmongGroups:
    """A client of radius `own`, whose means lie at most `move` apart, among `groups` of others.

    Groups: (radius, number). All in noise scales.
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

    def worst(self, logs: FloatArray) -> FloatArray:
        """Return sum_g (n_g/N) of the largest of each group's guides.

        Guides are along the first axis.
        """
        each = logs.reshape(len(self.groups), len(logs) // len(self.groups), -1)
        result: FloatArray = self.shares @ each.max(axis=1)
        return result


@dataclass(frozen=True)
class RoundGeometry(ClientAmongGroups):
    """A client among others with Gaussian noise: lengths in l2, in standard deviations."""

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
        largest = self.at_largest_move
        return [None] * len(self.groups) if largest is None else list(largest.covers)

    @property
    def at_largest_move(self) -> RoundGeometry | None:
        """The same client if its means may lie anywhere in its ball; None if that is no help.

        What holds for the larger move holds for this one.
        """
        if not NEARLY_LARGEST * 2.0 * self.own <= self.move < 2.0 * self.own:
            return None
        return RoundGeometry(2.0 * self.own, self.own, self.groups)

    @property
    def wide(self) -> float:
        """The share of `WIDE_REACH` that the largest distance between means has passed."""
        first, last = WIDE_REACH
        reach = self.own + max(other for other, _ in self.groups)
        return min(max((reach - first) / (last - first), 0.0), 1.0)

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve at epsilon = 0: not a bound, only a scale."""
        each = [n * worst_variance(self.own, other, self.move, 1.0) for other, n in self.groups]
        return math.sqrt(sum(each)) / self.count


@lru_cache(maxsize=1 << 14)
def predicted_delta(setting: RoundGeometry, epsilon: float) -> float:
    """Return about what `gaussian_delta` gives, in a twentieth of its time: not a bound."""
    ends = Ends.of(setting, math.exp(epsilon))
    return choose_cut(ends, setting)[2] / setting.count


@lru_cache(maxsize=1 << 14)
def gaussian_delta(setting: RoundGeometry, epsilon: float) -> float:
    """Return the bound on delta(epsilon) of Gaussian reports, both orders.

    Parameters
    ----------
    setting : RoundGeometry
        The client and the others, in noise standard deviations.
    epsilon : float
        In nats, at least 0.

    Returns
    -------
    float
        delta; the local one where no constants are found.

    Notes
    -----
    Statement: docs/research/proofs, section 12, Theorem 2. Neighbors: replace-one. Direction of
    error: the result is raised by 1e-8 + 1e-11 N of itself for round-off, and every other error is
    added. Results are kept: batches of one size are one setting, whichever of a run's clients are
    in them.
    """
    local = float(gaussian_profile(epsilon, setting.move)) * ROUND_UP
    if local < NEGLIGIBLE:
        return local
    search = Search(setting, epsilon, local)
    if not search.settled():
        rung = LADDER ** math.floor(math.log(epsilon, LADDER) - 1e-9) if epsilon > 0.0 else 0.0
        if rung > LEAST_RUNG and not search.near_goal:
            search.best = min(search.best, gaussian_delta(setting, rung))
        search.try_dearer()
    search.look_at_left()
    return search.best


class Search:
    """The choice of constants for one setting and epsilon; `best` is the smallest bound so far.

    Constants are judged by their guides first, which is cheap and says less than the bound does.
    Boxes are looked at where that may lower `best`: so most constants are never paid for.
    """

    def __init__(self, setting: RoundGeometry, epsilon: float, local: float) -> None:
        self._setting, self._local, self.best = setting, local, local
        self._a = math.exp(epsilon)
        self._ends = Ends.of(setting, self._a)
        self._guess = self._predicted(self._ends)
        self._tolerance = self._tolerance_at(epsilon)
        self._left: list[MainTerm] = []
        """Constants whose boxes were not looked at yet."""
        self.near_goal = False
        """Whether the last pass ended near its goal."""

    def _predicted(self, ends: Ends) -> float:
        return max(choose_cut(ends, self._setting)[2] / self._setting.count, LEAST_GOAL)

    def _tolerance_at(self, epsilon: float) -> float:
        """Return how much more boxes may say than the largest value found, relatively.

        A normal curve's delta grows with its variance to the power (1 + z^2)/2 at z deviations, and
        falls with the same power of epsilon. Far out, where few ratios decide, it falls less.
        """
        z = epsilon / self._setting.predicted_mu
        power = z * z
        if 0.5 * TOLERANCE * power > FLAT_TOLERANCE:
            further = self._predicted(Ends.of(self._setting, self._a**STEP))
            power = min(power, max(math.log(self._guess / further) / (STEP - 1.0), 0.0))
        tolerance = min(0.5 * TOLERANCE * (1.0 + power), MOST_TOLERANCE)
        return tolerance if self._guess > SMALL_DELTA else SMALL_TOLERANCE

    def settled(self) -> bool:
        """Choose constants for the predicted delta, and again for what was found.

        Return whether that ended near a goal, with about what was predicted.
        """
        goal = self._guess
        for _ in range(PASSES):
            goals = (goal * factor for factor in GOALS if goal * factor <= 8.0 * self._local)
            main = self._chosen(*goals)
            if main is None:
                break
            found = main.least
            if NEAR_GOAL[0] * goal < found < NEAR_GOAL[1] * goal:
                found = self._looked_at(main)
                self.near_goal = NEAR_GOAL[0] * goal < found < NEAR_GOAL[1] * goal
                if self.near_goal:
                    break
            else:
                self._left.append(main)
            goal = 0.9 * min(self._least, self.best)
        return self.near_goal and self.best <= AS_GUESSED * self._guess

    def try_dearer(self) -> None:
        """Choose constants of larger costs, where few large ratios decide."""
        stalled, tried, ends, excess = 0, 0.0, self._ends, 1.0
        for _ in range(TRIES):
            goal = min(DEARER * min(self._least, self.best), DEAREST * self._local)
            if goal == tried and self._ends is ends:
                break
            tried, ends = goal, self._ends
            main = self._chosen(goal, flatter=FLAT)
            if main is None:
                break
            # Boxes will add about as much to what the guides say as they did before.
            wanted = HARDLY_LESS * self.best
            found = main.least * excess
            if found <= wanted:
                found = self._looked_at(main)
                excess = max(found / main.least, 1.0)
            stalled = stalled + 1 if found > wanted else 0
            if stalled == MOST_STALLED:
                break

    def look_at_left(self) -> None:
        """Look at the boxes of constants that may still lower `best`."""
        for main in sorted(self._left, key=lambda main: main.least):
            self._looked_at(main)

    @property
    def _least(self) -> float:
        """What the best constants say by their guides, if no box adds to it."""
        return min((main.least for main in self._left), default=math.inf)

    def _chosen(self, *goals: float, flatter: float = 1.0) -> MainTerm | None:
        """Return constants for the first of these goals that has some."""
        # alpha is the root of this over the weights' spread: it becomes `flatter` times as large.
        second = self._ends.second * flatter * flatter
        for wanted in goals:
            swap = choose_swap(self._setting.groups, self._local, self._a, second, wanted)
            if swap is not None:
                return MainTerm(self._setting, self._a, self._ends, swap)
        return None

    def _looked_at(self, main: MainTerm) -> float:
        """Return the bound with these constants, or a number between `best` and that.

        Lowers `best`.
        """
        found, self._ends = guided_bound(main, self._tolerance, self.best)
        # Round-off of the whole bound, at the end of section 12: 1e-8 + 1e-11 N.
        found *= 1.0 + (10.0 + 0.01 * self._setting.count) * ROUND_OFF
        self.best = min(self.best, found)
        return found


def guided_bound(main: MainTerm, tolerance: float, useless: float = math.inf) -> tuple[float, Ends]:
    """Return the bound with these constants of the swap, and the guides that led to it.

    The worst others need not be on a line with client 1. Where they are not, K and the line are
    chosen for them, too: at once if that lowers what these others say. Where the guides alone reach
    `useless`, what they say is returned instead: no bound, but at least that.
    """
    best = math.inf
    for attempt in range(GUIDED):
        if main.least >= min(useless, best):
            return min(best, main.least), main.ends
        off_line = OFF_LINE * (1.0 + tolerance) * main.least
        try:
            found = main.bound(tolerance, off_line if attempt < GUIDED - 1 else math.inf)
        except OffLine as worse:
            other = main.beside(worse.worst)
            if other.least < worse.delta:
                main = other
                continue
            if worse.delta >= min(useless, best):
                return min(best, worse.delta), main.ends
            found = main.bound(tolerance, known=worse.value)
        best = min(best, found.delta)
        if not found.delta > off_line:
            break
        main = main.beside(found.worst)
    return best, main.ends


@dataclass(frozen=True)
class Ends:
    """The distributions of others on one line with client 1, two for each group.

    They guide all free choices. Others that are not on the line may follow, as many for each group.
    """

    grams: tuple[Gram, ...]
    """Those of each group."""
    values: FloatArray
    masses: FloatArray
    second: float
    """The largest E L^2 of those on the line."""
    wide: FloatArray
    """Values of a grid for all of them ..."""
    binned: FloatArray
    """... and the distributions on it."""

    @classmethod
    def of(cls, setting: RoundGeometry, a: float) -> Ends:
        """Return the ends at a = e^epsilon."""
        grams = tuple(area.corner(area.ends, a) for area in setting.covers)
        return cls._of(grams, max(float(np.max(second_moment(gram, a))) for gram in grams), a)

    @classmethod
    def _of(cls, grams: tuple[Gram, ...], second: float, a: float) -> Ends:
        laws = [law(gram, a, FINE) for gram in grams]
        size = max(x.shape[1] for x, _, _ in laws)
        values = np.concatenate([_padded(x, size) for x, _, _ in laws])
        masses = np.concatenate([_padded(p, size) for _, p, _ in laws])
        scale = math.sqrt(second - (a - 1.0) ** 2)
        low, high = float(values.min()), float(values.max())
        grid = Grid.of(min(low, -scale), scale, max(high, scale), WIDE_NODES)
        binned = grid.spread(values, masses)[0]
        return cls(grams, values, masses, second, grid.nodes, binned)

    def beside(self, more: Sequence[Gram], a: float) -> Ends:
        """Return these ends with one more of each group."""
        grams = [
            (np.append(u, v), np.append(w, x), np.append(y, z))
            for (u, w, y), (v, x, z) in zip(self.grams, more, strict=True)
        ]
        return self._of(tuple(grams), self.second, a)


def _padded(x: FloatArray, size: int) -> FloatArray:
    return np.pad(x, ((0, 0), (0, size - x.shape[1])))


def low_end(ends: Guides, allowed: float) -> float:
    """Return a node such that raising what lies below to it adds no more than this."""
    rise = np.cumsum(np.cumsum(ends.binned[:, :-1], axis=1) * np.diff(ends.wide), axis=1)
    return float(ends.wide[int(np.searchsorted(rise.max(axis=0), allowed))])


def choose_cut(
    ends: Guides, setting: GroupsOfOthers, swap: Swap | None = None
) -> tuple[float, float, float]:
    """Return (K, theta, about E(sum)_+) with the least normal estimate.

    The estimate is of E(sum min(L, K))_+ plus the cut or, with a swap, of phi(L) and beta. It
    decides free parameters, and proves nothing.
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
    # Rare values near the cut widen the tilted distribution, but do not make its moduli fall.
    small = np.searchsorted(x, SMALL_SHARE * x[places])
    at = np.exp(np.minimum(np.multiply.outer(rates, x[places]), 600.0))
    m0 = sums[0][:, :, places] + at * above[:, None, places]
    b0, b1, b2 = (each[:, :, small] / m0 for each in sums)
    v = n * np.maximum(b2 - b1 * b1 / b0, 1e-12)
    rate = rates[:, None]
    # M^N E[e^(-theta S) 1{S > 0}]/theta for a tilted sum S that is normal with variance v.
    logs = n * np.log(m0) - np.log(2.0 * rate) + np.log(erfcx(rate * np.sqrt(0.5 * v)))
    shape = rates.size, places.size
    worst = setting.worst(logs.reshape(len(p), -1)).reshape(shape) + rate * beta
    total = np.exp(np.minimum(worst.min(axis=0), 600.0)) + CUT_WEIGHT * n * slope * lost[places]
    # The first that is about the least: what is cut off is certain, the estimate is not.
    best = int(np.argmax(total <= 1.002 * total.min()))
    theta = float(rates[int(np.argmin(worst[:, best]))])
    return float(t[places[best]]), theta, 1.1 * float(total[best])


class OnLine:
    """A main term on one line: its grid, its swap, and the moduli there."""

    _setting: GroupsOfOthers
    _grid: Grid
    _transform: LogModuli
    swap: Swap
    most_exact = MOST_EXACT
    """Largest number of frequencies with exact moduli."""

    @property
    def line(self) -> Frequencies:
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

    def _best_line(self, masses: FloatArray, thetas: FloatArray) -> LogModuli:
        """Return the line on which the ends' sums are least."""
        swap, n = self.swap, self._setting.count
        phi = swap.lift(self._grid.nodes, LAMBDA)
        mean, second = masses @ phi, masses @ (phi * phi)
        sd = math.sqrt(n * float(np.max(second - mean * mean)))

        def tried(theta: float) -> tuple[float, Frequencies, float, float]:
            grown = masses * np.exp(theta * phi)
            whole = grown.sum(axis=1)
            widest = int(np.argmax((grown @ phi**2) / whole - ((grown @ phi) / whole) ** 2))
            centre, radius, own = bulk(phi, grown[widest])
            own = max(own, 1e-3 * sd / math.sqrt(n))
            line = Frequencies.of(theta, n, sd, own, self.most_exact)
            # At lambda alone, which decides.
            middle = LogModuli(
                line, [phi[: self._grid.below]], [phi[self._grid.below :]], [(0, 0)], centre, radius
            )
            logs = middle.log_d(masses, middle.prepared())[:, 0]
            return float(self._setting.worst(logs)[0]) + theta * swap.beta, line, centre, radius

        # The sum is about convex in theta: from the largest one down until it grows.
        best = tried(float(thetas[-1]))
        for theta in thetas[-2::-1].tolist():
            found = tried(theta)
            if found[0] >= best[0]:
                break
            best = found
        return self._transform_on(*best[1:])

    def _transform_on(self, line: Frequencies, centre: float, radius: float) -> LogModuli:
        """Return a transform for all w.

        phi_w agrees with phi_lambda above zero for w >= lambda, below it for w <= lambda.
        """
        t, swap = self._grid.nodes, self.swap
        negative, positive = t[: self._grid.below], t[self._grid.below :]
        first = [swap.lift(negative, w) for w in swap.nodes[1:].tolist()]
        last = [swap.lift(positive, w) for w in (LAMBDA, 0.0)]
        pairs = [(0, 1)] + [(i, 0) for i in range(len(first))]
        return LogModuli(line, first, last, pairs, centre, radius)


class MainTerm(OnLine):
    """The main term and what is cut off, for one choice of K, the line and the swap's constants."""

    _setting: RoundGeometry

    def __init__(
        self,
        setting: RoundGeometry,
        a: float,
        ends: Ends,
        swap: Swap,
        chosen: tuple[float, float] | None = None,
    ) -> None:
        """Choose the best K and theta, or take those `chosen`."""
        self._setting, self._a, self.ends, self.swap = setting, a, ends, swap
        spread = math.sqrt(ends.second - (a - 1.0) ** 2)
        cut, theta, goal = choose_cut(ends, setting, swap)
        cut, theta = chosen or (cut, theta)
        low = low_end(ends, LOW_END * goal / setting.count)
        self._grid = Grid.of(min(low, -spread), spread, cut, GRID_NODES)
        masses = self._grid.spread(ends.values, ends.masses)[0]
        thetas = LINES * theta if chosen is None else np.array([theta])
        self._transform = self._best_line(masses, thetas)
        self._prepared = self._transform.prepared()
        self._cells = self._fitted_cells()
        guides = [
            np.column_stack(self._of_grams(gram, p))
            for gram, p in zip(ends.grams, swap.weights, strict=True)
        ]
        self._scales = np.array([rows[:, 0].max() for rows in guides])
        self.least = self._sum(guides, self._scales)[0] / swap.m + swap.cost
        """The bound over the guides alone: not a bound, and about the least that one can be."""

    def _fitted_cells(self) -> CellEdges:
        """Return edges that fit f(L) = e^(theta phi(min(L, K))), the main term's.

        Below K, f'' is about f but for a factor; beyond, f does not grow.
        """
        share = self._setting.wide
        if share == 0.0:
            return FINE

        def growth(x: FloatArray) -> FloatArray:
            phi = self.theta * self.swap.lift(np.minimum(x, self.cut), LAMBDA)
            result: FloatArray = np.exp(np.minimum(phi, 600.0)) * (x < self.cut)
            return result

        counts = zip((FINE.z.size, FINE.y.size), FITTED_CELLS, strict=True)
        first, second = (round(usual + share * (most - usual)) for usual, most in counts)
        covers = self._setting.covers
        middles = [area.corner(area.middles(area.start(FIT_BOXES)), self._a) for area in covers]
        u, w, x = (np.concatenate(each) for each in zip(*self.ends.grams, *middles, strict=True))
        return CellEdges.fitted((first, second), (u, w, x), self._a, growth, share)

    def beside(self, more: Sequence[Gram]) -> MainTerm:
        """Return K and the line chosen again, with these guides as well."""
        return MainTerm(self._setting, self._a, self.ends.beside(more, self._a), self.swap)

    def bound(self, tolerance: float, most: float = math.inf, known: float = 0.0) -> Bound:
        """Return the whole bound: the mean over the others of what the worst of their group adds.

        prod_g D_g^(n_g/N) <= S sum_g (n_g/N) D_g/s_g (weighted means), so main and cut are one
        maximum. Any s_g > 0 are valid: first the largest D_g of the guides, then those of the boxes
        that turned out to decide.

        Raises `OffLine` at the first others of a single group for whom it would be more than
        `most`. `known`: the value of some others, from there.
        """
        scales = self._scales
        areas, kept = zip(*self._kept(scales, tolerance, most, known), strict=True)
        sums = [rows[:, 1:3] for rows in kept]
        best = math.inf
        for _ in range(SCALES):
            found, decisive = self._sum(sums, scales)
            best = min(best, found)
            scales = np.array([r[i, 0] for r, i in zip(sums, decisive, strict=True)])
        worst = [
            area.corner(rows[i : i + 1, 3:], self._a)
            for area, rows, i in zip(areas, kept, decisive, strict=True)
        ]
        return Bound(best / self.swap.m + self.swap.cost, worst)

    def _kept(
        self, scales: FloatArray, tolerance: float, most: float, known: float
    ) -> list[tuple[Cover, FloatArray]]:
        """Return, for each group, the better cover and rows of boxes that together hold the group.

        A row has the value D_B/s_g + N kappa_B/S, log D_B, kappa_B, and the sides of the box.
        """
        n, main = self._setting.count, math.exp(min(max(self._log_main(scales), -600.0), 600.0))
        # One group: the bound is this value times S, over m.
        one = len(scales) == 1 and self._setting.wider_covers[0] is None
        limit = (most - self.swap.cost) * self.swap.m / main if one else math.inf

        def kept(area: Cover, weights: FloatArray, scale: float) -> tuple[Cover, FloatArray]:
            def value(boxes: FloatArray) -> FloatArray:
                log, kappa = self.value(area, weights, boxes)
                with np.errstate(over="ignore", invalid="ignore"):
                    v = np.exp(log - scale) + n * kappa / main
                return np.column_stack([v, log, kappa, boxes])

            try:
                return area, kept_boxes(area, value, tolerance, known=known, most=limit)
            except SaysMore as found:
                v, sides = float(found.row[0]), found.row[None, 3:]
                raise OffLine(
                    v * main / self.swap.m + self.swap.cost, v, [area.corner(sides, self._a)]
                ) from None

        covers = zip(self._setting.covers, self._setting.wider_covers, strict=True)
        return [
            # Both covers hold every configuration: the smaller maximum bounds the group.
            min(
                (kept(area, p, scale) for area in both if area is not None),
                key=lambda found: float(found[1][:, 0].max()),
            )
            for both, p, scale in zip(covers, self.swap.weights, scales.tolist(), strict=True)
        ]

    def _log_main(self, scales: FloatArray) -> float:
        """Return the log of e^(theta beta) prod_g s_g^(n_g/N)."""
        log_main = float(self._setting.shares @ scales)
        log_main += self.theta * self.swap.beta
        return log_main

    def _sum(self, groups: list[FloatArray], scales: FloatArray) -> tuple[float, list[int]]:
        """Return main plus cut with these log s_g, and the row of each group that decides.

        Each group has rows of log D_B and kappa_B.
        """
        log_main, each, decisive = self._log_main(scales), [], []
        for (log, kappa), scale in zip([rows.T for rows in groups], scales.tolist(), strict=True):
            with np.errstate(over="ignore", invalid="ignore"):
                # S D_B/s_g + N kappa_B. The mean over the others of its maxima is sum_g n_g max_B
                # [S D_B/(N s_g) + kappa_B].
                v = np.exp(np.maximum(log_main + log - scale, -600.0)) + self._setting.count * kappa
            v = np.nan_to_num(v, nan=math.inf, posinf=math.inf)
            decisive.append(int(np.argmax(v)))
            each.append(float(v.max()))
        return float(self._setting.shares @ np.array(each)), decisive

    def value(
        self, area: Cover, weights: FloatArray, boxes: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the log D_B = log sum_i p_i D'(B; x_i) and kappa_B of every box's corner."""
        parts = np.array_split(boxes, 1 + len(boxes) // CHUNK)
        found = [self._of_grams(area.corner(part, self._a), weights) for part in parts]
        logs, cuts = zip(*found, strict=True)
        return np.concatenate(logs), np.concatenate(cuts)

    def _of_grams(self, gram: Gram, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the same of Gram matrices."""
        laws = factors(gram, self._a, self._cells)
        masses, over = self._grid.spread_products(laws)
        log = self._transform.log_d(masses, self._prepared)
        with np.errstate(over="ignore"):
            # Relative to D at lambda, so that nothing overflows; columns are the nodes 0, lambda,
            # .., zeta.
            raised = nondecreasing(np.exp(log - log[:, 1:2]))
        # kappa_B: the largest slope of phi_w times the mean of what the finite distribution leaves
        # out.
        kappa = self.swap.slope * (over + laws.missing) * ROUND_UP
        return log[:, 1] + np.log(raised @ weights), kappa


class Bound(NamedTuple):
    """What `MainTerm.bound` finds."""

    delta: float
    worst: list[Gram]
    """Gram matrix of the box that decides, for each group."""


class OffLine(Exception):
    """Some others say much more than the guides."""

    def __init__(self, delta: float, value: float, worst: list[Gram]) -> None:
        super().__init__(f"others off the line say {delta:g}")
        self.delta = delta
        """The bound is at least this: with these others alone, it would be this."""
        self.value = value
        """As in a row of `MainTerm._kept`."""
        self.worst = worst
        """Their Gram matrix, for the one group."""


def nondecreasing(d: FloatArray) -> FloatArray:
    """Return D' of Theorem 2, step 4.

    At 0 it is at least that at lambda; from lambda on it is a running maximum.
    """
    result = np.maximum.accumulate(d, axis=1)
    result[:, 0] = np.maximum(d[:, 0], d[:, 1])
    result[:, 1:] = np.maximum.accumulate(d[:, 1:], axis=1)
    return result
