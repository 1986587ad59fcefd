"""The games, on the real client code: they break what is wrong, and nothing that is right.

Every audit's bounds hold with confidence 95% together, so a right claim is contradicted in at most
5% of seeds (far fewer, as the shares add up); seeds are fixed.

Power of the attack on sums: 400 plays bound the noise of a sum to 9% from above at the level used
(alpha = 0.05 x 0.99 / 4, half of it for this test, a third of that for the deviation), so that a
sum's mu 1.24 times the claimed one is seen with probability 95%. The mutants here exceed that: a
forgotten weight makes mu at least 2 times what is claimed, forgotten colluders 2 times.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy import stats

from fl_shuffle.accounting.bounds.blanket import blanket_epsilon
from fl_shuffle.accounting.distributions.continuous import LaplaceRandomizer
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.auditing.audit import Audit
from fl_shuffle.auditing.canaries import Canaries, Scene, most_exposed, position_error, size_error
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport, Finding
from fl_shuffle.auditing.games import Attack, Claims, reports_game, sums_game
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import load_task
from fl_shuffle.federation import Federation

QUICK = AuditSettings(trials=100, reports=60_000, seconds=600.0)
PERSONAL = {"distribution": "uniform", "low": 0.5, "high": 2.0}


def played(
    settings: Config, *, factor: float = 1.0, dimension: int = 8, how: AuditSettings = QUICK
) -> AuditReport:
    """The games on reports against the right claims, with noise `factor` times too small (on a
    grid as fine)."""
    audit = Audit(settings, dimension, how)
    source = honest = audit.canaries()
    if factor != 1.0:
        plan = honest.plan
        weaker = dataclasses.replace(plan, scale=plan.scale / factor, step=plan.step / 64.0)
        source = Canaries(settings, dimension=dimension, seed=how.seed, plan=weaker)
    attack = dataclasses.replace(audit.attack(source), claims=Claims(settings, honest))
    findings = tuple(reports_game(attack, how.reports, Clock(how.seconds)))
    return AuditReport("test", settings.privacy.unit, 0, 0, "", how.confidence, findings)


def config(clients: int = 20, **sections: dict[str, Any]) -> Config:
    base: dict[str, dict[str, Any]] = {
        "run": {"rounds": 3},
        "data": {"clients": clients},
        "privacy": {"unit": "client", "randomizer": "gaussian"},
        "budgets": {"distribution": "constant", "epsilon": 1.0, "delta": 1e-5},
    }
    for name, values in sections.items():
        base.setdefault(name, {}).update(values)
    return parse_config(base)


LAPLACE = config(50, privacy={"randomizer": "laplace"}, budgets={"delta": 0.0})
LAPLACE_RECORD = config(
    privacy={"unit": "record", "randomizer": "laplace"}, data={"records_per_client": 5}
)
MANY = {"source": "benchmarks.jobs:records", "features": "none", "records_per_client": 1}
PUBLISHED = {"unit": "record", "clipping": "average", "calibration": "as-published"}
WEIGHTS = {"weights": "inverse-variance"}
WEIGHTED = config(budgets=PERSONAL, server=WEIGHTS)


def test_noise_that_would_have_shown_shows() -> None:
    """A little more too small than the audit says these plays would have shown; what is right is
    left alone."""
    right = played(config())
    factor = right.findings[1].noise_factor
    assert not right.breaks_proven and 1.0 < factor < 1.1
    found = played(config(), factor=1.01 * factor).findings[1]
    assert found.breaks_proven and found.noise_factor < 1.0
    # Of Laplace noise the measured distribution is all that there is.
    right, wrong = (played(LAPLACE_RECORD, factor=factor) for factor in (1.0, 3.0))
    assert right.findings and not right.breaks_proven and wrong.breaks_proven


def test_a_mix_of_budgets_breaks_the_published_mu() -> None:
    """1% of 10,000 at 2, the rest at 0.01, Laplace: the measured bound lies between what the attack
    should reach and the exact divergence, 0.917."""
    mix = {"distribution": "groups", "conservative": 0.01, "moderate": 0.01, "liberal": 2.0,
           "conservative_fraction": 0.99, "moderate_fraction": 0.0, "delta": 0.0}  # fmt: skip
    laplace = {"randomizer": "laplace"}
    settings = config(10_000, run={"rounds": 1}, data=MANY, privacy=laplace, budgets=mix)
    report = played(settings, dimension=60, how=AuditSettings(trials=8, reports=200_000))
    points = [found.points[0] for found in report.findings if found.points[0].published_epsilon]
    best = max(points, key=lambda point: point.epsilon_lower)
    assert best.published_epsilon == pytest.approx(0.059, rel=2e-3)
    assert 0.75 < best.epsilon_lower < 0.917 * 1.003
    assert (report.breaks_published, report.breaks_proven) == (True, False)


def test_record_level_noise_breaks_the_published_mu_with_many_clients() -> None:
    """Per round mu = 1/z = 0.5/4.845, whatever the number of clients: recognized by position."""
    settings = config(
        1000, run={"rounds": 50}, data={**MANY, "records_per_client": 600},
        budgets={"epsilon": 0.5},
        privacy={"unit": "record", "calibration": "classical"},
    )  # fmt: skip
    report = played(settings, how=AuditSettings(trials=8, reports=50_000))
    assert (report.breaks_published, report.breaks_proven) == (True, False)
    seen = next(f for f in report.findings if "mu test" in f.method and f.column == "shuffled")
    assert 0.28 < seen.points[0].epsilon_lower < 0.3526


def test_an_exact_bound_is_approached_and_not_passed() -> None:
    """Equal Laplace clients: the audit's lower bound stays below the blanket bound and comes near
    it, although other means off the axis would cost more."""
    found = played(LAPLACE, dimension=3)
    assert not found.breaks_proven
    [batch] = [each for each in found.findings if each.note == "hidden among 50 reports"]
    upper = blanket_epsilon(LaplaceRandomizer(1.0), 50, 1e-5).epsilon
    assert 0.5 * upper < batch.points[0].epsilon_lower <= upper


def test_canaries_reports_are_the_workers_reports() -> None:
    """A worker that computes gradients and noise in one call, as a client does, sends the bits the
    games are played with."""
    settings = config(
        6, privacy={"unit": "record", "clip_norm": 0.3}, data={"records_per_client": 7},
        budgets=PERSONAL,
        server=WEIGHTS,
    )  # fmt: skip
    canaries = Canaries(settings, dimension=11, seed=4)
    target, clients = canaries.scene.target, np.arange(6)
    zero, _, still = canaries.records_of(target)
    far = position_error(canaries.scene) < 0.01
    plus = np.where((clients == target) | (not far), zero, 0).astype(np.float64)
    task = canaries.task_of(clients, plus, np.full(6, still), 11)
    federation = Federation(canaries.config, task)
    reports = federation.randomizer(federation.clipper(torch.zeros(11), clients, 9), clients, 9)
    assert torch.equal(canaries.play(9)[0], reports)


@pytest.mark.parametrize(
    "settings",
    [
        LAPLACE,
        config(training={"local_steps": 3}),
        config(privacy={"unit": "record"}, data={**MANY, "records_per_client": 600}),
        config(
            privacy={"unit": "record", "client_clip_norm": 0.01}, data={"records_per_client": 20}
        ),
        config(privacy={"unit": "record", "clipping": "average"}, data={"records_per_client": 20}),
        config(privacy=PUBLISHED, data={"records_per_client": 20}),
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
    settings, how = (
        config(6, privacy=PUBLISHED, data={"records_per_client": 20}),
        AuditSettings(8, 5000),
    )
    report = played(settings, how=how)
    assert "DOES NOT KEEP" in report.findings[0].note
    assert report.findings[0].points[0].epsilon_lower > 5.0 and not report.breaks_proven
    assert played(config(), how=how).findings[0].note == "asked for (1, 1e-05), weight 1"


def attack(source: Canaries, claims: Claims) -> list[Finding]:
    """On the sums of one round, and of three."""
    clock = Clock(600.0)
    against = Attack(source, claims, (1e-5, 1e-3), 3, 0.05 * 0.99 / 4.0, clock, [])
    return list(sums_game(against, ["sum"], 400, clock))


def canaries(settings: Config) -> Canaries:
    return Canaries(settings, dimension=4, release="sum")


@pytest.mark.parametrize(
    "settings",
    [
        WEIGHTED,
        config(privacy={"unit": "record"}, data={"records_per_client": 7}, budgets=PERSONAL),
        config(privacy={"personalization": "clipping", "assumed_honest": 0.5}, budgets=PERSONAL),
    ],
    ids=["weighted", "record", "clipping and colluders"],
)
def test_what_is_right_is_not_refuted_and_nearly_reached(settings: Config) -> None:
    source = canaries(settings)
    found = attack(source, Claims(settings, source))
    assert not any(finding.breaks_proven for finding in found)
    assert [finding.rounds for finding in found] == [1, 3]
    point = found[0].points[0]
    assert point.proven_epsilon is not None
    assert 0.8 * point.proven_epsilon < point.epsilon_lower <= point.proven_epsilon


def test_the_attack_is_on_the_exposed_client_among_the_honest() -> None:
    """mu = w Delta / sqrt(sum of w^2 sigma^2), over the target and the smallest of the others."""
    few = config(budgets=PERSONAL, privacy={"assumed_honest": 5}, server=WEIGHTS)
    source = canaries(few)
    plan, target = source.claimant
    noise, reach = plan.weight * plan.scale, plan.weight * plan.sensitivity
    mu = [
        reach[i] / math.sqrt(noise[i] ** 2 + sum(sorted(np.delete(noise, i) ** 2)[:4]))
        for i in range(20)
    ]
    assert target == int(np.argmax(mu)) == most_exposed(plan, "record", summed=5)
    scene = source.scene
    nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
    assert nominal == pytest.approx(max(mu), rel=1e-3)
    # Everybody hides it better than five do.
    claimed = Claims(WEIGHTED, source)("sum", 1, 1e-5)
    assert claimed is not None and claimed < gaussian_epsilon(1e-5, nominal)


@pytest.mark.parametrize("noise", ["per-report", "per-sum"])
def test_each_trial_of_sums_has_noise_of_its_own(noise: str) -> None:
    """One that is repeated would be a measured distribution of no spread."""
    audit, seen = Audit(config(run={"noise": noise}), 8, QUICK), list[np.ndarray]()

    class Seen:
        source = audit.canaries()

        def by_mu(self, column: str, game: str, what: str, plays: np.ndarray, mu: float) -> Any:
            seen.append(plays)
            return iter(())

    assert list(sums_game(cast(Any, Seen()), ["sum"], 40, Clock(QUICK.seconds))) == []
    ((zero, one),) = seen
    assert len(np.unique(zero)) == len(np.unique(one)) == 40
    scale = float(np.linalg.norm(Seen.source.scene.scales))
    # A chi-square distribution of 39 degrees lies within these but with probability 1e-6.
    for plays in (zero, one):
        assert 0.5 * scale < float(np.std(plays, ddof=1)) < 1.6 * scale


def test_a_client_of_little_weight_is_audited(tmp_path: Path) -> None:
    """The most exposed client has few records, little noise, and a weight far below the others';
    if it forgot that weight only its own part in the sums would say so."""

    def budgeted(**budgets: str) -> Config:
        data = {"source": "digits", "sizes": "unequal"}
        return config(16, data=data, privacy={"unit": "record"}, server=WEIGHTS, budgets=budgets)

    few = int(np.argmin(np.diff(load_task(budgeted()).offsets)))
    path = tmp_path / "budgets.csv"
    lines = [f"{i},{4.0 if i == few else 0.5},1e-5" for i in range(16)]
    path.write_text("\n".join(["client_id,epsilon,delta", *lines]) + "\n")
    settings = budgeted(distribution="file", file=str(path))
    right = Canaries(settings, release="sum")
    plan, target = right.claimant
    assert target == few and plan.weight[few] < 0.5
    assert not any(finding.breaks_proven for finding in attack(right, Claims(settings, right)))


def test_an_accountant_that_trusts_colluders_or_forgets_weights_is_caught() -> None:
    source = canaries(config(privacy={"assumed_honest": 5}))
    assert attack(source, Claims(config(), source))[0].breaks_proven
    source = canaries(WEIGHTED)
    unweighted, _ = canaries(config(budgets=PERSONAL)).claimant
    source.claimant = (unweighted, source.claimant[1])
    assert attack(source, Claims(WEIGHTED, source))[0].breaks_proven
