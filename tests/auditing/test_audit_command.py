"""`fl-shuffle audit` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main


def too_quiet(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> np.ndarray:
    """A randomizer that adds far less noise than its declared budget needs."""
    return mean + generator.laplace(scale=1e-3, size=mean.shape)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    laplace = 'unit = "record"\nrandomizer = "laplace"\n[budgets]\ndelta = 0.0\n'
    path.write_text(f"[data]\nclients = 12\n[privacy]\n{laplace}", encoding="utf-8")
    return path


def test_a_contradicted_claim_is_exit_code_one(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    override = f"privacy.randomizer={__name__}:too_quiet"
    options = ["--trials", "8", "--reports", "2000", "--seconds", "1"]
    assert main(["audit", str(small), *options, "--set", override]) == 1
    text = capsys.readouterr().out
    assert "CONTRADICTS THE PROVEN BOUND" in text
    assert "proven bound CONTRADICTED" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "does not exist"),
        (["SMALL", "--confidence", "nan"], "confidence = nan"),
        (["SMALL", "--set", "privacy.unit=person"], "privacy.unit"),
        (["FOLDER"], "no config.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"SMALL": str(small), "FOLDER": str(small.parent)}
    assert main(["audit", *(places.get(argument, argument) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fl-shuffle: error: ")
    assert words in error
    assert error.count("\n") == 1
