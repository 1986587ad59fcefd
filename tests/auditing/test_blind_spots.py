"""A whole audit sees what it once could not see; `tests/mutants.toml` has a fault for each.

Clients of many kinds and weights, rounds that the accountant must all count, absent clients, noise
that occurs again at other coordinates or at a few.
"""

from __future__ import annotations

from fl_shuffle.auditing.audit import audit_configuration
from fl_shuffle.auditing.effort import AuditSettings
from tests.auditing.audit_settings import config

WEIGHTED = config(
    30, run={"rounds": 5}, data={"source": "digits"}, privacy={"clip_norm": 0.5},
    budgets={"distribution": "uniform", "low": 1.0, "high": 6.0},
    server={"weights": "inverse-variance"},
)  # fmt: skip


def test_an_audit_of_weighted_clients_over_rounds() -> None:
    how = AuditSettings(trials=400, reports=60_000, seconds=600.0)
    report = audit_configuration("weighted", WEIGHTED, how)
    assert [found.game for found in report.findings if found.breaks_proven] == []
    assert [check.game for check in report.checks if check.refuted] == []
    assert not report.breaks_proven
    games = [found.game for found in report.findings]
    # Six kinds of clients, the least and the most weighted among them.
    assert sum(game.startswith("one report of a client at") for game in games) == 6
    rounds = {found.rounds for found in report.findings if "several rounds" in found.game}
    assert rounds == {1, 5}
    assert any("others absent" in game for game in games)
    assert any("any two places" in check.game for check in report.checks)
    for found in report.findings:
        assert all(point.proven_epsilon is not None for point in found.points)
