"""Renyi divergence of the shuffled pair of Chen, Cao and Ge (ICASSP 2024), and its composition.

Statement. All n clients use one pure eps0-randomizer (each may depend on the reports before it in
the shuffled order: an adaptive process), and two data sets differ in one client. Then the shuffled
reports are a post-processing of P = (A + D, C - A + 1 - D) or of Q = (A + 1 - D, C - A + D), with C
~ Bin(n - 1, e^-eps0), A ~ Bin(C, 1/2), D ~ Bern(e^eps0/(1 + e^eps0)) (Proposition 1 of the paper,
the standard clone of Feldman, McMillan, Talwar 2022). Divergences do not grow under
post-processing, so D_order(P || Q) holds for the reports: Corollary 1. Exchanging the two counts
exchanges P and Q, so both directions are equal. The pair printed in Theorem 1 is another one and is
no bound (docs/research/errata.md); this module computes the pair of Proposition 1. The reduction
needs a pure local budget that all clients share: it is not proven for delta0 > 0, for personal
budgets, or for clients with different randomizers.

Formula. Given m = C + 1 reports 0 or 1, of which a are 0, let t = 2a/m - 1 and s = tanh(eps0/2) t.
Under (P + Q)/2 the count a is Bin(m, 1/2), P/Q = (1 + s)/(1 - s), and therefore

    exp((order - 1) D) = E f(s),   f(s) = (1 + s)^order (1 - s)^(1 - order).

a is symmetric, so f may be replaced by its even part
sqrt(1 - s^2) cosh((2 order - 1) artanh s), which is convex (f is a perspective of x^order) and at
least one.

Numerical error only adds. (1) Probabilities inside a window are divided by their sum. (2) Outside
the window artanh(tanh(eps0/2) t) <= eps0 t/2 (artanh(c t) is convex in t) gives
f <= cosh(kappa t), kappa = (order - 1/2) eps0, and for theta = m T - kappa >= 0

    E[f; |t| > T] <= 2 e^(-theta T) cosh((kappa + theta)/m)^m <= 2 exp(kappa T - m T^2/2).

(3) t of m + 1 reports is an average of exchangeable variables given that of m: a reverse
martingale. By Jensen E f given m does not grow with m, and numbers of reports in one cell may count
as the smallest of them. (4) A split of a point between two grid points that keeps its mean cannot
lower the expectation of a convex function. (5) The divergence does not fall with the order, so an
order near one is raised to `LEAST_ORDER`. Up to `EXACT_ATOMS` outcomes (about 20,000 clients) only
(1), (2) and round-off matter. Above, (3) and (4) add about 1e-5 of the divergence.

Neighbors: replace-one. Units: nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0, MAX_ORDER
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import require_integer, require_real

LEAST_ORDER = 1.0 + 2.0**-14
"""Below it the divergence of this order is used: the difference of the two logarithms cancels."""
EXACT_ATOMS = 1_000_000
"""Up to this many outcomes every one is kept."""
CELL_ATOMS = 3_000_000
"""Above, numbers of reports are gathered in cells, together of about this many outcomes ..."""
NODES_PER_DEVIATION = 500.0
"""... and outcomes on a grid with this many points per standard deviation of t: a split point adds
at most its squared spacing over four to E t^2, a relative 1e-6."""
LOST = 40.0
"""What lies outside a window is below e^-40 of the result."""
MOST_ATOMS = 30_000_000
"""If one number of reports has more outcomes than this, epsilon0 is the answer: no order that is
best for a delta among up to `MAX_CLIENTS` clients comes near."""
CHUNK = 1 << 20
"""Outcomes are made in pieces of this size."""
ONE_CELL = 1e10
"""Above this mean number of reports one cell is enough: it adds 1e-4 at most."""
ROUND_OFF_UP = 1.0 + 1e-10
"""Sums of positive terms and logarithms near one lose less than 1e-11 at `LEAST_ORDER`."""
SPARE = 20.0
"""Numbers of reports are dropped this much further out, in logarithms: there are many of them."""
SMALLEST_EPSILON0, TINY = 1e-100, 1e-300
"""Below this epsilon0 squares underflow: a closed form takes over, plus what may underflow."""
LOG_TWO = math.log(2.0)


@dataclass(frozen=True)
class _Law:
    """Outcomes t >= 0 of both signs: log probabilities, log sqrt(1 - s^2) and artanh s of each.

    `count` and `log_mass` are the cells of m and their log probabilities, `reach` is the largest t
    kept of each, and `log_below` bounds log E[f - 1] of fewer reports than in any cell.
    """

    log_weight: FloatArray
    log_root: FloatArray
    angle: FloatArray
    count: FloatArray
    log_mass: FloatArray
    reach: FloatArray
    log_below: float


@dataclass
class CloneRenyi:
    """Renyi divergences of the shuffled pair; every one is an upper bound, both directions."""

    epsilon0: float
    clients: int
    _known: dict[float, float] = field(default_factory=dict)
    _laws: dict[float, _Law | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
        require_integer("clients", self.clients, minimum=1, maximum=MAX_CLIENTS)

    def divergence(self, order: float) -> float:
        """Return an upper bound on D_order(P || Q) = D_order(Q || P), at most epsilon0.

        Parameters
        ----------
        order : float
            Above 1, at most `MAX_ORDER`.

        Raises
        ------
        InvalidValueError
            If the order is out of range.
        """
        asked = require_real("order", order, minimum=1.0, exclusive_minimum=True, maximum=MAX_ORDER)
        if asked not in self._known:
            self._known[asked] = self._divergence(max(asked, LEAST_ORDER))
        return self._known[asked]

    def _divergence(self, order: float) -> float:
        if self.epsilon0 < SMALLEST_EPSILON0:
            # A pure budget alone is eps0^2/2-zCDP (Bun and Steinke 2016).
            return min(self.epsilon0, 0.5 * order * self.epsilon0**2 + TINY)
        law = self._law_for(order)
        if law is None:
            return self.epsilon0
        excess = _log_excess(law, order, (order - 0.5) * self.epsilon0)
        if not excess < math.inf:
            return self.epsilon0
        log_moment = math.log1p(math.exp(excess)) if excess < 30.0 else excess + math.exp(-excess)
        return min(self.epsilon0, log_moment / (order - 1.0) * ROUND_OFF_UP)

    def _law_for(self, order: float) -> _Law | None:
        """Return the distribution for an order.

        One serves all orders up to the next power of two, and all small ones.
        """
        mean = 1.0 + (self.clients - 1) * math.exp(-self.epsilon0)
        # kappa^2/(2 mean) = 2: windows for smaller orders would hardly be narrower.
        small = min(math.sqrt(4.0 * mean) / self.epsilon0, MAX_ORDER)
        largest = 2.0 ** math.ceil(math.log2(max(order, small)))
        if largest not in self._laws:
            self._laws[largest] = _law(self.epsilon0, self.clients, largest)
        return self._laws[largest]


@lru_cache(maxsize=8)
def clone_renyi(epsilon0: float, clients: int) -> CloneRenyi:
    """Return the divergences of this pair, with what is known of them so far."""
    return CloneRenyi(epsilon0, clients)


def _log_excess(law: _Law, order: float, kappa: float) -> float:
    """Return log(E f - 1), with all that was left out added."""
    x = (2.0 * order - 1.0) * law.angle
    # log cosh of a small x by a sine, which keeps the digits.
    near = np.log1p(2.0 * np.sinh(0.5 * np.minimum(x, 1.0)) ** 2)
    y = law.log_root + np.where(x < 1.0, near, x + np.log1p(np.exp(-2.0 * x)) - LOG_TWO)
    # log(e^y - 1); E f >= 1, so points at which f < 1 by round-off count as 1.
    with np.errstate(divide="ignore"):
        less_one = np.where(y > 30.0, y, np.log(np.expm1(np.clip(y, 0.0, 30.0))))
    inside = _log_sum(law.log_weight + less_one)
    # (2), where anything is left out.
    reach = np.minimum(law.reach, 1.0)
    tails = LOG_TWO + law.log_mass + kappa * reach - 0.5 * law.count * reach**2
    outside = _log_sum(np.where(law.reach < 1.0, tails, -np.inf))
    return float(np.logaddexp.reduce([inside, law.log_below, outside]))


def _log_sum(logs: FloatArray) -> float:
    """Return the log of the sum of exponentials; much faster than `np.logaddexp.reduce`."""
    largest = float(logs.max(initial=-math.inf))
    if not math.isfinite(largest):
        return largest
    return largest + math.log(float(np.exp(logs - largest).sum()))


def _cost(kappa: float, count: FloatArray) -> FloatArray:
    """Return m log cosh(kappa/m): no log E f is larger among m reports."""
    x = kappa / count
    large = x + np.log1p(np.exp(-2.0 * x)) - LOG_TWO
    result: FloatArray = np.minimum(count * large, 0.5 * x * kappa)
    return result


def _law(epsilon0: float, clients: int, largest_order: float) -> _Law | None:
    """Return the outcomes that decide divergences up to `largest_order`.

    None if epsilon0 is as good.
    """
    kappa, tanh = (largest_order - 0.5) * epsilon0, math.tanh(0.5 * epsilon0)
    centre = 1.0 + (clients - 1) * math.exp(-epsilon0)
    # E f - 1 is at least about 2 order (order - 1) tanh^2/m: what is lost must be small beside it.
    small = LOST - 2.0 * math.log(tanh) + math.log(centre) - math.log(LEAST_ORDER - 1.0)
    count, log_mass, log_below = _counts(epsilon0, clients, kappa, small)
    reach = _reach(kappa, count, small)
    widest = 0.5 * count * np.minimum(reach, 1.0) + 2.0
    if float(widest.max()) > MOST_ATOMS:
        return None
    if float(widest.sum()) > EXACT_ATOMS:
        count, log_mass = _cells(count, log_mass, int(CELL_ATOMS / float(widest.max())))
        reach = _reach(kappa, count, small)
        t, log_weight = _on_grid(count, log_mass, reach, centre)
    else:
        each = zip(count.tolist(), log_mass.tolist(), reach.tolist(), strict=True)
        parts = [(mass, *_all_coins(int(m), far)) for m, mass, far in each]
        t = np.concatenate([at for _, at, _ in parts])
        log_weight = np.concatenate([mass + logs for mass, _, logs in parts])
    s = tanh * t
    # 1 - s by parts: 1 - tanh(eps0/2) = 2/(1 + e^eps0) keeps its digits at t = 1.
    rest = (1.0 - t) + 2.0 / (1.0 + math.exp(epsilon0)) * t
    inner = np.minimum(s, 0.5)
    log_root = 0.5 * np.where(s < 0.5, np.log1p(-inner * inner), np.log(rest) + np.log1p(s))
    angle = np.where(s < 0.5, np.arctanh(inner), 0.5 * (np.log1p(s) - np.log(rest)))
    return _Law(log_weight, log_root, angle, count, log_mass, reach, log_below)


def _reach(kappa: float, count: FloatArray, small: float) -> FloatArray:
    """Return the largest t kept of each m, at which (2) is e^-small.

    It is infinite where all are kept.
    """
    reach = kappa / count + np.sqrt(2.0 * (small + _cost(kappa, count)) / count)
    result: FloatArray = np.where(reach < 1.0, reach, np.inf)
    return result


def _counts(
    epsilon0: float, clients: int, kappa: float, small: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return (m, log probabilities, log of what fewer cost).

    m = 1 + Bin(clients - 1, e^-eps0).
    """
    n, p = clients - 1, math.exp(-epsilon0)
    if n == 0:
        return np.ones(1), np.zeros(1), -math.inf
    mean = n * p
    low, high, log_below = 0, n, -math.inf
    if n > EXACT_ATOMS:
        # Chernoff: fewer than mean - d have probability at most exp(-d^2/(2 mean)). Above mean/2
        # they cost at most kappa^2/mean each, below at most kappa. Dropped numbers above the window
        # cost less than those inside it.
        half = min(kappa**2 / max(mean, 1.0), kappa)
        reach = math.sqrt(2.0 * mean * (small + half)) + 1.0
        high = min(n, math.ceil(mean + 2.0 * math.sqrt(mean * small) + 4.0 * small))
        if reach < 0.5 * mean and kappa - mean / 8.0 < -small:
            low = math.floor(mean - reach)
            below = half - 0.5 * (mean - low) ** 2 / mean
            log_below = float(np.logaddexp(below, kappa - mean / 8.0))
        if mean > ONE_CELL:
            return np.array([low + 1.0]), np.zeros(1), log_below
    k = np.arange(low, high + 1.0)
    # p(k + 1)/p(k) = (n - k) p/((k + 1)(1 - p)) = 1 + (n p - k - 1 + p)/((k + 1)(1 - p)); the sum
    # keeps the digits of a ratio near one, the product those of a small ratio.
    j, absent = k[:-1], -math.expm1(-epsilon0)
    excess = (mean - j - 1.0 + p) / ((j + 1.0) * absent)
    near = np.abs(excess) < 0.5
    product = np.log(n - j) - np.log(j + 1.0) - epsilon0 - math.log(absent)
    steps = np.where(near, np.log1p(np.where(near, excess, 0.0)), product)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    logs -= _log_sum(logs)
    # What is rare even with all that it can cost is dropped, and its cost added.
    worth = logs + _cost(kappa, k + 1.0)
    kept = np.flatnonzero(np.maximum(worth, logs) > -small - SPARE)
    first, last = int(kept[0]), int(kept[-1]) + 1
    log_below = float(np.logaddexp(log_below, _log_sum(worth[:first])))
    # More reports than are kept count as the largest number kept: they cost less.
    logs[last - 1] = _log_sum(logs[last - 1 :])
    return k[first:last] + 1.0, logs[first:last], log_below


