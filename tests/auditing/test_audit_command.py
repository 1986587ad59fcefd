"""`fl-shuffle audit` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main

SMALL = """
[run]
rounds = 2
[data]
source = "digits"
clients = 12
[privacy]
unit = "record"
clip_norm = 0.5
randomizer = "laplace"
[budgets]
epsilon = 2.0
delta = 0.0
"""
QUICK = ["--trials", "40", "--reports", "2000", "--seconds", "600"]


def too_quiet(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> np.ndarray:
    """A randomizer that adds far less noise than its declared budget needs."""
    return mean + generator.laplace(scale=1e-3, size=mean.shape)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_a_configuration_and_a_run_of_it_are_audited_alike(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, reports = tmp_path / "run", []
    assert main(["simulate", str(small), "--quiet", "--out", str(out)]) == 0
    capsys.readouterr()
    for source in (small, out):
        assert main(["audit", str(source), *QUICK, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        del report["seconds"], report["name"]
        reports.append(report)
    report, again = reports
    assert report == again
    assert report["clients"] == 12
    assert report["dimension"] == 64 * 10 + 10
    assert report["breaks_proven"] is False
    assert report["clipping"]["sensitivity_share"] <= 1.001
    games = {finding["game"] for finding in report["findings"]}
    assert "one report, its sender known" in games
    for finding in report["findings"]:
        assert finding["plays"] > 0
        assert finding["largest_provable_epsilon"] != 0
        for point in finding["points"]:
            assert 0.0 <= point["epsilon_lower"] <= point["proven_epsilon"]


def test_a_contradicted_claim_is_exit_code_one(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = f"privacy.randomizer={__name__}:too_quiet"
    assert main(["audit", str(small), *QUICK, "--set", override]) == 1
    text = capsys.readouterr().out
    assert "CONTRADICTS THE PROVEN BOUND" in text
    assert "proven bound CONTRADICTED" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "does not exist"),
        (["SMALL", "--trials", "3"], "trials = 3"),
        (["SMALL", "--reports", "3"], "reports = 3"),
        (["SMALL", "--confidence", "1"], "confidence = 1.0"),
        (["SMALL", "--confidence", "nan"], "confidence = nan"),
        (["SMALL", "--seconds", "0"], "seconds = 0.0"),
        (["SMALL", "--seed", "-1"], "seed = -1"),
        (["SMALL", "--set", "privacy.unit=person"], "privacy.unit"),
        (["FOLDER"], "no config.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str],
    words: str,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"SMALL": str(small), "FOLDER": str(tmp_path)}
    assert main(["audit", *(places.get(argument, argument) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fl-shuffle: error: ")
    assert words in error
    assert error.count("\n") == 1
