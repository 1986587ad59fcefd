"""The blanket bound for vectors with Laplace noise of scale b, means in l1 balls.

Client 1's mean report moves from x0 to x1. Let r be any reference point, s >= |x_b - r| and
rho_j >= |x_j - r| for every mean x_j another client may have. With one noise law for all,

    delta(eps) <= E[L_1 1{L_1 + sum_j B_j L_j > 0}],   B_j ~ Bernoulli(e^(-rho_j / b)),

L the law of the opposite pair at distance s from the blanket's centre. The dimension does not
enter. The bound is symmetric: it covers both directions. docs/proofs.md, section 5; clients that
may be absent in secret: `participation`.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bounds.one_round import Theorem
from fl_shuffle.accounting.bounds.participation import hidden_delta
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.reports import RoundType

RELATIVE_ERROR = 5e-4
"""Asked of the engine, relative to delta ..."""
DEAR_ERROR = 0.02
"""... and where few terms of a heavy tail make it dear: far below 1% of epsilon."""
HEAVY_TAIL_DISTANCE, FEW_REPORTS = 0.4, 200.0
"""That is from so many noise widths on, with fewer blanket reports than this."""
LEAST_REPORTS, LEAST_REPORTS_FAR = 0.1, 3.0
"""With fewer expected blanket reports nothing is computed: it gains little. Far out it is slow."""
NEAR_REFERENCE = 0.3
"""What is not far out, in noise widths."""
MAX_EXPONENT = 500.0
"""Larger exponents of the amplification law would overflow."""


def laplace_blanket(batch: RoundType) -> Theorem | None:
    """The bound for one client of a batch, in which clients may be absent in secret.

    None where it is not expected to say more than the local curve.
    """
    move, radius, radii, counts = batch.in_widths
    rate = batch.participation

    def scale(own: float, reach: FloatArray) -> tuple[float, float, FloatArray]:
        """The deviation of L over the root of the number of blanket reports, and what it is for."""
        masses = np.exp(-reach)
        c = min(own, 15.0)
        variance = (math.expm1(3.0 * c) / 3.0) - 2.0 * math.expm1(c) - math.expm1(-c)
        variance = (variance + math.exp(-c) * math.expm1(2.0 * c) ** 2) * math.exp(-2.0 * c)
        return math.sqrt(rate * variance / (1.0 + float(masses @ counts))), own, masses

    # Two reference points: the balls' centre, and the middle between the client's two means.
    mu, own, masses = min(
        (scale(radius, radii), scale(0.5 * move, radii + radius)), key=lambda place: place[0]
    )
    reports = float(masses @ counts)
    if move == 0.0 or reports < (LEAST_REPORTS if own < NEAR_REFERENCE else LEAST_REPORTS_FAR):
        return None
    dear = own > HEAVY_TAIL_DISTANCE and reports < FEW_REPORTS
    blanket = list(zip(masses.tolist(), counts.tolist(), strict=True))

    def delta(epsilon: float) -> float:
        if epsilon > MAX_EXPONENT:
            return math.inf
        error = DEAR_ERROR if dear else RELATIVE_ERROR
        return hidden_delta(LaplaceLaw(own, epsilon), blanket, rate, epsilon, error).delta

    return Theorem(delta, mu)
