"""A round of reports whose law nobody knows: only the local budget that every one declares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import gammaln, log_expit

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile import PROFILE_MAX_EPSILON
from fl_shuffle.accounting.bounds.partial_shuffle.profile_curve import ProfileCurve
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.reports import ROUND_EXACT_REPORTS
from fl_shuffle.errors import require_integer, require_real

DECLARED_ROUND_INFLATION = 1.0 + 1e-7
"""Covers the round-off of the sum over a declared report's losses."""


@dataclass(frozen=True)
class DeclaredRound:
    """One shuffled batch as a client sees it that only declares its local budget.

    Any two of these reports, of whatever inputs and clients, are taken to be within (`epsilon0`,
    `delta0`) of each other, both orders: one function, one budget. `others`: how many of them there
    are besides the client's own. Other clients' reports neither help nor harm.
    """

    epsilon0: float
    delta0: float
    others: int

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=PROFILE_MAX_EPSILON)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0)
        require_integer("others", self.others, minimum=0)

    def curve(self) -> ProfileCurve:
        """The one-round curve, proven given the declared budget."""
        return ProfileCurve(profiles.approximate(self.epsilon0, self.delta0), self.others + 1)

    @cached_property
    def local_pair(self) -> DominatingPair:
        """The dominating pair of one report, the shuffler ignored."""
        if self.epsilon0 == 0.0:
            return DominatingPair.from_curve([0.0], [self.delta0])
        at_zero = self.curve().local_delta(0.0)
        return DominatingPair.from_curve([0.0, self.epsilon0], [at_zero, self.delta0])

    def lessened(self) -> DeclaredRound:
        """A type that batches like this one share, with no more reports than it has."""
        if self.others <= ROUND_EXACT_REPORTS:
            return self
        # Rounds of slightly different arrivals then cost one curve; about 1% of the reports go.
        unit = 2 ** math.floor(0.5 * math.log2(self.others) - 1.0)
        return DeclaredRound(self.epsilon0, self.delta0, unit * (self.others // unit))


def declared_local_delta(epsilon0: float, delta0: float, rounds: int, epsilon: float) -> float:
    """Delta at `epsilon` of `rounds` reports that declare (epsilon0, delta0), without a shuffler.

    Exact for the worst such reports (Kairouz, Oh, Viswanath 2015, Theorem 3.3), rounded up.
    """
    certain = -math.expm1(rounds * math.log1p(-delta0)) if delta0 < 1.0 else 1.0
    ups = np.arange(rounds + 1)
    logs = gammaln(rounds + 1.0) - gammaln(ups + 1.0) - gammaln(rounds - ups + 1.0)
    logs += ups * log_expit(epsilon0) + (rounds - ups) * log_expit(-epsilon0)
    above = epsilon - (2.0 * ups - rounds) * epsilon0
    gains = np.exp(logs) * -np.expm1(np.minimum(above, 0.0))
    return min(
        1.0,
        (certain + (1.0 - certain) * float(np.sum(gains))) * DECLARED_ROUND_INFLATION,
    )


@lru_cache(maxsize=1 << 16)
def declared_local_epsilon(epsilon0: float, delta0: float, rounds: int, delta: float) -> float:
    """Epsilon at `delta` of such reports, rounded up; infinite where `rounds` delta0 exceeds it."""
    if rounds == 0:
        return 0.0
    high = epsilon0 * rounds
    if rounds == 1 or high == 0.0 or declared_local_delta(epsilon0, delta0, rounds, high) > delta:
        return high if delta0 * rounds <= delta else math.inf
    return bisected(
        lambda epsilon: declared_local_delta(epsilon0, delta0, rounds, epsilon) <= delta,
        high,
        0.0,
        1e-9,
    )[0]
