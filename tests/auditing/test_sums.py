"""The attack on sums refutes nothing that is right, and sees a weight or a colluder forgotten.

Power: 400 plays bound the noise of a sum to 9% from above at the level used (alpha = 0.05 x 0.99 /
4, half of it for this test, a third of that for the deviation), so that a sum's mu 1.24 times the
claimed one is seen with probability 95%. The mutants here exceed that: a forgotten weight makes mu
at least 2 times what is claimed, forgotten colluders 2 times.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.auditing.audit import audit_configuration
from fl_shuffle.auditing.canaries import Canaries, most_exposed_in_sums
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import AuditReport, Finding
from fl_shuffle.auditing.games import Attack, Stakes, sums
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.seeds import SeedTree
from tests.auditing.audit_settings import config

PLAYS = 400
ALPHA = 0.05 * 0.99 / 4.0
DELTAS = (1e-5, 1e-3)
PERSONAL = {"distribution": "uniform", "low": 0.5, "high": 2.0}
WEIGHTED = config(20, budgets=PERSONAL, server={"weights": "inverse-variance"})


def attack(source: Canaries, claims: Claims, rounds: int = 3) -> list[Finding]:
    stakes = Stakes(DELTAS, rounds, ALPHA, SeedTree(0))
    return sums(Attack(source, claims, stakes), ["sum"], PLAYS, Clock(600.0))


def canaries(settings: Config, seed: int = 0) -> Canaries:
    return Canaries(settings, dimension=4, seed=seed, release="sum")


def mu_test(found: list[Finding]) -> Finding:
    (one,) = [f for f in found if f.column == "sum" and f.rounds == 1]
    return one


@pytest.mark.parametrize(
    "settings",
    [
        WEIGHTED,
        config(20, privacy={"unit": "record"}, data={"records": 7}, budgets=PERSONAL),
        config(20, privacy={"assumed_honest": 5}, budgets=PERSONAL),
        config(
            20, privacy={"personalization": "clipping", "assumed_honest": 0.5}, budgets=PERSONAL
        ),
    ],
    ids=["weighted", "record", "colluders", "clipping"],
)
def test_what_is_right_is_not_refuted_and_nearly_reached(settings: Config) -> None:
    source = canaries(settings)
    found = attack(source, Claims(settings, *source.claimant))
    assert not any(finding.breaks_proven for finding in found)
    assert {finding.rounds for finding in found} == {1, 3}
    point = mu_test(found).points[0]
    assert point.proven_epsilon is not None
    assert 0.8 * point.proven_epsilon < point.epsilon_lower <= point.proven_epsilon


def test_the_attack_is_on_the_exposed_client_among_the_honest() -> None:
    """mu = w Delta / sqrt(sum of w^2 sigma^2), over the target and the smallest of the others."""
    source = canaries(dataclasses.replace(WEIGHTED, privacy=dataclasses.replace(
        WEIGHTED.privacy, assumed_honest=5)))  # fmt: skip
    plan, target = source.claimant
    noise, reach = plan.weight * plan.scale, plan.weight * plan.sensitivity
    mu = [
        reach[i] / math.sqrt(noise[i] ** 2 + sum(sorted(np.delete(noise, i) ** 2)[:4]))
        for i in range(20)
    ]
    assert target == int(np.argmax(mu)) == most_exposed_in_sums(plan, 5)
    claims = Claims(WEIGHTED, plan, target)
    scene = source.scene
    nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
    assert nominal == pytest.approx(max(mu), rel=1e-3)
    # Everybody hides it better than five do.
    claimed = claims("sum", 1, 1e-5)
    assert claimed is not None and claimed < gaussian_epsilon(1e-5, nominal)


def accounted_without_weights(plan: RandomizerPlan) -> RandomizerPlan:
    """The accountant is told what reports are before they are weighted."""
    weights = np.zeros(len(plan.classes))
    weights[plan.class_of] = plan.weight
    classes = tuple(
        dataclasses.replace(
            own, scale=own.scale / w, radius=own.radius / w, sensitivity=own.sensitivity / w
        )
        for own, w in zip(plan.classes, weights.tolist(), strict=True)
    )
    return dataclasses.replace(plan, classes=classes)


def test_an_accountant_that_forgets_the_weights_is_caught() -> None:
    """Only the column `sum` sees weights: the ratio of a client's own clip and noise has none."""
    for seed in range(3):
        source = canaries(WEIGHTED, seed)
        plan, target = source.claimant
        forgetful = accounted_without_weights(plan)
        np.testing.assert_allclose(
            [own.exposure for own in forgetful.classes], [own.exposure for own in plan.classes]
        )
        found = mu_test(attack(source, Claims(WEIGHTED, forgetful, target)))
        assert found.breaks_proven
        assert found.detectable_noise_factor is not None
        assert found.detectable_noise_factor < 1.3


