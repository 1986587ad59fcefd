"""The audit leaves the product alone. `tests/mutants.toml` holds the faults that it must not leave.

Power and false alarms, with the plays made here (small, so that the suite stays quick):

* The checks of order and noise are made at level 0.05 x 0.01 / 4 = 1.25e-4 each, 64 rounds of 16
  clients for the order and 8 for the noise. That is each one's false-alarm rate. The faults of
  order and noise are there in every round: their p-values are below 1e-9 for every seed, which
  leaves nothing to luck.
* Noise x 0.8 and clip x 1.3 move the local game by factors 1.25 and 1.3; at 200,000 reports less
  than 1.2 would have shown. False alarms of all lower bounds together: 5%.
* What is published is compared without chance: no false alarm, and every difference is seen.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.auditing.canaries import Canaries, check_clipping
from fl_shuffle.auditing.checks import noise_checks, order_check, play_orders
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.published import NEIGHBOURS, audit_published
from fl_shuffle.cli import main
from fl_shuffle.configuration.sections import Config
from tests.auditing.audit_settings import config, played

CLIENTS = 16
SEEDS = range(3)
LEVEL = 1.25e-4


def settings_of(unit: str = "client", noise: str = "gaussian") -> Config:
    return config(
        CLIENTS, data={"records": 5}, privacy={"unit": unit, "randomizer": noise},
        budgets={"delta": 1e-5 if noise == "gaussian" else 0.0},
    )  # fmt: skip


@pytest.mark.parametrize("schedule", ["aggregate", "sequential"])
def test_a_random_order_is_left_alone(schedule: str) -> None:
    for seed in SEEDS:
        seen = play_orders(CLIENTS, schedule, seed)
        for target in (3, CLIENTS - 1):
            found = order_check(seen, target, LEVEL, np.random.default_rng(seed))
            assert not found.refuted, found


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_fresh_noise_is_left_alone(noise: str) -> None:
    for seed in SEEDS:
        canaries = Canaries(settings_of(noise=noise), dimension=20, seed=seed)
        found = noise_checks(canaries, LEVEL)
        assert len(found) == 5
        assert not any(check.refuted for check in found), found


@pytest.mark.parametrize("unit", ["client", "record"])
def test_single_reports_keep_their_claims(unit: str) -> None:
    """One report, its sender known: what the accountant claims of it, and reports of the client's
    code."""
    settings = settings_of(unit)
    how = AuditSettings(trials=8, reports=200_000)
    found = played(settings, Canaries(settings, dimension=4), how=how).findings[0]
    assert not found.breaks_proven
    # Noise 20% too small would have shown, and a clip 30% too wide.
    assert found.noise_factor < 1.2


def test_the_runs_own_clip_is_looked_at() -> None:
    digits = {"source": "digits", "records": 0}
    settings = config(12, data=digits, privacy={"unit": "record", "clip_norm": 0.1})
    found = check_clipping(settings)
    assert 0.9 < found.sensitivity_share <= 1.001
    assert found.holds


def test_nothing_is_published_beside_the_reports() -> None:
    settings = config(8, run={"rounds": 2}, data={"records": 5}, privacy={"unit": "record"})
    found = audit_published(settings, Clock(600.0), NEIGHBOURS)
    assert found.neighbours == tuple(neighbour.name for neighbour in NEIGHBOURS)
    assert found.fields > 200 and found.messages >= settings.run.rounds
    assert found.differences == ()


def test_the_command_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = tmp_path / "run.toml", str(tmp_path / "run")
    path.write_text("[data]\nclients = 12\n[run]\nrounds = 1\n", encoding="utf-8")
    assert main(["simulate", str(path), "--quiet", "--out", run]) == 0
    capsys.readouterr()
    options = ["--trials", "8", "--reports", "1000", "--seconds", "5", "--json"]
    code, report = main(["audit", run, *options]), json.loads(capsys.readouterr().out)
    assert (code, report["breaks_proven"], report["clients"]) == (0, False, 12), report
    for finding in report["findings"]:
        assert finding["plays"] > 0
        for point in finding["points"]:
            assert 0.0 <= point["epsilon_lower"] <= point["proven_epsilon"]
