"""Numbers the sharper theorem reaches, between what an attack reaches and what is asked of it."""

from __future__ import annotations

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.reports import ReportClass, RoundType

DELTA = 1e-6


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
