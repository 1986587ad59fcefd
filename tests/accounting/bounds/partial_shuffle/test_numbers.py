"""Numbers the sharper theorem reaches, between what an attack reaches and what is asked of it."""

from __future__ import annotations

import math
from itertools import pairwise

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.reports import ReportClass, RoundType

DELTA = 1e-6
CLASSICAL = math.sqrt(2.0 * math.log(1.25e5))


def client_curve(epsilon0: float, clients: int) -> VectorCurve:
    mu = epsilon0 / CLASSICAL
    return VectorCurve(RoundType.of([ReportClass("gaussian", 1.0, 0.5 * mu, mu, clients)]))


def test_curves_fall_with_epsilon_and_with_clients() -> None:
    for epsilon0, clients in [(0.5, 200), (2.0, 3000), (4.0, 50_000)]:
        curve, larger = client_curve(epsilon0, clients), client_curve(epsilon0, 2 * clients)
        grid = [step * curve.predicted_mu for step in (0.0, 0.3, 1.0, 2.5, 4.0, 6.0)]
        values = [curve.delta(epsilon) for epsilon in grid]
        assert all(late <= early for early, late in pairwise(values))
        assert all(
            larger.delta(epsilon) < value for epsilon, value in zip(grid, values, strict=True)
        )
        assert all(
            value <= curve.local_delta(epsilon) for epsilon, value in zip(grid, values, strict=True)
        )


def test_the_widest_others_are_left_out_where_that_pays() -> None:
    own = ReportClass("gaussian", 1.0, 0.2, 0.4, 2000)
    alone = VectorCurve(RoundType.of([own])).epsilon(DELTA)
    among = VectorCurve(RoundType.of([own, ReportClass("gaussian", 1.0, 1.2, 2.4, 300)])).epsilon(
        DELTA
    )
    near = VectorCurve(RoundType.of([own, ReportClass("gaussian", 1.0, 0.25, 0.5, 2000)])).epsilon(
        DELTA
    )
    assert among <= alone * 1.003
    assert near < 0.85 * alone
