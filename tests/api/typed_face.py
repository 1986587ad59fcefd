"""The public face as a user's type checker sees it: mypy reads this file, nothing runs it.

Whatever a name returns is stated: a face that answered `Any` would fail here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.results import ClientSpend
from fl_shuffle.runs.events import RoundFinished, RunEvent


def bounds() -> None:
    """One answer, all of them, or a number for a target."""
    answer = fs.bound(randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clients=10_000, delta=1e-6)
    assert_type(answer, fs.Guarantee)
    assert_type(answer.epsilon, float)
    assert_type(answer.status, Status)
    assert_type(answer.is_guarantee, bool)
    question = fs.BoundQuery(randomizer="krr", k=10, epsilon0=1.0, clients=10_000, delta=1e-6)
    for name, found in fs.compare(epsilon0=1.0, clients=10_000, delta=1e-6).items():
        assert_type(name, str)
        if not isinstance(found, fs.FlShuffleError):
            assert_type(found, fs.Guarantee)
    assert_type(fs.solve("clients", question, delta=1e-6).value, float)
    fs.bound(randomiser="krr")  # type: ignore[call-arg]


def estimates(values: NDArray[np.int64], numbers: NDArray[np.float64]) -> None:
    """A mean, frequencies, and what they cost."""
    found = fs.private_frequencies(values, 1.0, categories=9, randomizer="oue", delta=1e-6)
    assert_type(found, fs.PrivateEstimate)
    assert_type(found.central, fs.Guarantee)
    assert_type(found.expected_error, float)
    mean = fs.private_mean(numbers, numbers, low=0.0, high=1.0, delta=1e-6)
    assert_type(mean.value, NDArray[np.float64])
    fs.private_mean(numbers, 1.0, range=(0.0, 1.0), delta=1e-6)  # type: ignore[call-arg]


def runs(configs: Sequence[str]) -> None:
    """Runs from files, tables or a `Config`; what they left behind."""

    def watch(event: RunEvent) -> None:
        if isinstance(event, RoundFinished):
            assert_type(event.outcome.round_number, int)

    tables = {"run": {"rounds": 3}, "data": {"source": "digits", "clients": 20}}
    result = fs.simulate(tables, overrides={"run.seed": 2}, on_event=watch)
    assert_type(result, fs.Result)
    assert_type(result.epsilon, float)
    assert_type(result.accuracy, float | None)
    assert_type(result.model, nn.Module)
    assert_type(result.ledger.client(17), ClientSpend)
    assert_type(result.warnings, tuple[str, ...])
    assert_type(fs.resume(result.directory), fs.Result)
    assert_type(fs.cost("configs/quickstart.toml"), fs.Cost)
    assert_type(fs.calibrate("configs/quickstart_totals.toml"), tuple[fs.TotalCost, ...])
    for config in configs:
        assert_type(fs.sweep(config, grid={"privacy.clip_norm": [0.5, 1.0]}), fs.SweepResult)
