"""Reports that spend given totals over a run if they are shuffled: a fixed point.

The cost of a shuffled report has no closed form, and depends on how far away the others' reports
are. Everything is in noise scales: client k's report moves by mu_k, and its mean lies in a ball of
radius mu_k batch_k / 2. F_k(mu) is the epsilon of class k after all rounds, the smaller of the
shuffled and the local one. F_k grows with every mu_j. So G_k(mu) = sup{m : F_k(m, mu) <= total_k}
maps a box into itself, and where F is continuous, a fixed point exists.

A model predicts F: log mu'_k = a_k + b_k log S_k(mu), where mu'_k is the Gaussian-DP parameter of
one round that gives F_k, and S_k the normal approximation of the shuffled round. The model is
solved for the totals, certified curves correct a_k and b_k, and so on. Where F jumps (a theorem
begins to hide nobody) the jump is bracketed, and the value below it is kept.

Nothing here is a guarantee: the accountant counts every round with the noise that was added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.bounds import VERSION
from fl_shuffle.accounting.bounds.partial_shuffle.curve import (
    MAX_LAPLACE_SPREAD,
    MAX_SPREAD,
    MIN_OTHERS,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gram import second_moment
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.client_classes import AnyRound, ClientClass, LocalMechanism
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_mus
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair
from fl_shuffle.accounting.rounds.local_guarantees import local_epsilon
from fl_shuffle.accounting.rounds.round_library import curve_of
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView

SEARCH = 2
"""Counted up where the search changes: answers of another one that are kept are not read."""
AIM = 0.99
"""A step aims at this share of each total ..."""
ENOUGH = 0.975
"""... and this share is near enough."""
COARSE_NODES_PER_SD = 1.5
"""Points of a coarse curve: a quarter of the work, and epsilons that are a few percent larger."""
FINE_NODES_PER_SD = 3.0
"""Points of a fine curve: half of the accountant's, whose epsilon is smaller by less than 1%."""
COARSE_UNTIL = 0.85, 1.08
"""Between these shares of the totals, curves are computed as finely as the accountant's."""
MOST_STEPS = 10
MOST_CURVES = 30
"""For few totals; with more of them each is certified in `FULL_STEPS` steps at most."""
FULL_STEPS = 4
JUMP = 1.8
"""An epsilon of this multiple of the total is beyond a jump."""
NARROW = 1.004
"""A bracket as narrow as this is not halved: certified epsilons jump a little where the best
constants of a bound change."""
FIRST_MOVE, DAMPED = 0.35, 0.6
"""The logarithm of mu changes by at most this in the first steps, and by this share of the last
step's limit in each later one."""
HEAVY, HEAVY_FROM = 2.5, 0.5
"""Where weights are heavy, few large ratios decide: normal approximations are too small there by
about exp(`HEAVY` times what the mean radius exceeds `HEAVY_FROM`)."""
HALVINGS = 16
"""Of a bracket of at most a factor of a thousand or so: a ten-thousandth is left."""
SWEEPS = 200
"""Newton steps of the model, damped by half."""
BITS = 12
"""Bits that a parameter keeps, rounded down: what the last digits of a machine's arithmetic
change, no client's noise shows."""


