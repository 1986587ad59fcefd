"""What a tracker is, which there are, and what all of them are told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, Protocol

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, require_choice
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.plugins import load_function, require_extra
from fl_shuffle.runs.events import Observer, RunEvent

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Shipped ones: each is a module here with a class `Tracker`, and an extra of that name."""


class Tracker(Protocol):
    """Takes a run's events, in order; what it raises ends the run."""

    def __call__(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """The run has ended, perhaps without a `RunFinished`. Called once."""


def make_tracker(name: str) -> Tracker:
    """A shipped tracker, or what the user's `module:function` returns when called with nothing.

    Raises `ConfigError` for another name, a library that is missing, and what is no tracker.
    """
    if ":" in name:
        found: Any = load_function(name, field="--track")()
        if not callable(found) or not callable(getattr(found, "close", None)):
            raise ConfigError(
                f"--track {name!r} returned {type(found).__name__}; it must return an object that "
                "can be called with events and has close()"
            )
        tracker: Tracker = found
        return tracker
    require_choice("--track", name, [*TRACKERS, "module:function"])
    require_extra(name, name, f"--track {name}")
    made: Tracker = import_module(f"fl_shuffle.trackers.{name}_tracker").Tracker()
    return made


@contextmanager
def tracking(names: Sequence[str], also: Observer | None = None) -> Iterator[Observer]:
    """An observer that hands each event to `also` and to every tracker, closed afterwards."""
    with ExitStack() as stack:
        observers: list[Callable[[RunEvent], None]] = [] if also is None else [also]
        for name in dict.fromkeys(names):
            tracker = make_tracker(name)
            stack.callback(tracker.close)
            observers.append(tracker)

        def observe(event: RunEvent) -> None:
            for observer in observers:
                observer(event)

        yield observe


def settings_of(config: Config) -> dict[str, str]:
    """Every setting as text, by `section.key`."""
    return {
        f"{section}.{key}": str(value)
        for section, table in config.to_dict().items()
        for key, value in table.items()
    }


def numbers_of(outcome: RoundOutcome) -> dict[str, float]:
    """A round's finite numbers: metrics, reports, and each column's epsilon of the worst client."""
    found: dict[str, float | None] = dict(outcome.metrics)
    found["reports"] = float(outcome.spend.n_reports)
    for name, column in outcome.spend.columns.items():
        found[f"epsilon/{name}"] = column.worst
    return finite(found)


def finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are finite numbers."""
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


FINAL = ("accuracy", "loss", "epsilon", "proven_epsilon", "sum_epsilon", "delta", "rounds")
"""Of the summary: what a list of runs is compared by."""
