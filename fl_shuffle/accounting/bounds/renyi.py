"""Renyi DP of shuffled reports: the exact divergence of the clone pair, and published bounds.

The pair (Feldman, McMillan and Talwar 2022, the standard clone): with C ~ Bin(n-1, p),
A ~ Bin(C, 1/2) and D ~ Bern(e^eps0/(1 + e^eps0)), the shuffle of any pure eps0-randomizer is a
function of

    (A + D, C - A + 1 - D)   against   (A + 1 - D, C - A + D),      p = e^-eps0.

Given the total v + 1 the likelihood ratio at a ones is (w a + (1-w) b)/((1-w) a + w b) with
b = v + 1 - a and w = P(D = 1): the Renyi divergence is a plain double sum, the same in both
directions. (The pair printed in Theorem 1 of Chen, Cao and Ge 2024 shifts one world only and has
the wrong parameter of D; it is not a bound.)

Units nats; replace-one; `order` is the Renyi order, > 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, gammaln

from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.errors import InvalidValueError, require_integer, require_open_unit, require_real

FloatArray = NDArray[np.float64]
MAX_RENYI_CLIENTS = 10**9
"""The sums are not tested on larger batches: they are refused."""


def _arguments(epsilon0: float, clients: int, order: float) -> tuple[float, int, float]:
    return (
        require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0),
        require_integer("clients", clients, minimum=1, maximum=MAX_RENYI_CLIENTS),
        require_real("order", order, minimum=1.0, maximum=1e6, exclusive_minimum=True),
    )


def clone_rdp(epsilon0: float, clients: int, order: float) -> float:
    """Renyi divergence of the clone pair, rounded up; proven for every pure eps0-randomizer."""
    return float(clone_rdp_curve(epsilon0, clients, (order,))[0])


def clone_rdp_curve(epsilon0: float, clients: int, orders: Sequence[float]) -> FloatArray:
    """`clone_rdp` at several orders, sharing the sums.

    The sum over the number of clones is taken in blocks, each at its smallest number: fewer clones
    never lower the divergence. The excess is about 0.1% at most and nil for small n.
    """
    if not orders:
        raise InvalidValueError("orders", tuple(orders), "needs at least one order")
    for order in orders:
        budget, n, _ = _arguments(epsilon0, clients, order)
    lam = np.asarray(orders, dtype=np.float64)
    p = math.exp(-budget)
    ceiling = budget * (lam - 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        moment = np.zeros(lam.size)
        for v, log_weight in _clone_numbers(n - 1, p, float(ceiling.max())):
            moment += np.exp(log_weight) * _excess_moment(v, budget, lam)
        result: FloatArray = np.log1p(moment * (1.0 + 1e-9) + 1e-15) / (lam - 1.0)
    # Overflow (inf, or nan from inf times an underflowed weight) means nothing better than eps0.
    return np.minimum(budget, np.where(np.isnan(result), budget, result))


def _clone_numbers(n: int, p: float, ceiling: float) -> list[tuple[int, float]]:
    """(number of clones, log weight): a law that Bin(n, p) dominates, up to e^-60 e^-ceiling.

    Blocks of numbers are moved to their smallest; the lowest block starts where Chernoff's bound
    makes a moment of e^ceiling negligible, or at zero.
    """
    if n == 0 or p in (0.0, 1.0):
        return [(n if p == 1.0 else 0, 0.0)]
    spread = 8.0 * math.sqrt(n * p * (1.0 - p)) + 30.0
    low, high = max(0, math.floor(n * p - spread)), min(n, math.ceil(n * p + spread))
    blocks = max(16, math.ceil(16_000.0 / math.sqrt(n * p + 1.0)))
    core = np.unique(np.linspace(low, high, min(blocks, high - low) + 1).astype(np.int64))
    below = [float(bdtr(edge - 1, n, p)) if edge > 0 else 0.0 for edge in core.tolist()]
    result = []
    for i, edge in enumerate(core.tolist()):
        if edge > n * p:
            weight = float(bdtrc(edge - 1, n, p))
            if i + 1 < core.size:
                weight -= float(bdtrc(int(core[i + 1]) - 1, n, p))
        else:
            weight = (below[i + 1] if i + 1 < core.size else 1.0) - below[i]
        result.append((edge, math.log(max(weight, 0.0) + 1e-18)))
    start = low
    while start > 0:
        stop, start = start, math.floor(0.9 * start)
        log_tail = _log_lower_tail(stop - 1, n, p)
        if log_tail < -60.0 - ceiling:
            break
        result.append((start, log_tail))
    return result


def _log_lower_tail(k: int, n: int, p: float) -> float:
    """Chernoff: ln P(Bin(n, p) <= k) <= -n KL(k/n || p) for k below the mean."""
    x = k / n
    first = x * math.log(x / p) if x > 0.0 else 0.0
    return -n * (first + (1.0 - x) * (math.log1p(-x) - math.log1p(-p)))


def _excess_moment(v: int, epsilon0: float, orders: FloatArray) -> FloatArray:
    """E_Q[(P/Q)^order] - 1 given v clones (v + 1 coins); the sum leaves out at most e^-55.

    With y = a - m/2 the mass is at most e^(-2 y^2/m) and the exponent at most
    order min(eps0, (16/3) tanh(eps0/2) |y|/m) for |y| <= m/4: the window covers what is not small.
    """
    m = v + 1
    top = float(orders.max())
    need = 55.0 + math.log(m)
    slope = 16.0 / 3.0 * math.tanh(0.5 * epsilon0) * top
    reach = 0.25 * (slope + math.sqrt(slope * slope + 8.0 * m * need))
    if m < 8.0 * (need + top * epsilon0) or reach > 0.25 * m:
        reach = 0.5 * m
    a = np.arange(max(0, math.floor(0.5 * m - reach)), min(m, math.ceil(0.5 * m + reach)) + 1)
    log_mass = gammaln(m + 1.0) - gammaln(a + 1.0) - gammaln(m - a + 1.0) - m * math.log(2.0)
    mass = np.exp(log_mass)
    # Round-off of the large logarithms is common to all terms; their total is known to be one.
    mass /= mass.sum()
    w = 1.0 / (1.0 + math.exp(-epsilon0))
    x = a / m
    rest = w * math.exp(-epsilon0)
    first = np.log(2.0 * (w * x + rest * (1.0 - x)))
    second = np.log(2.0 * (rest * x + w * (1.0 - x)))
    value = np.expm1(orders[:, None] * (first - second) + second) @ mass
    result: FloatArray = np.maximum(value, 0.0) + 1e-23
    return result


def useful_orders(
    epsilon0: float,
    clients: int,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    rounds: int = 1,
) -> tuple[float, ...]:
    """Orders around the best one for the conversion; any choice is safe.

    The divergence is about slope * order with slope = tanh^2(eps0/2) 2/(n e^-eps0) a round.
    """
    n = max(clients - 1, 1)
    slope = rounds * 2.0 * math.tanh(0.5 * epsilon0) ** 2 * math.exp(epsilon0) / n + 1e-300
    if epsilon is not None:
        centre = 0.5 * epsilon / slope + 0.5
    else:
        centre = math.sqrt(-math.log(delta if delta is not None else 1e-6) / slope)
    centre = min(max(centre, 1.2), 2e4)
    factors = (0.2, 0.3, 0.42, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)
    return tuple(sorted({max(1.05, centre * factor) for factor in factors}))


def rdp_epsilon(curve: Callable[[float], float], delta: float, orders: Sequence[float]) -> float:
    """The smallest epsilon over `orders`, by the conversion of Canonne, Kamath and Steinke 2020.

    epsilon = rho + ln(1 - 1/order) - ln(order delta)/(order - 1), at least zero.
    """
    target = require_open_unit("delta", delta)
    candidates = [
        curve(lam) + math.log1p(-1.0 / lam) - (math.log(lam) + math.log(target)) / (lam - 1.0)
        for lam in orders
    ]
    return max(0.0, min(candidates))


def rdp_delta(curve: Callable[[float], float], epsilon: float, orders: Sequence[float]) -> float:
    """The smallest delta over `orders`: e^((order-1)(rho-eps)) (1 - 1/order)^order/(order - 1)."""
    budget = require_real("epsilon", epsilon, minimum=0.0)
    logs = [
        (lam - 1.0) * (curve(lam) - budget) + lam * math.log1p(-1.0 / lam) - math.log(lam - 1.0)
        for lam in orders
    ]
    return min(1.0, math.exp(min(0.0, *logs)) * (1.0 + 1e-12))


def rdp_floor_delta(divergence: float, order: float, epsilon0: float, epsilon: float) -> float:
    """A delta that must be reached at `epsilon` if the divergence is at least `divergence`.

    For a likelihood ratio R <= e^eps0 under P, with s = order - 1 >= 1:
    R^s <= e^(eps s) + K (1 - e^eps/R)_+ with K = (e^(eps0 s) - e^(eps s)) e^eps0/(e^eps0 - e^eps),
    so e^(s divergence) <= e^(eps s) + K delta. Rounded down.
    """
    s = require_real("order", order, minimum=2.0) - 1.0
    if epsilon >= epsilon0 or divergence <= epsilon:
        return 0.0
    excess = math.expm1(s * (divergence - epsilon))
    slope = math.expm1(min(s * (epsilon0 - epsilon), 700.0)) / -math.expm1(epsilon - epsilon0)
    return min(1.0, excess / slope * (1.0 - 1e-9))


def _whole(order: float, name: str) -> int:
    if order != math.floor(order) or order < 2.0:
        raise InvalidValueError("order", order, f"{name} is stated for whole orders >= 2")
    return int(order)


def _log_choose(n: int, k: float | FloatArray) -> FloatArray | float:
    result: FloatArray | float = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return result
