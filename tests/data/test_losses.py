"""Own losses and metrics, and regression, through whole runs and against plain PyTorch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fl_shuffle as fs
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.models import build_loss, squared_error
from fl_shuffle.errors import FlShuffleError

HERE = __name__


def mean(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def picked(outputs: Tensor, labels: Tensor) -> Tensor:
    return -outputs.gather(1, labels[:, None])[:, 0]


def mixed(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - outputs.mean(0)).square().sum(1)


def r2(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    return {"r2": 1 - (outputs - labels).square().sum() / (labels - labels.mean()).square().sum()}


def nonsense(outputs: Tensor, labels: Tensor) -> float:
    return 0.5


GAPMINDER = {
    "run": {"rounds": 5, "seed": 2},
    "data": {"source": "gapminder", "partition": "natural", "clients": 114, "features": "none"},
    "model": {"kind": "linear", "init": "zeros", "loss": "squared-error", "metrics": f"{HERE}:r2"},
    "privacy": {"unit": "client", "clip_norm": 0.5},
    "budgets": {"distribution": "constant", "epsilon": 100.0},
    "server": {"learning_rate": 2.0},
}


def test_regression_with_natural_clients(tmp_path: Path) -> None:
    result = fs.simulate(GAPMINDER, out=tmp_path / "run")
    assert result.accuracy is None and result.summary["metrics"]["r2"] > 0.5
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["r2"]) == pytest.approx(result.summary["metrics"]["r2"])
    assert rows[0]["accuracy"] == "" and float(rows[-1]["loss"]) < float(rows[0]["loss"])
    page = result.report(tmp_path / "page.html").read_text()
    assert "1 numbers to predict" in page and len(result.ledger) == 114


def test_squared_errors_are_summed_over_a_records_outputs() -> None:
    outputs, labels = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[0.0, 4.0], [0.0, 2.0]])
    assert squared_error(outputs, labels).tolist() == pytest.approx([2.5, 4.5])


@pytest.mark.parametrize(
    ("model", "regression", "why"),
    [
        ({"loss": f"{HERE}:mean"}, False, "one loss for each"),
        ({"loss": f"{HERE}:mixed"}, False, "mixes records"),
        ({"loss": f"{HERE}:picked"}, True, "raised"),
        ({"loss": "squared-error"}, False, "is for regression"),
        ({}, True, "set model.loss = 'squared-error'"),
        ({"loss": f"{HERE}:HERE"}, False, "must be a function"),
    ],
)
def test_losses_that_do_not_fit_are_one_line(
    model: dict[str, str], regression: bool, why: str
) -> None:
    section = parse_config({"model": model}).model
    with pytest.raises(FlShuffleError, match=why):
        build_loss(section, 3, regression=regression)


def test_metrics_that_are_no_numbers_are_one_line(tmp_path: Path) -> None:
    model = {"metrics": f"{HERE}:nonsense"}
    with pytest.raises(FlShuffleError, match="mapping of names to numbers"):
        fs.simulate({"run": {"rounds": 1}, "model": model}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
