"""GSPA of Chen, Cao and Ge (AAAI 2024): personal local budgets in the shuffle model, as published.

Their reduction turns client i into randomized response with budget eps_i, hidden by clients j that
send a fair coin between its two answers with probability p_j = 2 (1 - delta_j)/(1 + e^eps_j); a
central limit theorem makes a Gaussian-DP parameter of it (Theorem 2), which drops the factor
tanh(eps_i/2) of the differing client's own noise. Not proven, and refuted for equal binary
randomized response (docs/research/errata.md). Replace-one; units nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets, client_count
from fl_shuffle.errors import NotApplicableError, require_integer


def gspa_shares(epsilon0: ArrayLike, delta0: ArrayLike) -> FloatArray:
    """Return (1 - delta_i)/(1 + e^eps_i): half of each client's clone probability.

    Parameters
    ----------
    epsilon0, delta0 : array_like, shape (classes,)
        Local budgets; epsilon in nats.

    Returns
    -------
    ndarray, shape (classes,)
        The summands of Theorem 2.
    """
    result: FloatArray = (1.0 - np.asarray(delta0)) * expit(-np.asarray(epsilon0, np.float64))
    return result


def gspa_rest(shares: FloatArray, counts: ArrayLike) -> float:
    """Return sum_i s_i - max_i s_i over `counts` clients of each share.

    A client of the largest share is taken out by its count: a subtraction would cancel.

    Parameters
    ----------
    shares : ndarray, shape (classes,)
        As `gspa_shares` returns them.
    counts : array_like of int, shape (classes,)
        Number of clients of each class.

    Returns
    -------
    float
        0 for a single client.
    """
    # A copy: the caller keeps its counts.
    others = np.array(counts)
    there = np.flatnonzero(others)
    if there.size:
        others[there[np.argmax(shares[there])]] -= 1
    return float(shares @ others)


def gspa_mu(budgets: Sequence[LocalBudget], *, rounds: int = 1) -> float:
    """Return the published Gaussian-DP parameter sqrt(2 / (sum_i s_i - max_i s_i)).

    Parameters
    ----------
    budgets : sequence of LocalBudget
        Local budgets of all clients.
    rounds : int, default 1
        Number T of rounds; multiplies the parameter by sqrt(T) (composition of Gaussian DP).

    Returns
    -------
    float
        mu, with s_i = (1 - delta_i)/(1 + e^eps_i).

    Raises
    ------
    NotApplicableError
        For a single client, where the sum is empty.

    Notes
    -----
    Source: Chen, Cao, Ge (AAAI 2024), Theorem 2, as published: not proven, and refuted for equal
    binary randomized response (docs/research/errata.md). Neighbors: replace-one.
    """
    classes = check_budgets(budgets)
    repeated = require_integer("rounds", rounds, minimum=1)
    if client_count(classes) < 2:
        raise NotApplicableError("gspa needs at least two clients: the sum of the others is empty")
    rest = gspa_rest(_shares(classes), [budget.count for budget in classes])
    if rest <= 0.0:
        raise NotApplicableError("gspa: no other client contributes; every delta0 is one")
    # mu_i^2 add up over rounds (Dong, Roth, Su 2022), so T equal rounds multiply mu by sqrt(T).
    return math.sqrt(2.0 * repeated / rest)


def _shares(budgets: Sequence[LocalBudget]) -> FloatArray:
    return gspa_shares([each.epsilon0 for each in budgets], [each.delta0 for each in budgets])
