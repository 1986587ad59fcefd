"""The Echo bound of Liu et al. 2023 for personal budgets with clipped Laplace noise, as published.

A report of client i looks like ("echoes") one of client j with probability

    p_ij = (eps_i/eps_j) (1 - e^-eps_j)/(1 - e^-eps_i) e^(-max(eps_i, eps_j)),

S sums over i the average of p_ij over j, and with eps_1 the largest budget the central budget is
ln(1 + tanh(eps_1/2) (8 sqrt(ln(4/delta)/S) + 8/S)) when S >= 16 ln(4/delta), else eps_1.

The average over j is not a worst case over the differing client, so the number is printed as
published and never as a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.errors import NotApplicableError, require_open_unit


def echo_sum(budgets: Sequence[LocalBudget]) -> float:
    """S: the expected number of echoes, one client of the largest budget left out."""
    classes = check_budgets(budgets)
    if any(budget.delta0 > 0.0 for budget in classes):
        raise NotApplicableError("echo is stated for pure local budgets: every delta0 must be 0")
    if any(budget.epsilon0 <= 0.0 for budget in classes):
        raise NotApplicableError(
            "echo divides by each budget: every epsilon0 must be > 0 (it degenerates near zero)"
        )
    eps = np.array([budget.epsilon0 for budget in classes])
    count = np.array([float(budget.count) for budget in classes])
    scale = eps / -np.expm1(-eps)
    # Budgets are sorted: max(eps_i, eps_j) is eps_i for j <= i and eps_j after it.
    below = np.cumsum(count / scale)
    above = np.cumsum((count * np.exp(-eps) / scale)[::-1])[::-1]
    average = scale * (np.exp(-eps) * below + np.append(above[1:], 0.0)) / count.sum()
    others = count.copy()
    others[int(np.argmax(eps))] -= 1.0
    return float(average @ others)


def echo_epsilon(budgets: Sequence[LocalBudget], delta: float) -> float:
    """The published central epsilon at `delta`, for the client with the largest budget."""
    target = require_open_unit("delta", delta)
    total = echo_sum(budgets)
    top = max(budget.epsilon0 for budget in budgets)
    need = math.log(4.0 / target)
    if total < 16.0 * need:
        return top
    return math.log1p(math.tanh(0.5 * top) * (8.0 * math.sqrt(need / total) + 8.0 / total))
