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
from fl_shuffle.auditing.canaries import Canaries, most_exposed
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.findings import Finding
from fl_shuffle.auditing.games import Attack, Claims, sums_game
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import load_task
from tests.auditing.audit_settings import config

PERSONAL = {"distribution": "uniform", "low": 0.5, "high": 2.0}
WEIGHTED = config(20, budgets=PERSONAL, server={"weights": "inverse-variance"})
FEW = config(20, privacy={"assumed_honest": 5})


def attack(source: Canaries, claims: Claims) -> list[Finding]:
    clock = Clock(600.0)
    against = Attack(source, claims, (1e-5, 1e-3), 3, 0.05 * 0.99 / 4.0, clock, [])
    return list(sums_game(against, ["sum"], 400, clock))


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
        config(
            20, privacy={"personalization": "clipping", "assumed_honest": 0.5}, budgets=PERSONAL
        ),
    ],
    ids=["weighted", "record", "clipping and colluders"],
)
def test_what_is_right_is_not_refuted_and_nearly_reached(settings: Config) -> None:
    source = canaries(settings)
    found = attack(source, Claims(settings, source))
    assert not any(finding.breaks_proven for finding in found)
    assert {finding.rounds for finding in found} == {1, 3}
    point = mu_test(found).points[0]
    assert point.proven_epsilon is not None
    assert 0.8 * point.proven_epsilon < point.epsilon_lower <= point.proven_epsilon


def test_the_attack_is_on_the_exposed_client_among_the_honest() -> None:
    """mu = w Delta / sqrt(sum of w^2 sigma^2), over the target and the smallest of the others."""
    few = dataclasses.replace(WEIGHTED.privacy, assumed_honest=5)
    source = canaries(dataclasses.replace(WEIGHTED, privacy=few))
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


def test_a_client_of_little_weight_is_audited(tmp_path: Path) -> None:
    """The most exposed client has few records, little noise, and a weight far below the others';
    if it forgot that weight only its own part in the sums would say so."""
    sizes = config(
        16, data={"source": "digits", "sizes": "unequal"}, privacy={"unit": "record"},
        server={"weights": "inverse-variance"},
    )  # fmt: skip
    few = int(np.argmin(np.diff(load_task(sizes).offsets)))
    path = tmp_path / "budgets.csv"
    lines = [f"{i},{4.0 if i == few else 0.5},1e-5" for i in range(16)]
    path.write_text("\n".join(["client_id,epsilon,delta", *lines]) + "\n")
    budgets = dataclasses.replace(sizes.budgets, distribution="file", file=str(path))
    settings = dataclasses.replace(sizes, budgets=budgets)
    right = Canaries(settings, release="sum")
    plan, target = right.claimant
    assert target == few and plan.weight[few] < 0.5
    assert not any(finding.breaks_proven for finding in attack(right, Claims(settings, right)))


def test_an_accountant_that_trusts_colluders_is_caught() -> None:
    source = canaries(FEW)
    assert mu_test(attack(source, Claims(config(20), source))).breaks_proven


def test_an_accountant_that_forgets_the_weights_is_caught() -> None:
    source = canaries(WEIGHTED)
    unweighted, _ = canaries(config(20, budgets=PERSONAL)).claimant
    source.claimant = (unweighted, source.claimant[1])
    assert mu_test(attack(source, Claims(WEIGHTED, source))).breaks_proven


def test_a_whole_audit_tests_both_columns() -> None:
    settings = config(12, privacy={"assumed_honest": 8, "release": "sum"})
    how = AuditSettings(trials=50, reports=4000)
    report = audit_configuration("test", settings, how, dimension=4)
    assert {finding.column for finding in report.findings} == {"local", "proven", "sum"}
    assert not report.breaks_proven
    assert any("no order" in note for note in report.notes)
    assert all("order" not in check.game for check in report.checks)