def _cells(count: FloatArray, log_mass: FloatArray, cells: int) -> tuple[FloatArray, FloatArray]:
    """Return the cells' smallest numbers of reports, and their log probabilities."""
    size = math.ceil(count.size / max(1, cells))
    starts = np.arange(0, count.size, size)
    return count[starts], np.array([_log_sum(log_mass[at : at + size]) for at in starts])


def _coins(m: int, reach: float) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield pieces of (t, log probabilities + a constant) of t = |2a/m - 1| <= reach.

    a ~ Bin(m, 1/2).
    """
    half = m // 2
    most = half if reach >= 1.0 else min(half, math.ceil(0.5 * m * reach) + 1)
    at_start = 0.0 if m % 2 else -LOG_TWO
    # Both signs count together, so t = 0 of an even m has half the weight that the ratios give it.
    height = 0.0
    for start in range(0, most + 1, CHUNK):
        # Heads from the middle on: p(a + 1)/p(a) = (m - a)/(a + 1).
        heads = (m - half) + np.arange(float(start), min(start + CHUNK, most + 1))
        steps = np.log1p((m - 1.0 - 2.0 * heads) / (heads + 1.0), where=heads < m, out=0.0 * heads)
        logs = height + np.concatenate([[0.0], np.cumsum(steps)])
        height = float(logs[-1])
        logs[0] += at_start if start == 0 else 0.0
        yield (2.0 * heads - m) / m, logs[:-1]


def _all_coins(m: int, reach: float) -> tuple[FloatArray, FloatArray]:
    """Return (t, log probabilities) of all pieces; inside the window they sum to one."""
    pieces = list(_coins(m, reach))
    logs = np.concatenate([each for _, each in pieces])
    return np.concatenate([t for t, _ in pieces]), logs - _log_sum(logs)


def _on_grid(
    count: FloatArray, log_mass: FloatArray, reach: FloatArray, centre: float
) -> tuple[FloatArray, FloatArray]:
    """Return (t, log probabilities) on a grid.

    Every point is split between its neighbors, means kept.
    """
    top = min(1.0, float(np.minimum(reach, 1.0).max()) + 6.0 / float(count.min()))
    spacing = 1.0 / (NODES_PER_DEVIATION * math.sqrt(centre))
    t = np.linspace(0.0, top, max(2, math.ceil(top / spacing) + 1))
    # Probabilities are kept relative to those of center coins: far out they would underflow.
    inner = np.minimum(t, 1.0 - 1e-15)
    offset = 0.5 * centre * ((1.0 + inner) * np.log1p(inner) + (1.0 - inner) * np.log1p(-inner))
    total = np.zeros(t.size)
    for m, mass, far in zip(count.tolist(), log_mass.tolist(), reach.tolist(), strict=True):
        part, inside = np.zeros(t.size), -math.inf
        for at, logs in _coins(int(m), far):
            inside = float(np.logaddexp(inside, _log_sum(logs)))
            place = np.minimum((at * ((t.size - 1) / top)).astype(np.int64), t.size - 2)
            upper = np.clip((at - t[place]) / (t[place + 1] - t[place]), 0.0, 1.0)
            with np.errstate(over="ignore", invalid="ignore"):
                lower_part = (1.0 - upper) * np.exp(mass + logs + offset[place])
                upper_part = upper * np.exp(mass + logs + offset[place + 1])
                part += np.bincount(place, lower_part, t.size)
                part += np.bincount(place + 1, upper_part, t.size)
        with np.errstate(over="ignore", invalid="ignore"):
            total += part * math.exp(-inside)
    # What overflowed is infinite, and so is the divergence that is then not used.
    total[~(total < np.inf)] = np.inf
    with np.errstate(divide="ignore"):
        return t, np.log(total) - offset


# --- Rounds --------------------------------------------------------------------------------------

RDP_SOURCE = "Chen, Cao, Ge 2024 (ICASSP), Corollary 1 for the pair of its Proposition 1"


class PureRound(NamedTuple):
    """One shuffled batch of `reports` reports, every one of local epsilon at most `epsilon0`."""

    epsilon0: float
    reports: int


@lru_cache(maxsize=1 << 16)
def _one_round(batch: PureRound, order: float) -> float:
    return clone_renyi(*batch).divergence(order)


def rounds_divergence(rounds: Mapping[PureRound, int], order: float) -> float:
    """Return an upper bound on the divergence of this order of all of these rounds together.

    Divergences of rounds add up (Mironov 2017, Proposition 1). The sum is rounded once, so the
    order in which rounds were counted does not matter.
    """
    return math.fsum(times * _one_round(batch, order) for batch, times in rounds.items())


# --- From a divergence to (epsilon, delta) -------------------------------------------------------

CONVERSION = "Canonne, Kamath, Steinke 2020, Proposition 12"
LADDER = 32
"""Orders are tried at 1 + 2^(i/32): between two of them epsilon changes by less than 1e-3."""
LADDER_ENDS = (-8 * LADDER, 29 * LADDER)
FIRST_STRIDE = 4 * LADDER


def rdp_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the epsilon at `delta` that a Renyi divergence of this order implies; at least 0.

    epsilon = D + log(1 - 1/order) - (log delta + log order)/(order - 1): delta = e^((order - 1)(D -
    epsilon)) (1 - 1/order)^order/(order - 1), solved for epsilon (`CONVERSION`).
    """
    saved = math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)
    return max(0.0, divergence + saved)


