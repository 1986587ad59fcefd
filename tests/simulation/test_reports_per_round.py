"""Several reports a round: the mean's noise falls, each report is paid for, whoever adds up."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.report.record import read_run
from tests.federation.small_tasks import configured, task_of
from tests.small_federation import Launch

PRICES = ("gspa_epsilon", "proven_epsilon", "sum_epsilon", "local_epsilon", "lower_epsilon")


def last_row(folder: Path) -> dict[str, str]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


def test_two_rounds_of_three_reports_cost_what_six_of_one_do(
    launch: Launch, tmp_path: Path
) -> None:
    assert launch("six", "run.rounds=6") == 0
    three = ("run.rounds=2", "privacy.reports_per_round=3")
    assert launch("three", *three) == 0
    assert launch("median", *three, "server.analyzer=coordinate-median") == 0
    assert launch("pooled", *three, "run.noise=pooled") == 0
    wanted = last_row(tmp_path / "six")
    for name in ("three", "median", "pooled"):
        found = last_row(tmp_path / name)
        for price in PRICES:
            if found[price] or name != "median":
                assert float(found[price]) == pytest.approx(float(wanted[price]), rel=1e-9), price
    # What the accountant says again from the ledger is what was written.
    record = read_run(tmp_path / "three")
    assert record.totals.headline.max() == pytest.approx(float(wanted["proven_epsilon"]))
    assert record.totals.rounds.tolist() == [2] * 12


def test_pooled_noise_is_that_of_all_reports_of_a_round() -> None:
    """The sum of 12 clients' 5 reports each: five means, and the variance of 60 noises."""
    plan = task_of(configured()).plan
    present = np.ones(len(plan), dtype=bool)
    noise = AggregateNoise("gaussian", plan.scale, plan.step, 5)
    total = np.full(200_000, 3.0)
    found = noise.add_to(total, present, np.random.default_rng(1))
    assert float(found.mean()) == pytest.approx(15.0, abs=0.05 * float(plan.scale.max()) * 8)
    variance = 5.0 * float(np.sum(np.square(plan.scale)))
    assert float(found.var()) == pytest.approx(variance, rel=0.02)


def test_a_sequential_schedule_has_one_report_a_round() -> None:
    tables = {"data": {"clients": 12}, "privacy": {"reports_per_round": 2}}
    with pytest.raises(InvalidValueError, match="must be 1 in a sequential schedule"):
        parse_config({**tables, "training": {"schedule": "sequential"}})
