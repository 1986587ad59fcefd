"""The training targets end to end, on the digits that ship with scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reproduction import training_runs
from benchmarks.reproduction.core import Options, all_targets, execute, finished
from benchmarks.tables import read_csv


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("mnist-record-level", "accuracy"),
        ("chen2024-gspa-table-3", "table3"),
        ("chen2024-renyi-table-2", "table2"),
    ],
)
def test_every_number_comes_from_a_run_directory(name: str, table: str, tmp_path: Path) -> None:
    options, target = Options(tmp_path, fast=True), all_targets()[name]
    entry = execute(target, options)
    assert finished(target, options) is not None
    # The page must never pass the small data off as MNIST.
    assert "digits" in entry["reproduction"]
    summaries = (tmp_path / "runs").glob("*/summary.json")
    found = {json.loads(path.read_text())["accuracy"] for path in summaries}
    for row in read_csv(tmp_path / name / f"{table}.csv"):
        assert float(row.get("lowest", row["accuracy"])) in found


@pytest.mark.slow
def test_what_is_accounted_without_a_run_is_what_a_run_counts(tmp_path: Path) -> None:
    options = Options(tmp_path)
    small = ("data.source='digits'", "data.clients=20", "data.records=30", "run.rounds=2",
             training_runs.FAST_HOG)  # fmt: skip
    run = training_runs.train(options, "mnist_record_unif2", *small)
    counted = training_runs.accounted_epsilons(options, "mnist_record_unif2", *small)
    assert set(counted) == {"proven", "sum", "local", "lower", "gspa"}
    for name, epsilon in counted.items():
        assert run.summary["columns"][name]["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert counted["sum"] < 0.5 * counted["proven"]
    fast = training_runs.accounted_epsilons(Options(tmp_path, fast=True), "mnist_clients")
    assert fast["sum"] < fast["local"]