def rdp_delta(order: float, divergence: float, epsilon: float) -> float:
    """Return the delta at `epsilon` that a divergence of this order implies (`CONVERSION`)."""
    log_delta = (order - 1.0) * (divergence - epsilon) - math.log(order - 1.0)
    return math.exp(min(0.0, log_delta + order * math.log1p(-1.0 / order)))


class RenyiEpsilon(NamedTuple):
    """An epsilon, the order that it comes from, and the divergence of that order."""

    epsilon: float
    order: float
    divergence: float


def rounds_epsilon(
    rounds: Mapping[PureRound, int], delta: float, order: float | None = None
) -> RenyiEpsilon:
    """Return the epsilon at `delta` of these rounds together: the one place that computes it.

    Parameters
    ----------
    rounds : mapping of PureRound to int
        Batches, and how often a report of the client was in such a batch.
    delta : float
        In (0, 1).
    order : float, optional
        Renyi order. By default the best one, found by `best_order`.

    Returns
    -------
    RenyiEpsilon
        Epsilon in nats, for replacing one client. At most the sum of all `epsilon0`, because a
        report costs no more than its own noise allows. Never too small.
    """

    def total(each: float) -> float:
        return rounds_divergence(rounds, each)

    if order is None:
        order = best_order(
            lambda each: rdp_epsilon(each, total(each), delta), whole=False, largest=MAX_ORDER
        )
    spent = total(order)
    epsilon = min(pure_epsilon(rounds), rdp_epsilon(order, spent, delta) * ROUND_UP)
    return RenyiEpsilon(epsilon, order, spent)


def pure_epsilon(rounds: Mapping[PureRound, int]) -> float:
    """Return the epsilon at delta = 0 of these rounds, the shuffler ignored."""
    return math.fsum(times * batch.epsilon0 for batch, times in rounds.items())


def best_order(value: Callable[[float], float], *, whole: bool, largest: float) -> float:
    """Return an order at which `value` is nearly smallest; every order gives a valid bound.

    `whole`: only integers from 2 on. `largest` is the largest order tried.
    """
    known: dict[float, float] = {}

    def order_at(step: int) -> float:
        order = min(1.0 + 2.0 ** (step / LADDER), largest)
        return float(max(2, round(order))) if whole else order

    def at(step: int) -> float:
        order = order_at(step)
        if order not in known:
            known[order] = value(order)
        return known[order]

    here, stride = 0, FIRST_STRIDE
    while stride:
        nearby = [here - stride, here + stride]
        options = [step for step in nearby if LADDER_ENDS[0] <= step <= LADDER_ENDS[1]]
        following = min(options, key=at, default=here)
        if at(following) < at(here):
            here = following
        else:
            stride //= 2
    return order_at(here)
