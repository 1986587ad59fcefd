"""Published Renyi bounds for shuffled reports: Girgis et al. and Chen, Cao and Ge 2024."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from fl_shuffle.accounting.bounds.renyi import _arguments, _log_choose, _whole
from fl_shuffle.errors import NotApplicableError, require_real


def girgis_upper_rdp(epsilon0: float, clients: int, order: float) -> float:
    """The smaller of two upper bounds of Girgis et al. 2021 (integer order >= 2), and eps0.

    With m = floor((n-1)/(2 e^eps0)) + 1: a series in 1/m (their finer one) and
    ln(e^(order^2 (e^eps0-1)^2/m) + e^(eps0 order - (n-1)/(8 e^eps0)))/(order-1) .
    """
    budget, n, lam = _arguments(epsilon0, clients, order)
    whole = _whole(lam, "girgis-upper")
    high, gain = math.exp(budget), math.expm1(budget)
    m = math.floor((n - 1) / (2.0 * high)) + 1
    tail = budget * whole - (n - 1) / (8.0 * high)
    simple = np.logaddexp(whole**2 * gain**2 / m, tail)
    terms = [0.0, tail]
    if gain > 0.0:
        terms.append(float(_log_choose(whole, 2)) + 2.0 * math.log(gain) - budget - math.log(m))
        ratio = 2.0 * math.log(math.expm1(2.0 * budget)) - 2.0 * budget - math.log(2.0 * m)
        i = np.arange(3, whole + 1, dtype=np.float64)
        terms.extend(
            (_log_choose(whole, i) + np.log(i) + gammaln(0.5 * i) + 0.5 * i * ratio).tolist()
        )
    series = float(np.logaddexp.reduce(np.array(terms)))
    return min(budget, min(float(simple), series) / (whole - 1) * (1.0 + 1e-12))


def girgis_lower_rdp(epsilon0: float, clients: int, order: float) -> float:
    """Girgis et al. 2021: binary randomized response reaches at least this (order >= 2).

    ln(1 + C(order, 2) (e^eps0 - 1)^2/(n e^eps0))/(order - 1).
    """
    budget, n, lam = _arguments(epsilon0, clients, order)
    whole = _whole(lam, "girgis-lower")
    gain = 4.0 * math.sinh(0.5 * budget) ** 2
    return math.log1p(0.5 * whole * (whole - 1) * gain / n) / (whole - 1) * (1.0 - 1e-12)


def chen2024_mu(epsilon0: float, clients: int) -> float:
    """2 e^(eps0/2)/sqrt(n - 1): Chen, Cao and Ge 2024, Theorem 2; asymptotic Gaussian DP."""
    budget, n, _ = _arguments(epsilon0, clients, 2.0)
    if n < 2:
        raise NotApplicableError("the asymptotic form needs at least two clients")
    return 2.0 * math.exp(0.5 * budget) / math.sqrt(n - 1)


def chen2024_rdp(epsilon0: float, clients: int, order: float) -> float:
    """2 e^eps0 order/(n - 1): Chen, Cao and Ge 2024, Corollary 2; asymptotic."""
    lam = require_real("order", order, minimum=1.0, exclusive_minimum=True)
    return 0.5 * lam * chen2024_mu(epsilon0, clients) ** 2