def test_a_client_of_little_weight_is_audited(tmp_path: Path) -> None:
    """The most exposed client has few records, little noise, and a weight far below the others';
    if it forgot that weight only its own part in the sums would say so."""
    sizes = config(
        16, data={"source": "digits", "sizes": "unequal"}, privacy={"unit": "record"},
        server={"weights": "inverse-variance"},
    )  # fmt: skip
    few = int(np.argmin(Canaries(sizes)._sizes))
    path = tmp_path / "budgets.csv"
    lines = [f"{i},{4.0 if i == few else 0.5},1e-5" for i in range(16)]
    path.write_text("\n".join(["client_id,epsilon,delta", *lines]) + "\n")
    settings = dataclasses.replace(
        sizes, budgets=dataclasses.replace(sizes.budgets, distribution="file", file=str(path))
    )
    right = Canaries(settings, release="sum")
    plan, target = right.claimant
    assert target == few and plan.weight[few] < 0.5
    claims = Claims(settings, plan, target)
    assert not any(finding.breaks_proven for finding in attack(right, claims))


def test_an_accountant_that_trusts_colluders_is_caught() -> None:
    settings = config(20, privacy={"assumed_honest": 5})
    source = canaries(settings)
    trusting = Claims(config(20), *source.claimant)
    assert mu_test(attack(source, trusting)).breaks_proven


def test_the_stated_power_is_true() -> None:
    """Noise as much too small as the finding says it would catch, caught at 95% a seed."""
    settings = config(20)
    honest = canaries(settings)
    plan = honest.claimant[0]
    claims = Claims(settings, *honest.claimant)
    factor = mu_test(attack(honest, claims)).detectable_noise_factor
    assert factor is not None and 1.0 < factor < 1.3
    weaker = dataclasses.replace(plan, scale=plan.scale / factor, step=plan.step / 64.0)
    caught = [
        mu_test(
            attack(Canaries(settings, dimension=4, seed=s, plan=weaker, release="sum"), claims)
        ).breaks_proven
        for s in range(6)
    ]
    # Two misses in six have chance 3e-2, three 2e-3.
    assert sum(caught) >= 4


def whole_audit(settings: Config) -> AuditReport:
    return audit_configuration(
        "test", settings, AuditSettings(trials=50, reports=4000), dimension=4
    )


def test_a_whole_audit_tests_both_columns() -> None:
    report = whole_audit(config(12, privacy={"assumed_honest": 8, "release": "sum"}))
    assert {finding.column for finding in report.findings} == {"local", "proven", "sum"}
    assert not report.breaks_proven
    assert any("no order" in note for note in report.notes)
    assert all("order" not in check.game for check in report.checks)
    laplace = whole_audit(config(12, privacy={"randomizer": "laplace"}, budgets={"delta": 0.0}))
    assert not laplace.breaks_proven
    assert any("column sum is not tested" in note for note in laplace.notes) != any(
        finding.column == "sum" for finding in laplace.findings
    )
    assert any("order" in check.game for check in laplace.checks)
