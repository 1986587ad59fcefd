"""What tests on sums of reports certainly reach: a lower bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from fl_shuffle.accounting.attacks.certain_loss import most_exposed
from fl_shuffle.accounting.attacks.laplace_sums import (
    SUM_ATTACK_COARSEST,
    SUM_ATTACK_LOG_MISSED,
    LaplaceSumTest,
)
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.gaussian_mechanism import INVERSE_SAFETY, gaussian_epsilon
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.sum_account import SumAccount

SUM_LOWER_SOURCE = "likelihood-ratio test on the sums, the others' means known"
LAPLACE_LOWER_SOURCE = "threshold test on one coordinate of the sums, the others' means known"

NO_TEST = "no test on the sums that we compute is certain enough here"

Vector = NDArray[np.float64]


def sum_attack_delta(epsilon: float, mu: float, coarsest: float) -> float:
    """A divergence at `epsilon` that sums with Gaussian-DP parameter `mu` certainly have.

    The mean moves along one coordinate, and the attacker adds up the sums, each weighted by its
    shift over its variance: a statistic that is normal with means `mu` apart (in deviations) but
    for the rounding of reports. Rounding errors are independent, at most half a step each, a step
    being at most `coarsest` noise scales, and their means are below e^(-2 pi^2 / coarsest^2) steps
    in size. So their weighted sum exceeds coarsest sqrt(ln(2/missed) / 2) deviations with
    probability `missed` at most (Hoeffding), and both error rates move by no more than that.
    """
    if mu <= 0.0 or coarsest > SUM_ATTACK_COARSEST:
        return 0.0
    return max(0.0, _certain(epsilon, mu, coarsest))


def _certain(epsilon: float, mu: float, coarsest: float) -> float:
    """What is left of the test's divergence, for the best `missed`; nothing if it is negative.

    `missed` is e^(allowed - epsilon).
    """
    allowed = np.array(SUM_ATTACK_LOG_MISSED)
    log_missed = allowed - epsilon
    moved = coarsest * (np.sqrt(0.5 * (math.log(2.0) - log_missed)) + 1e-9)
    hit = ndtr(0.5 * mu - epsilon / mu - moved)
    # Above 1 nothing is left, however far.
    false = np.exp(np.minimum(epsilon + log_ndtr(-0.5 * mu - epsilon / mu + moved), 1.0))
    error = np.exp(log_missed) + np.exp(allowed) + 1e-13 * hit
    return float(np.max(hit - false - error))


def sum_attack_epsilon(delta: float, mu: float, coarsest: float) -> float:
    """An epsilon at `delta` that sums with Gaussian-DP parameter `mu` certainly cost; rounded down.

    0 where the test says nothing.
    """
    if mu <= 0.0 or coarsest > SUM_ATTACK_COARSEST or _certain(0.0, mu, coarsest) <= delta:
        return 0.0
    exact = gaussian_epsilon(delta, mu)
    good, _ = bisected(lambda epsilon: _certain(epsilon, mu, coarsest) > delta, 0.0, exact, 1e-6)
    return good * (1.0 - INVERSE_SAFETY)


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


def _laplace_column(account: SumAccount, delta: float, classes: list[int]) -> Column:
    """The most exposed class's; a round of fewer reports hides it no better than a larger one."""
    taken = account.worst_of_classes(account.taken.astype(np.float64)).astype(np.int64)
    index = most_exposed(account.classes, {one: int(taken[one]) for one in classes})
    counts, epsilon = account.most, {}
    if index is not None and counts is not None:
        # Of sums of some clients nobody can tell which of them were the honest ones.
        rounds = int(taken[index]) if account.assumed_honest is None else account.whole
        scale, grid, shift = account.reports(index)
        honest = honest_reports(account.assumed_honest, int(counts.sum()))
        if rounds:
            test = laplace_sum_test(scale, grid, counts, honest, index, shift, rounds)
            found = test.epsilon(delta)
            epsilon = {index: found} if found > 0.0 else {}
    note = "" if epsilon else NO_TEST
    return Column("sum-lower", Status.LOWER_BOUND, LAPLACE_LOWER_SOURCE, epsilon, note)


def sum_lower_column(account: SumAccount, delta: float, classes: Iterable[int]) -> Column:
    """What the test certainly reaches against the most exposed client of each of these classes.

    The adversary is the guarantee's own: where some reports are not assumed to be honest it knows
    their noise, and the honest ones are those of the smallest noise. Of Laplace reports the most
    exposed class alone is attacked.
    """
    if account.reason is not None:
        return Column(
            "sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, note="as for the column sum"
        )
    if bool(account.classes.is_noise("laplace").any()):
        return _laplace_column(account, delta, list(classes))
    worst = account.worst_of_classes(account.attacked_mu_squared)
    found = {
        index: sum_attack_epsilon(delta, math.sqrt(worst[index]), account.coarsest)
        for index in classes
    }
    epsilon = {index: value for index, value in found.items() if value > 0.0}
    note = "" if epsilon else NO_TEST
    return Column("sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, epsilon, note)
