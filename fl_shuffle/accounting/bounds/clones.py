"""The clone reductions, solved at finite n as the blanket bounds are.

Source: docs/research/proofs, section 2.

If every other client's report is, with probability p_j, a fair coin between the differing client's
two report distributions (a *clone*), and the differing client holds an eps1-randomizer, then the
shuffle is no more revealing than: randomized response of eps1 hidden among Bin or Poisson-binomial
many fair coins (Feldman, McMillan and Talwar 2022, the standard clone; with unequal p_j by the same
argument, since the set of clients that cloned is independent of the coins). In blanket form the
common distribution is omega = (P + Q)/2 and

    L = 2 (e^eps1 - e^eps)/(1 + e^eps1)  or  2 (1 - e^(eps + eps1))/(1 + e^eps1), 1/2 each.

Replace-one, nats, both directions (the pair is symmetric).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from fl_shuffle.accounting.bounds.participation import require_participation
from fl_shuffle.accounting.bounds.worst_client import hidden_curve
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.accounting.numerics.monotone_search import CurvePoint, solve
from fl_shuffle.accounting.numerics.stop_loss import DeltaCurve
from fl_shuffle.errors import require_integer, require_real


def clone_law(epsilon0: float, epsilon: float) -> AtomicDistribution:
    """Return the distribution of L of two randomized responses against their average.

    Parameters
    ----------
    epsilon0 : float
        Local budget, in nats.
    epsilon : float
        Central budget, in nats.

    Returns
    -------
    AtomicDistribution
        Two atoms, probability 1/2 each: see the module.
    """
    # On the first answer P/omega = 2 e^eps1/(1 + e^eps1) and Q/omega = 2/(1 + e^eps1), on the
    # second one the reverse. L = P/omega - e^eps Q/omega, written so that nothing cancels where
    # eps is near eps1.
    share = 2.0 / (1.0 + math.exp(-epsilon0))
    top = -share * math.expm1(epsilon - epsilon0)
    bottom = -share * math.exp(-epsilon0) * math.expm1(epsilon + epsilon0)
    return AtomicDistribution.of([top, bottom], [0.5, 0.5])


def clone_curve(
    epsilon0: float, hiding: Sequence[tuple[float, int]], *, participation: float = 1.0
) -> DeltaCurve:
    """Return delta(epsilon) of an eps0-client among others that clone with given probabilities.

    Parameters
    ----------
    epsilon0 : float
        Local budget of the client, in nats.
    hiding : sequence of (float, int)
        (clone probability, count) of the other clients.
    participation : float, default 1.0
        As for `hidden_curve`.

    Returns
    -------
    DeltaCurve
        delta at every epsilon >= 0 (nats).

    Notes
    -----
    Statement: see the module. Source: Feldman, McMillan, Talwar (2022), the standard clone;
    docs/research/proofs, section 2. Neighbors: replace-one, both directions. Direction of error:
    all errors are added to delta.
    """
    budget = require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
    return hidden_curve(budget, partial(clone_law, budget), hiding, participation=participation)


def standard_clone_curve(
    epsilon0: float, clients: int, *, participation: float = 1.0
) -> DeltaCurve:
    """Return the standard clone bound on delta(epsilon), proven.

    Parameters
    ----------
    epsilon0 : float
        Local budget of all clients, in nats.
    clients : int
        Number of reports, at least 1.
    participation : float, default 1.0
        As for `hidden_curve`.

    Returns
    -------
    DeltaCurve
        delta at every epsilon >= 0 (nats), for every pure `epsilon0`-randomizer that all clients
        share.

    Notes
    -----
    As for `clone_curve`.
    """
    others = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS) - 1
    local = require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
    rate = require_participation(participation)
    # Pure budget: R_j >= e^-eps0 P and R_j >= e^-eps0 Q. So R_j >= e^-eps0 (P + Q)/2: a clone
    # with probability e^-eps0. (2/(1 + e^eps0) was published for general randomizers, and
    # withdrawn: docs/research/proofs, section 12.)
    return clone_curve(local, [(math.exp(-local), others)], participation=rate)


def standard_clone(
    epsilon0: float, clients: int, *, epsilon: float | None = None, delta: float | None = None
) -> CurvePoint:
    """Return what `standard_clone_curve` says at one of `epsilon` and `delta`."""
    curve = standard_clone_curve(epsilon0, clients)
    return solve(curve, epsilon0, epsilon=epsilon, delta=delta)
