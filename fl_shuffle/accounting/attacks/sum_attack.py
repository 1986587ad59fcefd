"""What tests on sums of reports certainly reach: a lower bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fl_shuffle.accounting.attacks.certain_loss import attacked_rounds, most_exposed
from fl_shuffle.accounting.attacks.laplace_sums import LaplaceSumTest
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.tolerances import TOLERANCES

SUM_LOWER_SOURCE = "likelihood-ratio test on the sums, the others' means known"
LAPLACE_LOWER_SOURCE = "threshold test on one coordinate of the sums, the others' means known"

NO_TEST = "no test on the sums that we compute is certain enough here"

Vector = NDArray[np.float64]

_AROUND = np.concatenate([[1.0 + 8e-7, 1.0 + 4e-7, 1.0], 1.0 - 4e-7 * 2.0 ** np.arange(21), [0.0]])
_BETWEEN = np.arange(1, 64) / 64.0
"""Where a root is looked for, at one go: around a number, and between two."""


def sum_attack_delta(epsilon: float, mu: float, coarsest: float) -> float:
    """A divergence at `epsilon` that sums with Gaussian-DP parameter `mu` certainly have.

    The mean moves along one coordinate, and the attacker adds up the sums, each weighted by its
    shift over its variance: a statistic that is normal with means `mu` apart (in deviations) but
    for the rounding of reports. Rounding errors are independent, at most half a step each, a step
    being at most `coarsest` noise scales, and their means are below e^(-2 pi^2 / coarsest^2) steps
    in size. So their weighted sum exceeds coarsest sqrt(ln(2/missed) / 2) deviations with
    probability `missed` at most (Hoeffding), and both error rates move by no more than that.
    """
    if mu <= 0.0 or coarsest > TOLERANCES.sum_attack_coarsest:
        return 0.0
    return max(0.0, float(_certain(np.array([epsilon]), mu, coarsest)[0]))


def _certain(epsilon: Vector, mu: float, coarsest: float) -> Vector:
    """What is left of the test's divergence at each epsilon, for the best `missed`; nothing if it
    is negative.

    `missed` is e^(allowed - epsilon).
    """
    allowed = np.array(TOLERANCES.sum_attack_log_missed)[:, None]
    log_missed = allowed - epsilon
    moved = coarsest * (np.sqrt(0.5 * (math.log(2.0) - log_missed)) + 1e-9)
    hit = ndtr(0.5 * mu - epsilon / mu - moved)
    # Above 1 nothing is left, however far.
    false = np.exp(np.minimum(epsilon + log_ndtr(-0.5 * mu - epsilon / mu + moved), 1.0))
    error = np.exp(log_missed) + np.exp(allowed) + 1e-13 * hit
    left: Vector = (hit - false - error).max(axis=0)
    return left


def sum_attack_epsilon(delta: float, mu: float, coarsest: float) -> float:
    """An epsilon at `delta` that sums with Gaussian-DP parameter `mu` certainly cost; rounded down.

    0 where the test says nothing.
    """
    if mu <= 0.0 or coarsest > TOLERANCES.sum_attack_coarsest:
        return 0.0
    exact = gaussian_epsilon(delta, mu)
    # The rounding of reports costs the test little. What it does at the exact number is made up for
    # a little below, about where the divergence, of this slope and curvature, has risen by as much;
    # what is lost grows meanwhile, as a normal density does.
    lost = delta - float(_certain(np.array([exact]), mu, coarsest)[0])
    middle = exact / mu - 0.5 * mu
    slope = math.exp(min(0.0, exact + float(log_ndtr(-0.5 * mu - exact / mu))))
    curvature = math.exp(-0.5 * middle * middle) / (mu * math.sqrt(2.0 * math.pi)) - slope
    slope -= lost * middle / mu
    root = math.sqrt(max(0.0, slope * slope + 2.0 * curvature * lost))
    step = 2.0 * lost / max(slope + root, 1e-300)
    points = np.minimum(max(exact - step, 0.5 * exact) * _AROUND, exact)
    good, bad = 0.0, exact
    while bad - good > 1e-6 * bad:
        reached = np.flatnonzero(_certain(points, mu, coarsest) > delta)
        if reached.size:
            first = int(reached[0])
            good, bad = float(points[first]), float(points[first - 1]) if first else bad
        elif points[-1] == 0.0:
            return 0.0
        else:
            bad = float(points[-1])
        points = bad + (good - bad) * _BETWEEN
    return good * (1.0 - TOLERANCES.inverse_safety)


def laplace_sum_test(
    scale: Vector,
    grid: Vector,
    counts: NDArray[np.int64],
    honest: int,
    index: int,
    shift: float,
    rounds: int,
) -> LaplaceSumTest:
    """The test on `rounds` sums of `counts` [classes] Laplace reports against a client of class
    `index`, if besides it the `honest` - 1 others of the smallest noise are honest."""
    order = np.argsort(scale, kind="stable")
    others = counts.copy()
    others[index] -= 1
    hiding = np.empty_like(counts)
    hiding[order] = np.diff(np.minimum(np.cumsum(others[order]), honest - 1), prepend=0)
    hiding[index] += 1
    return LaplaceSumTest(scale, grid, hiding, shift, rounds)


def _laplace_column(account: SumAccount, delta: float, classes: list[int], last: int) -> Column:
    """The most exposed class's; a round of fewer reports hides it no better than a larger one."""
    taken = account.worst_of_classes(account.taken.astype(np.float64)).astype(np.int64)
    index = most_exposed(account.classes, {one: int(taken[one]) for one in classes})
    rounds, counts = 0, account.most
    if index is not None and counts is not None:
        # Of sums of some clients nobody can tell which of them were the honest ones.
        met = int(taken[index]) if account.assumed_honest is None else account.whole
        rounds = attacked_rounds(met, last)
    epsilon = {}
    if index is not None and counts is not None and rounds:
        key = (index, rounds, delta, counts.tobytes())
        if key not in account.found:
            scale, grid, shift = account.reports(index)
            honest = honest_reports(account.assumed_honest, int(counts.sum()))
            test = laplace_sum_test(scale, grid, counts, honest, index, shift, rounds)
            account.found[key] = test.epsilon(delta)
        if account.found[key] > 0.0:
            epsilon = {index: account.found[key]}
    note = "" if epsilon else NO_TEST
    return Column("sum-lower", Status.LOWER_BOUND, LAPLACE_LOWER_SOURCE, epsilon, note)


def sum_lower_column(
    account: SumAccount, delta: float, classes: Iterable[int], last: int = 0
) -> Column:
    """What the test certainly reaches against the most exposed client of each of these classes.

    The adversary is the guarantee's own: where some reports are not assumed to be honest it knows
    their noise, and the honest ones are those of the smallest noise. Of Laplace reports the most
    exposed class alone is attacked, in the rounds that `attacked_rounds` says; `last`: of the run.
    """
    if account.reason is not None:
        return Column(
            "sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, note="as for the column sum"
        )
    if bool(account.classes.is_noise("laplace").any()):
        return _laplace_column(account, delta, list(classes), last)
    worst = account.worst_of_classes(account.attacked_mu_squared)
    found = {
        index: sum_attack_epsilon(delta, math.sqrt(worst[index]), account.coarsest)
        for index in classes
    }
    epsilon = {index: value for index, value in found.items() if value > 0.0}
    note = "" if epsilon else NO_TEST
    return Column("sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, epsilon, note)
