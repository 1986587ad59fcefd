"""Audits of runs with pooled noise: no report is attacked, and wrong noise is caught."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import fl_shuffle.auditing.canaries
from fl_shuffle.auditing.audit import NO_REPORTS, audit_configuration
from fl_shuffle.auditing.checks import ONE_LAW
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import AuditReport
from fl_shuffle.auditing.games import ABSENT_SUMS, SUMS
from fl_shuffle.auditing.published import NEIGHBOURS, audit_published
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from tests.auditing.audit_settings import QUICK, config


def audited(randomizer: str = "gaussian", trials: int = 1000) -> AuditReport:
    given = config(
        run={"noise": "pooled", "rounds": 3},
        privacy={"randomizer": randomizer},
        budgets={"distribution": "uniform", "low": 0.5, "high": 3.0},
        server={"weights": "inverse-variance"},
    )
    settings = dataclasses.replace(QUICK, trials=trials)
    return audit_configuration("pooled", given, settings, dimension=60)


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_the_sums_of_rounds_are_attacked_and_nothing_else(randomizer: str) -> None:
    report = audited(randomizer, trials=200)
    assert not report.breaks_proven
    assert NO_REPORTS in report.notes
    assert [check.game for check in report.checks] == [ONE_LAW]
    assert {finding.game for finding in report.findings} == {SUMS, ABSENT_SUMS}


@pytest.mark.parametrize("factor", [0.9, 1e-3])
def test_noise_of_another_law_is_refuted(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mutant(AggregateNoise):
        def __init__(self, noise: str, scale: np.ndarray, step: np.ndarray) -> None:
            super().__init__(noise, factor * scale, step)

    monkeypatch.setattr(fl_shuffle.auditing.canaries, "AggregateNoise", Mutant)
    report = audited()
    assert report.breaks_proven
    assert report.checks[0].refuted
    if factor < 0.01:
        # The sum itself gives the target away.
        assert any(finding.breaks_proven for finding in report.findings)


def test_nothing_is_published_beside_the_sums() -> None:
    given = config(12, run={"noise": "pooled"}, privacy={"unit": "record"})
    found = audit_published(given, Clock(600.0), NEIGHBOURS[:3:2])
    assert len(found.neighbours) == 2 and found.messages > 0
    assert found.differences == ()