@dataclass(frozen=True)
class PlannedReports:
    """What is solved for: one entry a class of clients, by increasing total.

    `totals` are in nats at `delta`; `batch` records share a clip; of the `counts` clients of a
    class, `present` are planned to be asked. Of those asked, `absent` reports hide nobody, and
    `honest` is `privacy.assumed_honest`. `rounds` counts the reports of a client. With `clipping`
    all noise is of one scale, so that all clients hide one another; otherwise those of a class.
    """

    noise: str
    totals: tuple[float, ...]
    batch: tuple[int, ...]
    counts: tuple[int, ...]
    present: tuple[int, ...]
    rounds: int
    delta: float
    absent: int
    honest: AssumedHonest
    unit: str
    clipping: bool

    @property
    def cohort(self) -> NDArray[np.int64]:
        """Which noise each class has, shape (classes,)."""
        classes = np.arange(len(self.totals))
        return np.zeros_like(classes) if self.clipping else classes

    @property
    def lost(self) -> int:
        """How many reports hide nobody."""
        arrived = sum(self.present)
        return arrived - max(1, honest_reports(self.honest, arrived) - self.absent)

    def of_a_round(self, epsilon: Vector) -> Vector:
        """Return the Gaussian-DP parameter of each of `rounds` equal rounds that spend
        `epsilon`."""
        found: Vector = gaussian_mus(epsilon, np.full(len(epsilon), self.delta))
        return found / math.sqrt(self.rounds)

    def alone(self) -> Vector:
        """Return the mu of one report with which its noise alone spends the total, shape
        (classes,)."""
        totals = np.array(self.totals)
        if self.noise != "laplace":
            return self.of_a_round(totals)
        return np.array([laplace_alone(total, self.rounds, self.delta) for total in self.totals])


def laplace_alone(total: float, rounds: int, delta: float) -> float:
    """Return the epsilon of one Laplace report with which `rounds` of them spend `total` at
    `delta`, seen alone.

    Pure budgets add up; at delta they cost less, by the composition that is counted.
    """
    low, high = total / rounds, total
    for _ in range(HALVINGS if rounds > 1 else 0):
        middle = math.sqrt(low * high)
        fits = local_epsilon(LocalMechanism("laplace", middle), rounds, delta) <= total
        low, high = (middle, high) if fits else (low, middle)
    return low


@dataclass(frozen=True)
class _Place:
    """One number of an answer, of class `index`: it is kept by itself."""

    asked: PlannedReports
    index: int
    what: int = 0
    """0: how far a report moves; 1: whether it lies beside a jump."""
    search: int = SEARCH


@dataclass(frozen=True)
class SolvedReports:
    """What was found, one entry a class: how far a report `moves`, in noise scales, and whether its
    epsilon jumps beyond the total if it moves further."""

    moves: Vector
    at_jump: NDArray[np.bool_]


def solved_reports(asked: PlannedReports, tell: Callable[[str], None]) -> SolvedReports:
    """Return how the reports of each class are made.

    Answers are kept on the disk beside certified pairs, by everything that they depend on.
    """
    _TELL.append(tell)
    try:
        moves, jumps = (
            np.array([_kept(_Place(asked, index, what)) for index in range(len(asked.totals))])
            for what in (0, 1)
        )
    finally:
        _TELL.pop()
    return SolvedReports(moves, jumps > 0.0)


@pair_cache.kept(VERSION)
def _kept(place: _Place) -> float:
    return float(_solution(place.asked)[place.what][place.index])


_TELL: list[Callable[[str], None]] = []
"""Who listens: no part of the question."""


@lru_cache(maxsize=16)
def _solution(asked: PlannedReports) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    search = TotalsSearch(asked, _TELL[-1] if _TELL else lambda _: None)
    return tuple(search.best().tolist()), tuple(search.at_jump.tolist())


def forget() -> None:
    """Forget the answers that this process holds; those on the disk stay."""
    _solution.cache_clear()


