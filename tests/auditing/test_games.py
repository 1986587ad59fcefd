"""The games, on the real client code: they break what is wrong, and nothing that is right.

Every audit's bounds hold with confidence 95% together, so a right claim is contradicted in at most
5% of seeds (far fewer, as the shares add up); seeds are fixed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from fl_shuffle.accounting.bounds.blanket import blanket_epsilon
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.auditing.canaries import Canaries, Scene, position_error, size_error
from fl_shuffle.auditing.effort import AuditSettings
from fl_shuffle.auditing.findings import AuditReport
from fl_shuffle.auditing.games import Claims
from fl_shuffle.configuration.sections import Config
from fl_shuffle.federation import Federation
from tests.auditing.audit_settings import QUICK, config, played

PERSONAL = {"distribution": "uniform", "low": 0.5, "high": 2.0}
LAPLACE = config(50, privacy={"randomizer": "laplace"}, budgets={"delta": 0.0})
MANY = {"source": "benchmarks.jobs:records", "features": "none", "records": 1}
PUBLISHED = {"unit": "record", "clip": "average", "calibration": "as-published"}
KINDS = {
    "gaussian": config(),
    "record": config(privacy={"unit": "record"}, data={"records": 40}),
    "laplace-record": config(
        privacy={"unit": "record", "randomizer": "laplace"}, data={"records": 5}
    ),
    "personal": config(budgets=PERSONAL),
}


def audit(
    settings: Config, *, factor: float = 1.0, dimension: int = 8, how: AuditSettings = QUICK
) -> AuditReport:
    """An audit of the right claims, with noise `factor` times too small (on a grid as fine)."""
    honest = Canaries(settings, dimension=dimension, seed=how.seed)
    if factor == 1.0:
        return played(settings, honest, how=how)
    plan = honest.plan
    weaker = dataclasses.replace(plan, scale=plan.scale / factor, step=plan.step / 64.0)
    source = Canaries(settings, dimension=dimension, seed=how.seed, plan=weaker)
    return played(settings, source, Claims(settings, honest), how)


@pytest.mark.parametrize(
    ("kind", "factor"), [*((k, 1.0) for k in KINDS), ("gaussian", 3.0), ("laplace-record", 3.0)]
)
def test_the_right_noise_is_left_alone_and_a_third_of_it_caught(kind: str, factor: float) -> None:
    report = audit(KINDS[kind], factor=factor)
    assert report.findings and report.breaks_proven == (factor > 1.0)


def test_noise_that_would_have_shown_shows() -> None:
    """A little more too small than the audit says these plays would have shown."""
    factor = audit(KINDS["gaussian"]).findings[1].noise_factor
    assert 1.0 < factor < 1.1
    found = audit(KINDS["gaussian"], factor=1.01 * factor).findings[1]
    assert found.breaks_proven and found.noise_factor < 1.0


def test_a_mix_of_budgets_breaks_the_published_mu() -> None:
    """1% of 10,000 at 2, the rest at 0.01, Laplace: the measured bound lies between what the attack
    should reach and the exact divergence, 0.917."""
    mix = {"distribution": "groups", "conservative": 0.01, "moderate": 0.01, "liberal": 2.0,
           "conservative_fraction": 0.99, "moderate_fraction": 0.0, "delta": 0.0}  # fmt: skip
    laplace = {"randomizer": "laplace"}
    settings = config(10_000, run={"rounds": 1}, data=MANY, privacy=laplace, budgets=mix)
    report = audit(settings, dimension=60, how=AuditSettings(trials=8, reports=200_000))
    points = [found.points[0] for found in report.findings if found.points[0].published_epsilon]
    best = max(points, key=lambda point: point.epsilon_lower)
    assert best.published_epsilon == pytest.approx(0.059, rel=2e-3)
    assert 0.75 < best.epsilon_lower < 0.917 * 1.003
    assert (report.breaks_published, report.breaks_proven) == (True, False)


@pytest.mark.slow
def test_record_level_noise_breaks_the_published_mu_with_many_clients() -> None:
    """Per round mu = 1/z = 0.5/4.845, whatever the number of clients: recognised by position."""
    settings = config(
        1000, run={"rounds": 50}, data={**MANY, "records": 600}, budgets={"epsilon": 0.5},
        privacy={"unit": "record", "calibration": "classical"},
    )  # fmt: skip
    report = audit(settings, how=AuditSettings(trials=8, reports=50_000))
    assert (report.breaks_published, report.breaks_proven) == (True, False)
    seen = next(f for f in report.findings if "mu test" in f.method and f.column == "proven")
    assert 0.28 < seen.points[0].epsilon_lower < 0.3526


def test_an_exact_bound_is_approached_and_not_passed() -> None:
    """Equal Laplace clients: the worst dataset is the one played, so the bound must stay below the
    exact divergence and come near it."""
    found = audit(LAPLACE, dimension=3)
    assert not found.breaks_proven
    [batch] = [each for each in found.findings if each.note == "hidden among 50 reports"]
    upper = blanket_epsilon(LaplaceRandomizer(1.0), 50, 1e-5).epsilon
    assert 0.5 * upper < batch.points[0].epsilon_lower <= upper


def test_canaries_reports_are_the_workers_reports() -> None:
    """A worker that computes gradients and noise in one call, as a client does, sends the bits the
    games are played with."""
    settings = config(
        6, privacy={"unit": "record", "clip_norm": 0.3}, data={"records": 7}, budgets=PERSONAL,
        server={"weights": "inverse-variance"},
    )  # fmt: skip
    canaries = Canaries(settings, dimension=11, seed=4)
    target, clients = canaries.scene.target, np.arange(6)
    zero, _, still = canaries.records_of(target)
    far = position_error(canaries.scene) < 0.01
    plus = np.where((clients == target) | (not far), zero, 0).astype(np.float64)
    task = canaries.task_of(clients, plus, np.full(6, still), 11)
    federation = Federation(canaries.config, task)
    reports = federation.randomizer(federation.clipper(torch.zeros(11), clients), clients, 9)
    assert torch.equal(canaries.play(9)[0], reports)


@pytest.mark.parametrize(
    "settings",
    [
        LAPLACE,
        config(training={"local_steps": 3}),
        config(privacy={"unit": "record"}, data={**MANY, "records": 600}),
        config(privacy={"unit": "record", "client_clip": 0.01}, data={"records": 20}),
        config(privacy={"unit": "record", "clip": "average"}, data={"records": 20}),
        config(privacy=PUBLISHED, data={"records": 20}),
        config(privacy={"personalization": "clipping"}, budgets=PERSONAL),
    ],
)
def test_canaries_use_the_whole_sensitivity_and_no_more(settings: Config) -> None:
    """And the two plays differ in the target alone, by its data."""
    canaries = Canaries(settings, dimension=5)
    plan, scene = canaries.plan, canaries.scene
    target, moved = scene.target, scene.one - scene.zero
    assert moved == pytest.approx(plan.weight[target] * plan.sensitivity[target], rel=1e-3)
    assert (np.abs(scene.others) <= plan.weight * plan.radius * (1 + 1e-6)).all()
    rows, other = canaries.play(1)
    difference = (other - rows[target]).numpy()
    assert difference[0] == pytest.approx(moved, abs=2 * float(plan.step[target]))
    assert (difference[1:] == 0.0).all() and not torch.equal(canaries.play(2)[0], rows)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_stated_error_of_recognition_is_true(noise: str) -> None:
    """Two noise scales a factor of two apart: the likelihood rule's mistakes, by integration."""
    scales = np.repeat([1.0, 2.0], 10)
    scene = Scene(0, np.zeros(20), 0.0, 1.0, scales, noise, 61)
    law = stats.gamma(60) if noise == "laplace" else stats.chi(60)
    grid = np.linspace(1e-6, 300.0, 400_001)
    densities = [law.pdf(grid / scale) / scale for scale in (1.0, 2.0)]
    mistakes = 10.0 * np.minimum(*densities).sum() * (grid[1] - grid[0])
    assert 1e-8 < mistakes < 0.5
    assert size_error(scene) == pytest.approx(mistakes, rel=1e-3)


def test_a_published_sensitivity_that_is_too_small_shows_in_the_local_game() -> None:
    """The average is clipped, the noise is for a record's share of it: 20 times too small for the
    budget asked for. The accountant knows and is not contradicted."""
    settings, how = config(6, privacy=PUBLISHED, data={"records": 20}), AuditSettings(8, 5000)
    report = audit(settings, how=how)
    assert "DOES NOT KEEP" in report.findings[0].note
    assert report.findings[0].points[0].epsilon_lower > 5.0 and not report.breaks_proven
    assert audit(config(), how=how).findings[0].note == "asked for (1, 1e-05), weight 1"
