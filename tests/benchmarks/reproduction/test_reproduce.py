"""scripts/reproduce: every analytic target in fast mode, resumption, and the generated page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from benchmarks.reproduction import (
    chen2024_estimation,
    chen2024_gspa,
    chen2024_renyi,
    command,
    su2025,
)
from benchmarks.reproduction.core import Options, Result, Settings, Target, all_targets, execute
from benchmarks.tables import read_csv
from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_epsilon
from fl_shuffle.errors import InvalidValueError
from tests.repository import ROOT


def run_fast(name: str, out: Path) -> dict[str, list[Any]]:
    """The tables (numbers where they are numbers) of a fast run."""
    entry = execute(all_targets()[name], Options(out, fast=True))
    for figure in entry["figures"]:
        assert (out / name / figure).read_bytes().startswith(b"\x89PNG")
    assert "nan" not in f"{entry['reproduction']} {entry['honest']}".split()
    return {
        table: [
            {key: _number(value) for key, value in row.items()}
            for row in read_csv(out / name / table)
        ]
        for table in entry["tables"]
    }


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.mark.slow
def test_su2025_bounds_are_ordered(tmp_path: Path) -> None:
    for row in run_fast("su2025-figure-2", tmp_path)["bounds.csv"]:
        assert 0.0 < row[su2025.LOWER] <= row[su2025.UPPER] <= row["epsilon0"]
        for joint in su2025.JOINT:
            assert row[f"{joint}-joint lower"] <= row[f"{joint}-joint upper"]
        # The optimal decomposition is never worse than any other reduction.
        assert row[su2025.UPPER] <= 1.001 * min(row[label] for label in su2025.BASELINES)


def test_the_exact_divergence_lies_between_the_proven_bounds(tmp_path: Path) -> None:
    for row in run_fast("chen2024-renyi-figure-3", tmp_path)["divergence.csv"]:
        low, high = row[chen2024_renyi.LOWER], row[chen2024_renyi.UPPER]
        assert low <= row[chen2024_renyi.EXACT] <= high


@pytest.mark.slow
def test_gspa_figure_2(tmp_path: Path) -> None:
    tables = run_fast("chen2024-gspa-figure-2", tmp_path)
    for row in tables["bounds.csv"]:
        # For binary randomized response the reduction and the blanket are the same pair.
        assert row[chen2024_gspa.BINARY] == pytest.approx(row[chen2024_gspa.EXACT], rel=1e-3)
        assert row[chen2024_gspa.BINARY] < row[chen2024_gspa.COHORT]
        assert row[chen2024_gspa.GSPA] < row[chen2024_gspa.ECHO]
    assert all(row["certainly at least"] > row[chen2024_gspa.GSPA] for row in tables["leaks.csv"])


def test_the_lone_client_against_independent_numbers() -> None:
    """Exact divergences at delta 1e-5 from a separate computation, three digits."""
    for own, clients, expected in ((0.5, 10_000, 0.0631), (2.0, 1000, 1.46), (4.0, 10_000, 0.715)):
        witness = chen2024_gspa.one_among_many(own, 0.01)
        found = lower_bound_epsilon(witness, clients, 1e-5).epsilon
        assert 0.99 * expected < found < 1.006 * expected


@pytest.mark.slow
def test_unequal_weights_lean_when_budgets_go_with_the_data(tmp_path: Path) -> None:
    """60 repetitions, 4.5 standard errors (false alarms below 1e-5)."""
    study = chen2024_estimation
    for name, unbiased, biased in (
        ("mean", study.PLAIN, study.WEIGHTED),
        ("frequency", study.UNBIASED, study.PUBLISHED),
    ):
        rows = run_fast(f"chen2024-gspa-figure-3-{name}", tmp_path)["ordered.csv"]
        bias = {row["estimator"]: row["bias"] / row["standard error"] for row in rows}
        assert abs(bias[unbiased]) < 4.5
        assert bias[biased] > 20.0


TEXTS = {"title": "A toy", "paper": "Nobody 2000", "claim": "7 | 8", "reproduction": "seven",
         "honest": "fast {{ fast }}, {{ bounds | span }}"}  # fmt: skip


class Toy:
    """A target that counts its runs."""

    def __init__(self, name: str = "toy", error: BaseException | None = None) -> None:
        self.runs = 0
        self.error = error
        self.settings = {"setting": 1}
        self.target = Target(name, self.run, {**TEXTS, "settings": self.settings})

    def run(self, options: Options, settings: Settings) -> Result:
        self.runs += 1
        if self.error:
            raise self.error
        facts = {"fast": options.fast, "bounds": [0.5, 0.25]}
        return Result({"numbers": [{"a": 1}, {"b": 2}]}, {"plot": Figure()}, facts)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> list[Toy]:
    made = [Toy("broken", InvalidValueError("data", "/nowhere", "must exist")), Toy()]
    monkeypatch.setattr(
        command, "all_targets", lambda: {toy.target.name: toy.target for toy in made}
    )
    return made


def test_finished_targets_are_skipped_until_something_changes(
    toys: list[Toy], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = toys[1]
    arguments = ["toy", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    assert command.main(arguments) == 0
    assert toy.runs == 1
    assert "skipped" in capsys.readouterr().out
    assert (tmp_path / "toy" / "numbers.csv").read_text() == "a,b\n1,\n,2\n"
    (tmp_path / "toy" / "plot.png").unlink()
    assert command.main(arguments) == 0
    toy.settings["setting"] = 2
    assert command.main(arguments) == 0
    assert command.main([*arguments, "--fast"]) == 0
    assert toy.runs == 4
    page = (tmp_path / "README.md").read_text()
    assert "| 7 \\| 8 | seven | fast True, 25% to 50% |" in page and "](toy/plot.png)" in page


def test_publish_needs_every_full_result(
    toys: list[Toy], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (ROOT / "README.md").read_text()
    assert command.main(["figure-99", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert command.main(["toy", "--out", str(tmp_path)]) == 0
    assert command.main(["publish", "--out", str(tmp_path)]) == 2
    assert "broken has no full result" in capsys.readouterr().err
    assert (ROOT / "README.md").read_text() == before
