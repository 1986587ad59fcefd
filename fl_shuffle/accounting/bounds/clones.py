"""The clone reductions, solved at finite n by the same engine as the blanket bounds.

If every other client's report is, with probability p_j, a fair coin between the differing client's
two report laws (a *clone*), and the differing client holds an eps1-randomizer, then the shuffle is
no more revealing than: randomized response of eps1 hidden among Bin or Poisson-binomial many fair
coins (Feldman, McMillan and Talwar 2022, the standard clone; with unequal p_j by the same argument,
since the set of clients that cloned is independent of the coins). In blanket form the common law is
omega = (P + Q)/2 and

    L = 2 (e^eps1 - e^eps)/(1 + e^eps1)  or  2 (1 - e^(eps + eps1))/(1 + e^eps1), 1/2 each.

Replace-one, nats, both directions (the pair is symmetric).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from fl_shuffle.accounting.bounds.participation import require_participation
from fl_shuffle.accounting.bounds.worst_client import hidden_curve
from fl_shuffle.accounting.engine.monotone_search import Point, solve
from fl_shuffle.accounting.engine.stop_loss import Curve, DeltaBound
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.errors import require_integer, require_real


def clone_law(epsilon0: float, epsilon: float) -> AtomicLaw:
    """L of the pair of randomized responses against their average, at central budget `epsilon`."""
    share = 2.0 / (1.0 + math.exp(-epsilon0))
    top = -share * math.expm1(epsilon - epsilon0)
    bottom = -share * math.exp(-epsilon0) * math.expm1(epsilon + epsilon0)
    return AtomicLaw.of([top, bottom], [0.5, 0.5])


def clone_curve(epsilon0: float, hiding: Sequence[tuple[float, int]], **setting: Any) -> Curve:
    """delta(epsilon) of an eps0-client among others that clone with the given probabilities.

    `hiding` lists (clone probability, count) of the other clients; `setting`: see `hidden_curve`.
    """
    budget = require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
    return hidden_curve(budget, partial(clone_law, budget), hiding, **setting)


def delta0_penalty(epsilon: float, epsilon0: float, delta0: float, clients: int) -> float:
    """What Theorem 3.8 of Feldman, McMillan and Talwar 2022 adds for (eps0, delta0)-randomizers.

    (e^eps + 1)(1 + e^-eps0/2) n delta0: each report is within (1 + e^-eps0/2) delta0 in total
    variation of a pure one, and both worlds are moved.
    """
    return (
        math.exp(epsilon)
        * (1.0 + math.exp(-epsilon))
        * (1.0 + 0.5 * math.exp(-epsilon0))
        * clients
        * delta0
    )


def local_delta(epsilon: float, epsilon0: float, delta0: float) -> float:
    """The largest delta(epsilon) an (eps0, delta0)-DP mechanism can have, rounded up.

    delta0 + (1 - delta0)(e^eps0 - e^eps)_+/(1 + e^eps0): Kairouz, Oh and Viswanath 2015.
    """
    gap = max(0.0, -math.expm1(epsilon - epsilon0)) / (1.0 + math.exp(-epsilon0))
    return min(1.0, (delta0 + (1.0 - delta0) * gap) * (1.0 + 1e-12))


def standard_clone_curve(
    epsilon0: float,
    clients: int,
    *,
    delta0: float = 0.0,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Curve:
    """The standard clone bound on delta(epsilon), proven.

    Holds for every randomizer that is (epsilon0, delta0)-DP, shared by all `clients`. With
    delta0 > 0 the penalty of Theorem 3.8 is added and the local profile is a ceiling.
    `participation`: see `hidden_curve`.
    """
    n = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS)
    local = require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
    extra = require_real("delta0", delta0, minimum=0.0, maximum=1.0, exclusive_maximum=True)
    rate = require_participation(participation)
    pure = clone_curve(
        local,
        [(math.exp(-local), n - 1)],
        participation=rate,
        relative_error=relative_error,
    )

    def curve(eps: float) -> DeltaBound:
        bound = pure(eps)
        if extra == 0.0:
            return bound
        total = bound.delta + delta0_penalty(eps, local, extra, n)
        ceiling = local_delta(eps, local, extra)
        return DeltaBound(min(total, ceiling), bound.error if total < ceiling else 0.0)

    return curve


def standard_clone(
    epsilon0: float,
    clients: int,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    delta0: float = 0.0,
) -> Point:
    """What `standard_clone_curve` says at one of `epsilon` and `delta`; epsilon is infinite when
    nothing gets below `delta`."""
    curve = standard_clone_curve(epsilon0, clients, delta0=delta0)
    return solve(curve, epsilon0, epsilon=epsilon, delta=delta)
