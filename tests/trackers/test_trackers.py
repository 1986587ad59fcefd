"""Trackers get what a run publishes, in their own terms, and are closed whatever happens."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pytest import CaptureFixture

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError
from fl_shuffle.runs.events import Preparing, RoundFinished, RunEvent, RunFinished, RunStarted
from fl_shuffle.trackers import (
    MlflowTracker,
    TensorboardTracker,
    Tracker,
    WandbTracker,
    finite,
    tracking,
)

CONFIG = {"run": {"rounds": 2}, "data": {"clients": 5}}


Told = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Calls:
    """Writes down every call made of it, or of what its calls return."""

    def __init__(self, told: Told, name: str) -> None:
        self._told, self._name = told, name

    def __getattr__(self, name: str) -> Calls:
        return Calls(self._told, name)

    def __call__(self, *arguments: Any, **options: Any) -> Calls:
        self._told.append((self._name, arguments, options))
        return self


OWN: Told = []


def own() -> Calls:
    """A user's own tracker."""
    return Calls(OWN, "event")


def no_tracker() -> int:
    return 3


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunEvent], fs.Result]:
    """The events of one small run, and what it left."""
    with tracking([f"{__name__}:own"]) as tracker:
        result = fs.simulate(CONFIG, out=tmp_path_factory.mktemp("a") / "run", on_event=tracker)
    assert [name for name, _, _ in OWN].count("close") == 1 and OWN[-1][0] == "close"
    return [arguments[0] for _, arguments, _ in OWN[:-1]], result


def test_an_own_tracker_is_told_everything_and_closed(
    played: tuple[list[RunEvent], fs.Result],
) -> None:
    kinds = [type(event) for event in played[0] if not isinstance(event, Preparing)]
    assert kinds == [RunStarted, RoundFinished, RoundFinished, RunFinished]
    with pytest.raises(RuntimeError), tracking([f"{__name__}:own"]):
        raise RuntimeError
    assert [name for name, _, _ in OWN[-2:]] == ["close", "close"]


def told_to(make: Callable[[], Tracker], events: list[RunEvent], *, times: bool) -> Told:
    """What the library is told of these events, or of a run's that publishes no times."""
    told: Told = []
    tracker = make()
    config = parse_config({**CONFIG, "run": {"rounds": 2, "entropy": "system"}})
    libraries = ("mlflow.tracking", "wandb", "torch.utils.tensorboard")
    with patch.dict(sys.modules, dict.fromkeys(libraries, Calls(told, "library"))):
        for event in events:
            untimed = isinstance(event, RunStarted) and not times
            changed: dict[str, Any] = {"config": config} if untimed else {}
            tracker(replace(event, **changed))
        tracker.close()
    return told


@pytest.mark.parametrize("times", [True, False])
def test_mlflow_is_told_the_runs_own_numbers(
    played: tuple[list[RunEvent], fs.Result], times: bool
) -> None:
    events, result = played
    told = told_to(MlflowTracker, events, times=times)
    metrics = [(a[1], a[2], o) for name, a, o in told if name == "log_metric"]
    proven = [(value, o["step"]) for name, value, o in metrics if name == "epsilon/shuffled"]
    assert proven == [(pytest.approx(result.metrics["shuffled_epsilon"][k]), k + 1) for k in (0, 1)]
    assert ("final/epsilon", pytest.approx(result.epsilon)) in [(n, v) for n, v, _ in metrics]
    stamps = [o["timestamp"] for _, _, o in metrics]
    assert (min(stamps) > 1e12) if times else (max(stamps) <= 2)
    assert [a[1] for name, a, _ in told if name == "set_terminated"] == ["FINISHED"]
    assert ("data.clients", "5") in [a[1:] for name, a, _ in told if name == "log_param"]


def test_wandb_is_told_the_same_and_refuses_runs_without_times(
    played: tuple[list[RunEvent], fs.Result],
) -> None:
    events, result = played
    told = told_to(WandbTracker, events, times=True)
    (started,) = [o for name, _, o in told if name == "init"]
    assert started["mode"] == "offline" and started["config"]["data"]["clients"] == 5
    logged = [(a[0]["accuracy"], o["step"]) for name, a, o in told if name == "log"]
    assert logged == [(pytest.approx(result.metrics["accuracy"][k]), k + 1) for k in (0, 1)]
    assert [o for name, _, o in told if name == "finish"] == [{"exit_code": 0}]
    with pytest.raises(ConfigError, match="use tensorboard or mlflow"):
        told_to(WandbTracker, events, times=False)


def test_what_is_no_tracker_is_one_line(capsys: CaptureFixture[str]) -> None:
    for name, why in (
        ("tensorbord", "did you mean 'tensorboard'"),
        (f"{__name__}:no_tracker", "returned int"),
        ("no_such_module:x", "no module"),
    ):
        assert main(["simulate", "--track", name]) == 2
        said = capsys.readouterr().err
        assert why in said and said.count("\n") == 1


def test_tensorboards_scalars_are_the_runs_numbers(
    played: tuple[list[RunEvent], fs.Result], tmp_path: Path
) -> None:
    events, result = played
    told = told_to(lambda: TensorboardTracker(tmp_path), events, times=False)
    scalars = [(a, o["walltime"]) for name, a, o in told if name == "add_scalar"]
    proven = [(a[1], time) for a, time in scalars if a[0] == "epsilon/shuffled"]
    assert [value for value, _ in proven] == pytest.approx(list(result.metrics["shuffled_epsilon"]))
    assert [time for _, time in proven] == [1.0, 2.0] and told[-1][0] == "close"
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_only_finite_numbers_are_told() -> None:
    """A run without privacy has an infinite epsilon, and a model may have no loss."""
    given = {"a": 1, "b": 0.5, "c": math.inf, "d": -math.inf, "e": math.nan, "f": None, "g": "1"}
    assert finite(given) == {"a": 1.0, "b": 0.5}
