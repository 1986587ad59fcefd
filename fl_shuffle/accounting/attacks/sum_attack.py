"""What the best test on sums of Gaussian reports certainly reaches: a lower bound on epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.special import log_ndtr, ndtr

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.tolerances import TOLERANCES

SUM_LOWER_SOURCE = "likelihood-ratio test on the sums, the others' means known"


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
    return max(_certain(epsilon, mu, coarsest, each) for each in TOLERANCES.sum_attack_log_missed)


def _certain(epsilon: float, mu: float, coarsest: float, allowed: float) -> float:
    """What is left of the test's divergence, `missed` being e^(allowed - epsilon); 0 if nothing."""
    log_missed = allowed - epsilon
    moved = coarsest * (math.sqrt(0.5 * (math.log(2.0) - log_missed)) + 1e-9)
    hit = float(ndtr(0.5 * mu - epsilon / mu - moved))
    false = math.exp(epsilon + float(log_ndtr(-0.5 * mu - epsilon / mu + moved)))
    error = (1.0 + math.exp(epsilon)) * math.exp(log_missed) + 1e-13 * hit
    return max(0.0, hit - false - error)


def sum_attack_epsilon(delta: float, mu: float, coarsest: float) -> float:
    """An epsilon at `delta` that sums with Gaussian-DP parameter `mu` certainly cost; rounded down.

    0 where the test says nothing.
    """
    if mu == 0.0:
        return 0.0
    exact = gaussian_epsilon(delta, mu)
    good, bad, below = 0.0, exact, 1e-6 * exact
    # The rounding of reports costs the test little: look from above first.
    while below < exact and good == 0.0:
        if sum_attack_delta(exact - below, mu, coarsest) > delta:
            good = exact - below
        else:
            bad, below = exact - below, 8.0 * below
    if good == 0.0 and sum_attack_delta(good, mu, coarsest) <= delta:
        return 0.0
    while bad - good > 1e-6 * bad:
        middle = 0.5 * (good + bad)
        if sum_attack_delta(middle, mu, coarsest) > delta:
            good = middle
        else:
            bad = middle
    return good


def sum_lower_column(account: SumAccount, delta: float, classes: Iterable[int]) -> Column:
    """What the test certainly reaches against the most exposed client of each of these classes.

    The adversary is the guarantee's own: where some reports are not assumed to be honest it knows
    their noise, and the honest ones are those of the smallest noise.
    """
    if account.reason is not None:
        return Column(
            "sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, note="as for the column sum"
        )
    worst = account.worst_of_classes(account.attacked_mu_squared)
    found = {
        index: sum_attack_epsilon(delta, math.sqrt(worst[index]), account.coarsest)
        for index in classes
    }
    epsilon = {index: value for index, value in found.items() if value > 0.0}
    note = "" if epsilon else "no test on the sums that we compute is certain enough here"
    return Column("sum-lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, epsilon, note)
