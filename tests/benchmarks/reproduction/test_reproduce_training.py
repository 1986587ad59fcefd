"""The training targets end to end, on the digits that ship with scikit-learn."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.reproduction import training, training_chen2024, training_runs
from benchmarks.reproduction.core import Options, execute, finished
from tests.repository import ROOT

TARGETS = {**training.TARGETS, **training_chen2024.TARGETS}


def rows_of(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    return Options(tmp_path_factory.mktemp("results"), fast=True)


PLAYED = sorted(set(TARGETS) - {"mnist-epsilons"})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] * (name != "mnist-record-level"))
        for name in PLAYED
    ],
)
def done(request: pytest.FixtureRequest, options: Options) -> str:
    execute(TARGETS[request.param], options)
    return str(request.param)


def test_target_writes_tables_figures_and_its_sentences(done: str, options: Options) -> None:
    folder = options.out / done
    entry = json.loads((folder / "entry.json").read_text())
    assert entry["tables"] and entry["figures"]
    for name in [*entry["tables"], *entry["figures"]]:
        assert (folder / name).stat().st_size > 0
    assert finished(TARGETS[done], options) is not None
    # The page must never pass the small data off as MNIST.
    assert "digits" in entry["reproduction"]


def test_every_number_comes_from_a_run_directory(done: str, options: Options) -> None:
    table = {
        "mnist-record-level": "accuracy",
        "mnist-client-level": "accuracy_against_epsilon",
        "chen2024-gspa-table-3": "table3",
        "chen2024-renyi-table-2": "table2",
    }[done]
    key = "lowest" if "lowest" in rows_of(options.out / done, table)[0] else "accuracy"
    summaries = [
        json.loads(path.read_text()) for path in (options.out / "runs").glob("*/summary.json")
    ]
    found = {summary["accuracy"] for summary in summaries}
    for row in rows_of(options.out / done, table):
        assert float(row[key]) in found


def test_what_is_accounted_without_a_run_is_what_a_run_counts(tmp_path: Path) -> None:
    options = Options(tmp_path)
    small = ("data.source='digits'", "data.clients=20", "data.records=30", "run.rounds=2",
             training_runs.FAST_HOG)  # fmt: skip
    run = training_runs.train(options, "mnist_record_unif2", *small)
    counted = training_runs.accounted_epsilons(options, "mnist_record_unif2", *small)
    assert set(counted) == {"proven", "sum", "local", "lower", "gspa"}
    for name, epsilon in counted.items():
        assert run.column(name) == pytest.approx(epsilon, rel=1e-9)
    assert counted["sum"] < 0.5 * counted["proven"]
    fast = training_runs.accounted_epsilons(Options(tmp_path, fast=True), "mnist_clients")
    assert fast["sum"] < fast["local"]


def test_a_finished_run_is_read_and_an_unfinished_one_is_run_again(tmp_path: Path) -> None:
    options = Options(tmp_path, fast=True)
    first = training_runs.train(options, "mnist_record_constant", "run.rounds=1")
    (folder,) = (tmp_path / "runs").iterdir()
    stamp = (folder / "ledger.sqlite").stat().st_mtime_ns
    again = training_runs.train(options, "mnist_record_constant", "run.rounds=1")
    assert again == first
    assert (folder / "ledger.sqlite").stat().st_mtime_ns == stamp
    (folder / "summary.json").unlink()
    third = training_runs.train(options, "mnist_record_constant", "run.rounds=1")
    assert third.accuracy == first.accuracy
    assert (folder / "ledger.sqlite").stat().st_mtime_ns > stamp


def test_every_quoted_configuration_is_a_file_that_loads() -> None:
    from fl_shuffle.configuration.reading import load_config

    for name in [*training.RECORD, *training.CLIENTS.values(), "mnist_gspa", "mnist_rdp"]:
        config = load_config(ROOT / "configs" / f"{name}.toml")
        assert config.run.rounds == 50
        assert config.data.clients * config.data.records == 60_000
    for local, name in training.CLIENTS.items():
        config = load_config(ROOT / "configs" / f"{name}.toml")
        assert config.budgets.epsilon == local