class Certified:
    """Epsilons of every class after all rounds, as the accountant counts them."""

    def __init__(self, asked: PlannedReports) -> None:
        self._asked = asked
        self.curves = 0
        self._known: dict[tuple[AnyRound, bool], float] = {}

    def __call__(self, mu: Vector, *, fine: bool) -> Vector:
        """Return epsilons, shape (classes,); `fine`: as the accountant does, else a little larger.

        A class whose own noise keeps its total is not certified.
        """
        asked, kinds = self._asked, self._kinds(mu)
        found = np.empty(len(mu))
        for index, own in enumerate(self.local(mu).tolist()):
            kind = kinds.get(index)
            if own <= asked.totals[index] * (1.0 + 1e-9) or kind is None:
                found[index] = own
            else:
                found[index] = min(own, self._shuffled(kind, fine))
        return found

    def local(self, mu: Vector) -> Vector:
        """Return the epsilons of the clients' own noise, shape (classes,)."""
        asked = self._asked
        laws = [kind.law for kind in _classes_of(asked, mu)]
        return np.array([local_epsilon(law, asked.rounds, asked.delta) for law in laws])

    def _kinds(self, mu: Vector) -> dict[int, AnyRound]:
        """Return what a round of those planned is to each class that it hides."""
        asked = self._asked
        class_of = np.repeat(np.arange(len(mu)), asked.counts)
        view = ShuffledView(
            _classes_of(asked, mu), class_of, schedule="aggregate", unit=asked.unit,
            assumed_honest=asked.honest,
        )  # fmt: skip
        firsts = np.cumsum(asked.counts) - asked.counts
        present = np.arange(len(class_of)) - firsts[class_of] < np.array(asked.present)[class_of]
        kinds = view.round_types(present, asked.absent)
        groups = view.account_of[firsts].tolist()
        return {index: kinds[group] for index, group in enumerate(groups) if group in kinds}

    def _shuffled(self, kind: AnyRound, fine: bool) -> float:
        fine = fine or self._asked.rounds == 1
        if (kind, fine) not in self._known:
            self.curves += 1
            self._known[kind, fine] = self._epsilon(kind, fine)
        return self._known[kind, fine]

    def _epsilon(self, kind: AnyRound, fine: bool) -> float:
        curve = curve_of(kind)
        if not curve.credit:
            return math.inf
        if self._asked.rounds == 1:
            return float(curve.epsilon(self._asked.delta))
        pair = shuffled_pair(curve, per_sd=FINE_NODES_PER_SD if fine else COARSE_NODES_PER_SD)
        return Composition([(pair, self._asked.rounds)]).epsilon(self._asked.delta)


def _classes_of(asked: PlannedReports, mu: Vector) -> list[ClientClass]:
    batch = np.array(asked.batch, dtype=np.float64)
    scale = np.ones(len(mu)) if asked.clipping else 2.0 / (batch * mu)
    rows = np.stack([scale, 0.5 * mu * batch * scale, mu * scale], axis=1).tolist()
    return [ClientClass(asked.noise, *row) for row in rows]


class Predicted:
    """The normal approximation of a shuffled round: a guide, not a bound."""

    def __init__(self, asked: PlannedReports) -> None:
        self._asked = asked
        self._cohort = asked.cohort
        self._batch = np.array(asked.batch, dtype=np.float64)
        self.most = MAX_LAPLACE_SPREAD if asked.noise == "laplace" else MAX_SPREAD

    def __call__(self, mu: Vector) -> Vector:
        """Return S, shape (classes,): infinite where nobody hides the class."""
        radius, asked = 0.5 * mu * self._batch, self._asked
        order = np.argsort(radius, kind="stable")
        r, mine = radius[order], radius[:, None]
        spread = mine + r[None, :]
        alike = self._cohort[:, None] == self._cohort[order][None, :]
        counts = np.where(alike, np.array(asked.present, dtype=np.float64)[order], 0.0)
        counts[np.arange(len(mu)), np.argsort(order)] -= 1.0
        # Those in the smallest balls would hide a client best: they are the ones that are missing.
        left = np.maximum(np.cumsum(counts, axis=1) - asked.lost, 0.0)
        counts = np.where(spread <= self.most, np.diff(left, axis=1, prepend=0.0), 0.0)
        whole = np.cumsum(counts, axis=1)
        with np.errstate(all="ignore"):
            if asked.noise == "laplace":
                # As `laplace_shuffle` predicts it.
                each = 2.0 * np.exp(0.5 * spread) * -np.expm1(-0.5 * mu[:, None])
                s = each / np.sqrt(whole)
            else:
                near = spread - mu[:, None]
                # As `worst_variance`: at a = 1 both ends are alike.
                moment = second_moment((spread * spread, near * near, spread * near), 1.0)
                variance = np.maximum(moment, 0.0)
                s = np.sqrt(np.cumsum(variance * counts, axis=1)) / whole
                s *= np.exp(HEAVY * np.maximum(0.5 * spread - HEAVY_FROM, 0.0))
        s = np.where(whole >= MIN_OTHERS, s, math.inf)
        found: Vector = np.nan_to_num(s.min(axis=1), nan=math.inf)
        return np.where(mu <= self.most, found, math.inf)

    def solved(self, goal: Vector, start: Vector, floor: Vector, pinned: Vector) -> Vector:
        """Return mu with S(mu) = `goal`, but at least `floor`, or as `pinned` (NaN: not).

        Newton's method for each class, damped: a class's S depends mostly on its own mu.
        """
        mu = start
        for _ in range(SWEEPS):
            s, up = self(mu), self(mu * 1.001)
            with np.errstate(all="ignore"):
                slope = np.clip(np.log(up / s) / math.log(1.001), 1.0, 12.0)
                move = np.clip(np.nan_to_num(np.log(goal / s) / slope), -0.3, 0.3)
            move = np.where(np.isfinite(s), move, -0.1)
            # Beyond the largest spread no theorem hides anybody: nothing is to be gained there.
            new = np.minimum(mu * np.exp(0.5 * move), self.most * (1.0 - 1e-6))
            new = np.maximum(new, floor)
            new = np.where(np.isfinite(pinned), pinned, new)
            done = bool(np.max(np.abs(np.log(new / mu))) < 1e-6)
            mu = new
            if done:
                break
        return mu


