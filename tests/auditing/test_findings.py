"""What an audit concludes from its counts, and the settings it refuses."""

from __future__ import annotations

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.findings import Finding, Point
from tests.auditing.audit_settings import config, played


def finding(*points: Point) -> Finding:
    return Finding("g", "m", 1, 10, points, 3.0)


def test_verdicts() -> None:
    quiet = finding(Point(1e-5, 0.1, 0.5, 0.4), Point(0.1, 0.0, 0.0, 0.0))
    assert quiet.verdict == "does not contradict the proven bound"
    loud = finding(Point(1e-5, 0.1, 0.5, 0.4), Point(0.1, 0.3, 0.5, 0.2))
    assert loud.verdict == "breaks the published mu"
    assert loud.witness.delta == 0.1
    assert finding(Point(1e-5, 0.6, 0.5, None)).verdict.startswith("CONTRADICTS THE PROVEN BOUND")
    assert not finding(Point(1e-5, 0.6, None, None)).breaks_proven
    assert not finding(Point(1e-5, 0.5, 0.5, 0.5)).breaks_published


def test_a_claim_that_is_too_small_is_contradicted() -> None:
    """The accountant's own number divided by two: an accountant that wrong is found out."""
    settings = config(8, privacy={"randomizer": "laplace"}, budgets={"delta": 0.0})
    canaries = Canaries(settings, dimension=3)

    class Wrong(Claims):
        def __call__(self, column: str, rounds: int, delta: float) -> float | None:
            found = super().__call__(column, rounds, delta)
            assert found is not None
            return 0.5 * found if column == "local" else found

    report = played(settings, canaries, Wrong(settings, *canaries.claimant))
    assert report.findings[0].breaks_proven
