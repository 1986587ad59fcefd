"""Blanket bounds from moments: Hoeffding's and Bennett's tails.

Balle, Bell, Gascon and Nissim 2019: the expectation of the blanket sum's positive part,
bounded through its mean, range and variance and averaged over the size of the blanket.
Relation replace-one, units nats. Round-off is covered by a relative inflation of 1e-12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.laws.amplification import AmplificationLaw, AtomicLaw
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.errors import require_integer, require_real

CLOSED_FORM_INFLATION = 1.0 + 1e-12
"""Covers the round-off of closed formulas, a few units in the last place."""


@dataclass(frozen=True)
class BlanketMoments:
    """What the moment bounds know of the amplification variable L at one epsilon.

    `gamma` blanket mass; L lies in [lower, upper]; `second` >= E[L^2], *uncentred*; `exposed` is
    the divergence outside the blanket, added as it stands.
    """

    gamma: float
    lower: float
    upper: float
    second: float
    exposed: float = 0.0

    @classmethod
    def generic(cls, epsilon0: float, epsilon: float) -> BlanketMoments:
        """For any pure eps0-randomizer shared by all clients.

        The blanket is the law of the differing client's second report, which every report law
        contains with mass e^-eps0. Then L = P/Q - e^eps with P/Q in [e^-eps0, e^eps0] and mean one,
        so the variance is at most (e^eps0 - 1)(1 - e^-eps0).
        """
        gain, loss = math.expm1(epsilon0), -math.expm1(-epsilon0)
        return cls(
            gamma=math.exp(-epsilon0),
            lower=math.exp(-epsilon0) - math.exp(epsilon),
            upper=math.exp(epsilon) * math.expm1(epsilon0 - epsilon),
            second=gain * loss + math.expm1(epsilon) ** 2,
        )

    @classmethod
    def of_law(cls, law: AmplificationLaw, gamma: float, exposed: float = 0.0) -> BlanketMoments:
        """From the law itself. Without atoms, L is spread to a grid with its mean kept, which can
        only raise the second moment."""
        if isinstance(law, AtomicLaw):
            second = math.fsum((law.probabilities * law.values**2).tolist())
            return cls(gamma, law.lower, law.upper, second * CLOSED_FORM_INFLATION, exposed)
        grid = np.linspace(law.lower, law.upper, 4001)
        step = grid[1] - grid[0]
        excess = law.stop_loss(grid)
        # E f(L) for the chord function of t^2: value at the left end, slope, then one kink a node.
        second = grid[0] ** 2 + (grid[0] + grid[1]) * (law.mean - grid[0])
        second += 2.0 * step * float(excess[1:-1].sum())
        return cls(gamma, law.lower, law.upper, second * (1.0 + 1e-9), exposed)


def hoeffding_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Balle et al. 2019, Lemma 5.3, with Hoeffding's tail, averaged exactly over Bin(n, gamma).

    With a = e^eps - 1 and b the length of L's range: E(sum of m L)_+ <= (b^2/4a) e^(-2 m a^2/b^2).
    """
    n = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS)
    drift = math.expm1(require_real("epsilon", epsilon, minimum=0.0, maximum=2 * MAX_EPSILON0))
    span = moments.upper - moments.lower
    if drift == 0.0:
        return 1.0
    if moments.upper <= 0.0:
        return min(1.0, moments.exposed)
    rate = 2.0 * (drift / span) ** 2
    return _averaged(span * span / (4.0 * drift), rate, moments, n)


def bennett_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Balle et al. 2019, Lemma 5.3, with Bennett's tail, averaged exactly over Bin(n, gamma).

    With a = e^eps - 1, b = max L, c >= E[L^2] (*uncentred*: the variance would give a number below
    the truth) and phi(u) = (1 + u) ln(1 + u) - u:
    E(sum of m L)_+ <= b / ln(1 + a b/c) e^(-m c phi(a b/c) / b^2).
    """
    n = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS)
    drift = math.expm1(require_real("epsilon", epsilon, minimum=0.0, maximum=2 * MAX_EPSILON0))
    top, second = moments.upper, moments.second
    if drift == 0.0:
        return 1.0
    if top <= 0.0:
        return min(1.0, moments.exposed)
    u = drift * top / second
    log = math.log1p(u)
    phi = (1.0 + u) * log - u if u > 1e-4 else 0.5 * u * u * (1.0 - u / 3.0)
    return _averaged(top / log, second / top**2 * phi, moments, n)


def _averaged(front: float, rate: float, moments: BlanketMoments, n: int) -> float:
    """(1/(gamma n)) E[front e^(-rate M) 1{M >= 1}], M ~ Bin(n, gamma), plus what is exposed."""
    gamma = moments.gamma
    some = n * math.log1p(gamma * math.expm1(-rate))
    none = n * math.log1p(-gamma) if gamma < 1.0 else -math.inf
    if none > -30.0:
        # exp(some) - exp(none) would cancel when few reports come from the blanket.
        hit = math.exp(none) * math.expm1(n * math.log1p(gamma * math.exp(-rate) / (1.0 - gamma)))
    else:
        hit = math.exp(some)
    return min(1.0, front / (gamma * n) * hit * (1.0 + 1e-9) + moments.exposed)


def safe_log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
