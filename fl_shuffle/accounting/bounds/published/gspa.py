"""GSPA of Chen, Cao and Ge (AAAI 2024): personal local budgets in the shuffle model.

Their reduction turns client i into randomized response with budget eps_i, hidden by clients j that
send a fair coin between its two answers with probability p_j = 2 (1 - delta_j)/(1 + e^eps_j). Two
numbers come out of it:

* `gspa_mu`: their Theorem 2, a Gaussian-DP parameter from a central limit theorem, as published;
* `gspa_exact_curve`: the same reduction solved at finite n, keeping the factor tanh(eps_i/2) that
  the differing client's own noise contributes and that the Gaussian form drops.

The reduction is proven for binary randomized response with any personal budgets and, with equal
budgets, where every report law is at least (R(x0) + R(x1))/(1 + e^eps0); not for every randomizer,
and not with delta_i > 0. Replace-one; units nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from fl_shuffle.accounting.bounds.clones import clone_law
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets, client_count
from fl_shuffle.accounting.bounds.worst_client import worst_client_curve
from fl_shuffle.accounting.engine.stop_loss import Curve
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.errors import NotApplicableError, require_integer


def gspa_shares(epsilon0: ArrayLike, delta0: ArrayLike) -> FloatArray:
    """(1 - delta_i)/(1 + e^eps_i): half the clone probabilities of clients with these budgets."""
    result: FloatArray = (1.0 - np.asarray(delta0)) * expit(-np.asarray(epsilon0, np.float64))
    return result


def gspa_rest(shares: FloatArray, counts: ArrayLike) -> float:
    """sum_i s_i - max_i s_i over `counts` clients of each share [classes], a client of the largest
    share being taken out by its count: a subtraction would cancel."""
    others = np.array(counts)
    there = np.flatnonzero(others)
    if there.size:
        others[there[np.argmax(shares[there])]] -= 1
    return float(shares @ others)


def gspa_mu(budgets: Sequence[LocalBudget], *, rounds: int = 1) -> float:
    """sqrt(2 / (sum_i s_i - max_i s_i)), s_i = (1 - delta_i)/(1 + e^eps_i), as published.

    `rounds` multiplies it by sqrt(T) (composition of Gaussian DP). Raises `NotApplicableError` for
    a single client, where the sum is empty.
    """
    classes = check_budgets(budgets)
    repeated = require_integer("rounds", rounds, minimum=1)
    if client_count(classes) < 2:
        raise NotApplicableError("gspa needs at least two clients: the sum of the others is empty")
    rest = gspa_rest(_shares(classes), [budget.count for budget in classes])
    if rest <= 0.0:
        raise NotApplicableError("gspa: no other client contributes; every delta0 is one")
    return math.sqrt(2.0 * repeated / rest)


def _shares(budgets: Sequence[LocalBudget]) -> FloatArray:
    return gspa_shares([each.epsilon0 for each in budgets], [each.delta0 for each in budgets])


def gspa_exact_curve(
    budgets: Sequence[LocalBudget], *, relative_error: float | None = None
) -> Curve:
    """The reduction at finite n for the worst client: delta(epsilon), rounded up.

    Client j hides client i with probability 2 (1 - delta_j)/(1 + e^eps_j). The chance delta_i with
    which the reduction lets client i's own report reveal nothing is not credited.
    """
    return worst_client_curve(
        budgets,
        lambda epsilon0: lambda epsilon: clone_law(epsilon0, epsilon),
        lambda own, other: 2.0 * float(_shares([other])[0]),
        relative_error=relative_error,
    )
