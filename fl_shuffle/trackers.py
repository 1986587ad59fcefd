"""Trackers: what a run tells (`fl_shuffle.runs.events`), handed to TensorBoard, MLflow or W&B.

A tracker is called with every event and closed at the end, whatever that is:

    with tracking(["mlflow", "my_module:make_tracker"]) as tracker:
        fs.simulate(config, on_event=tracker)

They are told what the run directory says, and no more: settings, each round's metrics and
epsilons, the final numbers. Where a run publishes no times (`run.entropy = "system"`) they get
none.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from fl_shuffle._internal.plugins import load_function, require_extra
from fl_shuffle.errors import ConfigError, require_choice
from fl_shuffle.ledger.store import settings_of
from fl_shuffle.runs.events import (
    Observer,
    RoundOutcome,
    RunEvent,
    RunFinished,
    Watcher,
    publishes_times,
)

FINAL = ("accuracy", "loss", "epsilon", "shuffled_epsilon", "sum_epsilon", "delta", "rounds")
"""Of the summary: what a list of runs is compared by."""


class Tracker(Protocol):
    """Takes a run's events, in order; what it raises ends the run."""

    def __call__(self, event: RunEvent) -> None: ...

    def close(self) -> None:
        """Close it: the run has ended, perhaps without a `RunFinished`. Called once."""


def make_tracker(name: str) -> Tracker:
    """Return a shipped tracker, or what the user's `module:function` returns when called with
    nothing.

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
    require_choice("--track", name, [*SHIPPED, "module:function"])
    require_extra(name, name, f"--track {name}")
    return SHIPPED[name]()


@contextmanager
def tracking(names: Sequence[str], also: Tracker | None = None) -> Iterator[Observer]:
    """Yield an observer that hands each event to `also` and to every tracker, all closed
    afterwards."""
    with ExitStack() as stack:
        trackers = list[Tracker]()
        for tracker in chain([also] if also else [], map(make_tracker, dict.fromkeys(names))):
            stack.callback(tracker.close)
            trackers.append(tracker)

        def observe(event: RunEvent) -> None:
            for tracker in trackers:
                tracker(event)

        yield observe


def finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that are finite numbers."""
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


class _Library(Watcher):
    """Hands a run on to a library: how it began, each round's finite numbers (metrics, reports,
    each column's epsilon of the most exposed client), and how it ended.

    Where a run publishes no times, a round's time is its number.
    """

    done = False
    library: Any = None

    def __call__(self, event: RunEvent) -> None:
        """See `Tracker`."""
        super().__call__(event)
        self.done = isinstance(event, RunFinished)

    def when(self, step: int, per_second: float = 1.0) -> float:
        """Return the present time, in seconds or parts of them."""
        return per_second * time.time() if publishes_times(self.run.config) else float(step)

    def round(self, outcome: RoundOutcome) -> None:
        """Log the round's numbers."""
        found: dict[str, Any] = {**outcome.metrics, "num_reports": float(outcome.spend.num_reports)}
        found |= {f"epsilon/{name}": each.worst for name, each in outcome.spend.columns.items()}
        self.log(finite(found), outcome.round_number)

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log numbers of a round."""
        raise NotImplementedError


class TensorboardTracker(_Library):
    """TensorBoard: a folder `tensorboard/RUN` here, for `tensorboard --logdir tensorboard`.

    Writes scalars by round, and the configuration and summary as text.
    """

    def __init__(self, folder: str | Path = "tensorboard") -> None:
        self._folder = Path(folder)

    def start(self) -> None:
        """Open the run's own folder."""
        from torch.utils.tensorboard import SummaryWriter

        place = self._folder / self.run.directory.name
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
        self.library = SummaryWriter(str(place))
        self._text("configuration", self.run.config.to_dict())

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log a scalar each."""
        for name, value in numbers.items():
            self.library.add_scalar(name, value, step, walltime=self.when(step))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the summary as text."""
        self._text("summary", summary)

    def close(self) -> None:
        """Write what is left."""
        if self.library is not None:
            self.library.close()

    def _text(self, name: str, table: Mapping[str, Any]) -> None:
        body = "\n".join(f"    {line}" for line in json.dumps(table, indent=2).splitlines())
        self.library.add_text(name, body, 0, walltime=self.when(0))


NAME = "fl-shuffle"
"""Of the experiment in MLflow, and of the project in W&B."""
LONGEST = 500
"""Characters of a parameter that every MLflow server takes."""


class MlflowTracker(_Library):
    """MLflow: a run in the experiment `fl-shuffle`, where $MLFLOW_TRACKING_URI says.

    Logs settings as parameters, rounds as metrics by step, the summary as metrics and tags. A run
    that ends without a summary is marked FAILED.
    """

    _run = ""

    def start(self) -> None:
        """Start a run of the experiment, with its settings."""
        from mlflow.tracking import MlflowClient

        self.library = MlflowClient()
        known = self.library.get_experiment_by_name(NAME)
        place = known.experiment_id if known else self.library.create_experiment(NAME)
        name = self.run.directory.name
        made = self.library.create_run(place, start_time=int(self.when(0, 1000.0)), run_name=name)
        self._run = made.info.run_id
        for name, value in settings_of(self.run.config.to_dict()).items():
            self.library.log_param(self._run, name, str(value)[:LONGEST])
        self.library.set_tag(self._run, "run_directory", str(self.run.directory))

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log a metric each."""
        now = int(self.when(step, 1000.0))
        for name, value in numbers.items():
            self.library.log_metric(self._run, name, value, timestamp=now, step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the final numbers, and what they stand for."""
        self.log(finite({f"final/{name}": summary[name] for name in FINAL}), summary["rounds"])
        for name in ("headline", "unit", "relation", "release"):
            self.library.set_tag(self._run, name, str(summary[name]))

    def close(self) -> None:
        """Say whether the run came to its end."""
        if self._run:
            status = "FINISHED" if self.done else "FAILED"
            self.library.set_terminated(self._run, status, end_time=int(self.when(0, 1000.0)))


class WandbTracker(_Library):
    """Weights & Biases: a run in the project `fl-shuffle`, offline unless $WANDB_MODE is "online".

    Logs the configuration, rounds by step, and the summary; no code, console or machine facts.

    W&B writes down when each round was logged: a run that publishes no times is refused with
    `ConfigError`. One that ends without a summary has exit code 1.
    """

    def start(self) -> None:
        """Start a run of the project, with its configuration."""
        import wandb

        if not publishes_times(self.run.config):
            raise ConfigError(
                "--track wandb publishes when rounds end, which may depend on clients' records; "
                "with run.entropy = 'system' use tensorboard or mlflow"
            )
        quiet = {"x_disable_stats": True, "x_disable_meta": True, "disable_git": True}
        self.library = wandb.init(
            project=NAME,
            name=self.run.directory.name,
            config=self.run.config.to_dict(),
            mode=os.environ.get("WANDB_MODE", "offline"),
            save_code=False,
            settings=wandb.Settings(console="off", **quiet),
        )

    def log(self, numbers: dict[str, float], step: int) -> None:
        """Log all at once."""
        self.library.log(numbers, step=step)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the final numbers."""
        self.library.summary.update(finite({name: summary[name] for name in FINAL}))

    def close(self) -> None:
        """End the run on W&B's side."""
        if self.library is not None:
            self.library.finish(exit_code=0 if self.done else 1)


SHIPPED: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorboardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""Each needs the extra of its name."""
