"""What a shuffled batch of vector reports certainly loses: exact divergences of chosen datasets.

Computed by the engine of the upper bounds, not by an attack: the other floor under them.

All other clients with the differing client's noise hold one common mean a, at the end opposite to
the client, so the batch is a blanket of mass one (Su, Cheng, Wang 2025, Theorem 5) and the
divergence is the engine's expectation with L = (P - e^eps Q)/R_a. On each cell of a partition of
the line L is replaced by its mean over the cell, which is what an attacker who sees only cells
achieves: a lower bound. The engine's error is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.vector_data_sets import (
    ATTACK_MAX_SHIFT,
    ATTACK_REACH,
    cell_probabilities,
)
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.errors import NotApplicableError, PrecisionError, require_real

FloatArray = NDArray[np.float64]

CELLS = 1500
"""Cells of the line through which the reports are seen."""
RELATIVE_ERRORS = (2e-3, 5e-2)
"""Asked of the engine, in this order, until one succeeds."""
ASSUMPTIONS = (
    "all other clients hold one common mean",
    "the dimension is large enough to tell reports with another noise scale apart",
)


def vector_lower_delta(classes: Sequence[ReportClass], index: int, epsilon: float) -> Guarantee:
    """A delta that one round certainly reaches at `epsilon` for a client of class `index`.

    Raises `NotApplicableError` if its mean moves by more than 24 noise widths: then the report
    gives itself away, and the local guarantee is the truth.
    """
    budget = require_real("epsilon", epsilon, minimum=0.0, maximum=500.0)
    kind = RoundType.of(classes, index)
    delta = max(_divergence(kind, scene, budget) for scene in scenes(kind))
    return _statement(budget, delta)


def vector_lower_epsilon(classes: Sequence[ReportClass], index: int, delta: float) -> Guarantee:
    """The largest epsilon found at which one round certainly exceeds `delta`; zero if none."""
    target = require_real(
        "delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
    kind = RoundType.of(classes, index)
    best = 0.0
    upper = VectorCurve(kind).epsilon(target)
    for scene in scenes(kind):
        if _divergence(kind, scene, best) <= target:
            continue
        good, bad = best, upper
        while bad - good > 1e-3 * bad:
            middle = 0.5 * (good + bad)
            if _divergence(kind, scene, middle) > target:
                good = middle
            else:
                bad = middle
        best = good
    return _statement(best, target)


def _statement(epsilon: float, delta: float) -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method="vector-lower",
        status=Status.LOWER_BOUND,
        source="exact divergence of a dataset",
        assumptions=ASSUMPTIONS,
    )


def scenes(kind: RoundType) -> list[tuple[float, float]]:
    """Signed distances of x0 and x1 from the others' common mean, in noise widths."""
    own = kind.radius / kind.scale
    move = kind.own.ratio
    if max(own + own, move) > 2.0 * ATTACK_MAX_SHIFT:
        raise NotApplicableError(
            "reports lie up to "
            f"{2.0 * own:.3g} noise widths apart: this one gives itself away, and the local "
            "guarantee is the truth"
        )
    smallest = min((radius for radius, _ in kind.others), default=0.0) / kind.scale
    ends = (own - move + smallest, own + smallest)
    return [ends, ends[::-1]]


def _divergence(kind: RoundType, scene: tuple[float, float], epsilon: float) -> float:
    span = ATTACK_REACH + max(abs(scene[0]), abs(scene[1]))
    edges = np.linspace(-span, span, CELLS + 1)
    base, p, q = (cell_probabilities(kind.noise, edges - at) for at in (0.0, *scene))
    kept = base > 1e-300
    values = (p[kept] - math.exp(epsilon) * q[kept]) / base[kept]
    law = AtomicLaw.of(values, base[kept] / math.fsum(base[kept].tolist()))
    others = sum(count for _, count in kind.others)
    for allowed in RELATIVE_ERRORS:
        try:
            bound = amplified_delta(law, [(1.0, others)], relative_error=allowed)
        except PrecisionError:
            continue
        return max(0.0, bound.lower * (1.0 - 1e-9))
    # Nothing could be certified, and zero is always a lower bound.
    return 0.0
