"""What tests on sums of reports certainly reach: a lower bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import log_ndtr, ndtr

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.round_off import INVERSE_ERROR, ROUND_OFF, UNIT
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.words import CONTINUOUS, ColumnWords

NO_TEST = "no test on the sums that we compute is certain enough here"

SUM_ATTACK_COARSEST = 0.125
"""Where a grid is coarser than this share of its noise scale no test is claimed."""
SUM_ATTACK_LOG_MISSED = (-24.0, -36.0, -60.0)
"""Logarithms, one of which is tried after the other, of the probability, times e^epsilon, that
rounding moves a sum further than is allowed for."""
LAPLACE_NOTE = "no test on sums of Laplace reports is computed"


def sum_attack_delta(epsilon: float, mu: float, coarsest: float) -> float:
    """Return a divergence at `epsilon` that sums with Gaussian-DP parameter `mu` certainly have.

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
    """Return what is left of the test's divergence, for the best `missed`; nothing if it is
    negative.

    `missed` is e^(allowed - epsilon).
    """
    allowed = np.array(SUM_ATTACK_LOG_MISSED)
    # e^eps times `missed` is what enters the divergence, so that product is what is fixed.
    log_missed = allowed - epsilon
    moved = coarsest * (np.sqrt(0.5 * (math.log(2.0) - log_missed)) + ROUND_OFF)
    # The best test of N(0, 1) against N(mu, 1) at e^eps rejects above mu/2 + eps/mu: its rates
    # are Phi(mu/2 - eps/mu) and Phi(-mu/2 - eps/mu). Rounding may move the statistic by `moved`
    # against the attacker in both.
    hit = ndtr(0.5 * mu - epsilon / mu - moved)
    # Above 1 nothing is left, however far.
    false = np.exp(np.minimum(epsilon + log_ndtr(-0.5 * mu - epsilon / mu + moved), 1.0))
    # Both rates are off by `missed` at most: missed + e^eps missed, and round-off.
    error = np.exp(log_missed) + np.exp(allowed) + 1024.0 * UNIT * hit
    return float(np.max(hit - false - error))


def sum_attack_epsilon(delta: float, mu: float, coarsest: float) -> float:
    """Return an epsilon at `delta` that sums with Gaussian-DP parameter `mu` certainly cost;
    rounded down.

    0 where the test says nothing.
    """
    if mu <= 0.0 or coarsest > SUM_ATTACK_COARSEST or _certain(0.0, mu, coarsest) <= delta:
        return 0.0
    # `_certain` is nowhere above the Gaussian profile, so it is no larger than delta there.
    exact = gaussian_epsilon(delta, mu)
    good, _ = bisected(lambda epsilon: _certain(epsilon, mu, coarsest) > delta, 0.0, exact, 1e-6)
    return good * (1.0 - INVERSE_ERROR)


def sum_lower_column(
    account: SumAccount,
    delta: float,
    classes: Iterable[int],
    words: ColumnWords = CONTINUOUS,
) -> Column:
    """Return what the test certainly reaches against the most exposed client of each of these
    classes.

    The adversary is the guarantee's own: where some reports are not assumed to be honest it knows
    their noise, and the honest ones are those of the smallest noise. Sums of Laplace
    reports are not attacked.
    """
    source = words.sum_lower
    if account.reason is not None:
        return Column("sum-lower", Status.LOWER_BOUND, source, note="as for the column sum")
    if account.table.laplace:
        return Column("sum-lower", Status.LOWER_BOUND, source, note=LAPLACE_NOTE)
    worst = account.worst_of_classes(account.attacked_mu_squared)
    found = {
        index: sum_attack_epsilon(delta, math.sqrt(worst[index]), account.table.coarsest)
        for index in classes
    }
    epsilon = {index: value for index, value in found.items() if value > 0.0}
    note = "" if epsilon else NO_TEST
    return Column("sum-lower", Status.LOWER_BOUND, source, epsilon, note)