class TotalsSearch:
    """The fixed point of one question."""

    def __init__(self, asked: PlannedReports, tell: Callable[[str], None]) -> None:
        self.asked, self._tell = asked, tell
        self.certified, self.predicted = Certified(asked), Predicted(asked)
        self.totals = np.array(asked.totals)
        size = len(self.totals)
        self.floor = asked.alone() * (1.0 - 1e-9)
        self._a, self._b = np.zeros(size), np.ones(size)
        self._points: list[list[tuple[float, float]]] = [[] for _ in range(size)]
        self._low, self._high = np.zeros(size), np.full(size, math.inf)
        self._cliff = np.zeros(size, dtype=bool)
        """Whether epsilon jumps somewhere in a class's bracket."""
        self.ratio = np.zeros(size)
        """Certified epsilon over total of what is returned."""
        self.at_jump = np.zeros(size, dtype=bool)
        """Of which classes epsilon jumps beyond the total just above what is returned."""
        self.steps = 0

    def best(self) -> Vector:
        """Return the mu of every class, with which none of them exceeds its total.

        What own noise alone allows is always possible, and where nothing better is found, returned.
        """
        found, fine = rounded(self.floor), self.asked.rounds == 1
        self.ratio = self.certified.local(found) / self.totals
        mu = self._start()
        while self._goes_on():
            self.steps += 1
            self._tell(
                f"solving for the noise of {len(self.totals)} totals: step {self.steps}, at most "
                f"{MOST_STEPS} ..."
            )
            ratio = self.certified(mu, fine=fine) / self.totals
            near = (ratio < COARSE_UNTIL[1]) & (ratio > COARSE_UNTIL[0])
            # Less noise, for all of them together, is what a total is to buy.
            if np.all(ratio <= 1.0) and np.log(mu).sum() > np.log(found).sum():
                found, self.ratio = mu, ratio
            jump, at_jump = self._bracketed(mu, ratio)
            if found is mu:
                self.at_jump = at_jump & (ratio < ENOUGH)
            done = (ratio <= 1.0) & ((ratio >= ENOUGH) | at_jump | (mu <= self.floor * (1 + 1e-3)))
            if done.all() and fine:
                break
            mu = self._next(mu, ratio, jump, at_jump)
            if near.all() and not fine:
                fine = self._fine_from_here()
        return found

    def _fine_from_here(self) -> bool:
        """Forget what coarse curves said that finer ones do not: where totals end, and slopes."""
        self._high = np.where(self._cliff, self._high, math.inf)
        self._points = [[] for _ in self.totals]
        return True

    def _goes_on(self) -> bool:
        each = len(self.totals)
        most = MOST_CURVES if each <= 4 else FULL_STEPS * each
        return self.steps < MOST_STEPS and self.certified.curves + each <= most

    def _start(self) -> Vector:
        first = np.clip(self.floor, 1e-3, 0.8)
        return rounded(self._modelled(first, np.full(len(first), math.nan)))

    def _modelled(self, start: Vector, pinned: Vector) -> Vector:
        goal = self.asked.of_a_round(AIM * self.totals)
        wanted = np.exp((np.log(goal) - self._a) / self._b)
        return self.predicted.solved(wanted, start, self.floor, pinned)

    def _bracketed(self, mu: Vector, ratio: Vector) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which classes are beside a jump, and which of them are close enough below it."""
        fits = ratio <= 1.0
        # An end of a bracket that no longer holds, because others moved, is forgotten.
        stale_low, stale_high = mu <= 1.001 * self._low, mu >= 0.999 * self._high
        kept_low = np.where(stale_low, 0.0, self._low)
        kept_high = np.where(stale_high, math.inf, self._high)
        self._low = np.where(fits, np.maximum(self._low, mu), kept_low)
        self._high = np.where(fits, kept_high, np.minimum(self._high, mu))
        beyond = ratio > np.where(self._cliff, 1.3, JUMP)
        self._cliff = np.where(fits, self._cliff & np.isfinite(self._high), beyond)
        between = np.isfinite(self._high) & (self._low > 0.0)
        jump = between & self._cliff & (ratio < ENOUGH) | (between & self._cliff & ~fits)
        at_jump = (jump & (self._high < 1.04 * self._low)) | (
            between & (self._high < NARROW * self._low)
        )
        # Beyond this no theorem hides anybody: the last jump is where it is known to be.
        last = mu >= self.predicted.most * (1.0 - 1e-3)
        return jump | at_jump, (at_jump & (mu >= 0.999 * self._low)) | (last & fits)

    def _next(
        self, mu: Vector, ratio: Vector, jump: NDArray[np.bool_], at_jump: NDArray[np.bool_]
    ) -> Vector:
        """Return the next mu: the model, corrected, solved again; half a bracket at a jump."""
        s, epsilon = self.predicted(mu), ratio * self.totals
        # What lies beyond a jump says nothing about this side of it.
        known = np.isfinite(s) & ~(jump & (ratio > 1.0))
        for k in np.flatnonzero(known & (mu > self.floor * (1.0 + 1e-3))).tolist():
            self._learn(k, math.log(s[k]), float(epsilon[k]))
        middle = np.sqrt(np.maximum(self._low, 1e-9) * self._high)
        close = at_jump | (self._high < 1.04 * self._low)
        pinned = np.where(jump, np.where(close, self._low, middle), math.nan)
        limit = FIRST_MOVE * DAMPED ** max(0, self.steps - 2)
        new = self._modelled(mu, pinned)
        new = np.clip(new, mu * math.exp(-limit), mu * math.exp(limit))
        return rounded(np.maximum(new, self.floor))

    def _learn(self, k: int, x: float, epsilon: float) -> None:
        """Correct the model of class k: slope from a point far enough away, level from the last."""
        y = math.log(self.asked.of_a_round(np.array([epsilon]))[0])
        far = [point for point in self._points[k] if abs(point[0] - x) > 0.015]
        if far:
            nearest = min(far, key=lambda point: abs(point[0] - x))
            self._b[k] = min(max((y - nearest[1]) / (x - nearest[0]), 0.7), 6.0)
        self._points[k].append((x, y))
        self._a[k] = y - self._b[k] * x


def rounded(mu: Vector) -> Vector:
    """Return each with `BITS` bits, rounded down."""
    mantissa, exponent = np.frexp(mu)
    found: Vector = np.ldexp(np.floor(np.ldexp(mantissa, BITS)), exponent - BITS)
    return found
