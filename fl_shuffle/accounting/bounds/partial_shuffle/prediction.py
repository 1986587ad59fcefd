"""What the bound will come to, and where to cut L: decides the free parameters, proves nothing."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES

RATES = np.geomspace(0.03, 1.6, 28)
"""Candidates for the tilt in units of drift/variance; the least estimate is taken."""
THIRD_ORDER = 0.5 * math.e
"""min over q of E(q + S)_+^2 / (4q) as a multiple of E(S)_+, for an exponential tail."""


_BELOW = -np.geomspace(0.1 * TOLERANCES.prediction_first_node, 1.0, TOLERANCES.prediction_nodes)[
    ::-1
]
"""Nodes below zero, in units of the law's lower end."""


class _Law(Protocol):
    @property
    def upper(self) -> float: ...

    @property
    def lower(self) -> float: ...

    @property
    def mean(self) -> float: ...

    def stop_loss(self, t: FloatArray) -> FloatArray: ...


def predict(law: _Law, count: int, variance: float) -> tuple[float, float]:
    """(K, delta): the cut with the least saddle-point estimate plus E(L - K)_+, and that sum.

    log E e^(rate L) comes from the stop-loss transform, its second moment set to `variance`.
    """
    first = TOLERANCES.prediction_first_node
    above = np.geomspace(
        first * min(math.sqrt(variance), 0.5 * law.upper), law.upper, TOLERANCES.prediction_nodes
    )
    below = _BELOW * abs(law.lower)
    tops = np.maximum(law.stop_loss(above), 0.0)
    bottoms = np.maximum(law.stop_loss(below) - law.mean + below, 0.0)
    whole = 2.0 * float(np.trapezoid(tops, above) + np.trapezoid(bottoms, below)) - law.mean**2
    drift = max(-law.mean, 1.0 / math.sqrt(count / variance))
    rates = (RATES * drift / variance)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        grown = np.exp(np.minimum(rates * above, TOLERANCES.prediction_max_exponent))
        pieces = 0.5 * (grown[:, 1:] * tops[1:] + grown[:, :-1] * tops[:-1]) * np.diff(above)
        body = np.cumsum(pieces, axis=1) - tops[1:] * (grown[:, 1:] - 1.0) / rates
        shrunk = np.trapezoid(np.exp(rates * below) * bottoms, below, axis=1)[:, None]
        rise = rates * law.mean + rates**2 * (body + shrunk + 0.5 * min(variance - whole, 0.0))
        logs = count * np.log1p(np.maximum(rise, -0.9)) - 2.0 * np.log(rates)
        logs = np.where(np.isfinite(logs), logs, math.inf)
    spread = 2.0 * math.pi * (count * variance + 2.0 / rates[:, 0] ** 2)
    logs -= 0.5 * np.log(spread)[:, None] + math.log(count)
    main = np.exp(np.minimum(np.min(logs, axis=0), 0.0))
    # A cut so far out that nothing is left would only unbalance the numbers.
    total = np.where(
        tops[1:] >= TOLERANCES.prediction_smallest_tail, THIRD_ORDER * main + tops[1:], math.inf
    )
    best = int(np.argmin(total))
    return float(above[1:][best]), min(max(float(total[best]), TOLERANCES.prediction_smallest), 1.0)
