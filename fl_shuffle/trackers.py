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
from pathlib import Path
from typing import Any, Protocol

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, require_choice
from fl_shuffle.plugins import load_function, require_extra
from fl_shuffle.runs.events import Observer, RoundFinished, RunEvent, RunFinished, RunStarted
from fl_shuffle.runs.outcome import RoundOutcome, publishes_times

FINAL = ("accuracy", "loss", "epsilon", "proven_epsilon", "sum_epsilon", "delta", "rounds")
"""Of the summary: what a list of runs is compared by."""


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
    require_choice("--track", name, [*SHIPPED, "module:function"])
    require_extra(name, name, f"--track {name}")
    return SHIPPED[name]()


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


FOLDER = "tensorboard"


class TensorboardTracker:
    """TensorBoard: a folder `tensorboard/RUN` here, for `tensorboard --logdir tensorboard`.

    Writes scalars by round, and the configuration and summary as text.

    Where a run publishes no times a scalar carries its round's number in place of one.
    """

    def __init__(self, folder: str | Path = FOLDER) -> None:
        self._folder = Path(folder)
        self._writer: Any = None
        self._times = False

    def __call__(self, event: RunEvent) -> None:
        """See `Tracker`."""
        if isinstance(event, RunStarted):
            from torch.utils.tensorboard import SummaryWriter

            place = self._folder / event.directory.name
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o700)
            self._times = publishes_times(event.config)
            self._writer = SummaryWriter(str(place))
            self._text("configuration", event.config.to_dict())
        elif isinstance(event, RoundFinished):
            number = event.outcome.round_number
            for name, value in numbers_of(event.outcome).items():
                self._writer.add_scalar(name, value, number, walltime=self._time(number))
        elif isinstance(event, RunFinished):
            self._text("summary", event.summary)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def _time(self, number: int) -> float | None:
        return None if self._times else float(number)

    def _text(self, name: str, table: dict[str, Any]) -> None:
        body = "\n".join(f"    {line}" for line in json.dumps(table, indent=2).splitlines())
        self._writer.add_text(name, body, 0, walltime=self._time(0))


EXPERIMENT = "fl-shuffle"
LONGEST = 500
"""Characters of a parameter that every MLflow server takes."""


class MlflowTracker:
    """MLflow: a run in the experiment `fl-shuffle`, where $MLFLOW_TRACKING_URI says.

    Logs settings as parameters, rounds as metrics by step, the summary as metrics and tags.

    Where a run publishes no times a metric's time is its round's number. A run that ends without a
    summary is marked FAILED.
    """

    def __init__(self, client: Any = None) -> None:
        """`client`: an `MlflowClient`, or one of the default address."""
        if client is None:
            from mlflow.tracking import MlflowClient

            client = MlflowClient()
        self._client = client
        self._run = ""
        self._times = False
        self._done = False

    def __call__(self, event: RunEvent) -> None:
        """See `Tracker`."""
        if isinstance(event, RunStarted):
            self._times = publishes_times(event.config)
            known = self._client.get_experiment_by_name(EXPERIMENT)
            place = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
            name = event.directory.name
            made = self._client.create_run(place, start_time=self._now(0), run_name=name)
            self._run = made.info.run_id
            for key, value in settings_of(event.config).items():
                self._client.log_param(self._run, key, value[:LONGEST])
            self._client.set_tag(self._run, "run_directory", str(event.directory))
        elif isinstance(event, RoundFinished):
            self._log(numbers_of(event.outcome), event.outcome.round_number)
        elif isinstance(event, RunFinished):
            summary = event.summary
            last = finite({f"final/{name}": summary[name] for name in FINAL})
            self._log(last, summary["rounds"])
            for name in ("headline", "unit", "relation", "release"):
                self._client.set_tag(self._run, name, str(summary[name]))
            self._done = True

    def close(self) -> None:
        """Say whether the run came to its end."""
        if self._run:
            status = "FINISHED" if self._done else "FAILED"
            self._client.set_terminated(self._run, status, end_time=self._now(0))

    def _log(self, numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, timestamp=self._now(step), step=step)

    def _now(self, step: int) -> int:
        """Milliseconds."""
        return int(1000 * time.time()) if self._times else step


PROJECT = "fl-shuffle"
WANDB_FAILED = 1
"""The exit code of a run that ends without a summary."""


class WandbTracker:
    """Weights & Biases: a run in the project `fl-shuffle`, offline unless $WANDB_MODE is "online".

    Logs the configuration, rounds by step, and the summary; no code, console or machine facts.

    W&B writes down when each round was logged: a run that publishes no times is refused with
    `ConfigError`.
    """

    def __init__(self, wandb: Any = None) -> None:
        """`wandb`: the module, imported unless given."""
        if wandb is None:
            import wandb as module

            wandb = module
        self._wandb = wandb
        self._run: Any = None
        self._done = False

    def __call__(self, event: RunEvent) -> None:
        """See `Tracker`."""
        if isinstance(event, RunStarted):
            if not publishes_times(event.config):
                raise ConfigError(
                    "--track wandb writes down when rounds end, and how long clients compute may "
                    "hang on their records; with run.entropy = 'system' use tensorboard or mlflow"
                )
            self._run = self._wandb.init(
                project=PROJECT,
                name=event.directory.name,
                config=event.config.to_dict(),
                mode=os.environ.get("WANDB_MODE", "offline"),
                save_code=False,
                settings=self._wandb.Settings(
                    console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
                ),
            )
        elif isinstance(event, RoundFinished):
            self._run.log(numbers_of(event.outcome), step=event.outcome.round_number)
        elif isinstance(event, RunFinished):
            self._run.summary.update(finite({n: event.summary[n] for n in FINAL}))
            self._done = True

    def close(self) -> None:
        """End the run on W&B's side."""
        if self._run is not None:
            self._run.finish(exit_code=0 if self._done else WANDB_FAILED)


SHIPPED: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorboardTracker,
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}
"""Each needs the extra of its name."""
