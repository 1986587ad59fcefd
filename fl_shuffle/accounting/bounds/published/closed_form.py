"""Amplification bounds in closed form, for one pure local budget shared by all clients.

Relation replace-one, units nats, n = number of reports. Every function returns an upper bound and
raises `NotApplicableError` naming the condition that failed. Round-off is a few units in the last
place and is covered by a relative inflation of 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds.blanket_moments import (
    CLOSED_FORM_INFLATION,
    safe_log,
)
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.errors import NotApplicableError, require_integer, require_open_unit, require_real


def _inputs(epsilon0: float, clients: int, delta: float) -> tuple[float, int, float]:
    return (
        require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0),
        require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS),
        require_open_unit("delta", delta),
    )


def erlingsson2019_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """12 eps0 sqrt(ln(1/delta)/n): Erlingsson et al. 2019 (one report per client).

    Requires n >= 1000, 0 < eps0 < 1/2 and delta < 1/100.
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    _require(n >= 1000, f"erlingsson2019 needs clients >= 1000, got {n}")
    _require(0.0 < budget < 0.5, f"erlingsson2019 needs 0 < epsilon0 < 0.5, got {budget:g}")
    _require(target < 0.01, f"erlingsson2019 needs delta < 0.01, got {target:g}")
    return CLOSED_FORM_INFLATION * 12.0 * budget * math.sqrt(math.log(1.0 / target) / n)


def feldman2022_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Feldman, McMillan and Talwar 2022, Theorem 3.1: the standard clone in closed form.

    ln(1 + tanh(eps0/2) (8 sqrt(e^eps0 ln(4/delta)/n) + 8 e^eps0/n)), provided
    eps0 <= ln(n / (16 ln(2/delta))).
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    limit = n / (16.0 * math.log(2.0 / target))
    _require(
        limit > 1.0 and budget <= math.log(limit),
        f"feldman2022 needs epsilon0 <= ln(n / (16 ln(2/delta))) = {safe_log(limit):.4g} at "
        f"n = {n}, delta = {target:g}, got epsilon0 = {budget:g}",
    )
    high = math.exp(budget)
    spread = 8.0 * math.sqrt(high * math.log(4.0 / target) / n) + 8.0 * high / n
    return CLOSED_FORM_INFLATION * math.log1p(math.tanh(0.5 * budget) * spread)


def feldman2023_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Feldman, McMillan and Talwar 2023, closed form, for randomizers that allow its reduction.

    ln(1 + (e^eps0 - 1) (4 sqrt(2 ln(4/delta)) / sqrt((e^eps0 + 1) n) + 4/n)), provided
    eps0 <= ln(n / (8 ln(2/delta)) - 1). The general proof is withdrawn by its authors' erratum;
    it stands where every report law is at least (R(x0) + R(x1)) / (e^eps0 + 1), which the caller
    checks.
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    limit = n / (8.0 * math.log(2.0 / target)) - 1.0
    _require(
        limit > 1.0 and budget <= math.log(limit),
        f"feldman2023 needs epsilon0 <= ln(n / (8 ln(2/delta)) - 1) = {safe_log(limit):.4g} at "
        f"n = {n}, delta = {target:g}, got epsilon0 = {budget:g}",
    )
    root = math.sqrt((math.exp(budget) + 1.0) * n)
    spread = 4.0 * math.sqrt(2.0 * math.log(4.0 / target)) / root + 4.0 / n
    return CLOSED_FORM_INFLATION * math.log1p(math.expm1(budget) * spread)


def smallest_delta(bound: Callable[[float], float], epsilon: float) -> float:
    """The smallest delta found in [1e-300, 1) with bound(delta) <= `epsilon`; rounded up.

    `bound` maps delta to epsilon, decreasing, and may refuse (`NotApplicableError`) below some
    delta. Raises `NotApplicableError` when even delta near one does not reach `epsilon`; the reason
    given is the bound's own if it refuses everywhere.
    """
    refusal: list[NotApplicableError] = []

    def holds(log_delta: float) -> bool:
        try:
            return bound(math.exp(log_delta)) <= epsilon
        except NotApplicableError as error:
            refusal[:] = [error]
            return False

    good, bad = math.log1p(-1e-9), math.log(1e-300)
    if not holds(good):
        # A condition such as delta < 1/100 may exclude the top end: look below it once.
        good = math.log(0.01 * (1.0 - 1e-9))
        if not holds(good):
            if refusal:
                raise refusal[0]
            raise NotApplicableError(
                f"this closed form gives no delta below one at epsilon = {epsilon:g}; "
                "ask for a larger epsilon, or use the method blanket or clone"
            )
    if holds(bad):
        return 1e-300
    return math.exp(bisected(holds, good, bad, 1e-10)[0])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise NotApplicableError(message)
