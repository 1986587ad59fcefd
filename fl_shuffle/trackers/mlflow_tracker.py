"""MLflow: a run in the experiment `fl-shuffle`, where $MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import time
from typing import Any

from fl_shuffle.runs.events import RoundFinished, RunEvent, RunFinished, RunStarted
from fl_shuffle.runs.facts import publishes_times
from fl_shuffle.trackers.protocol import FINAL, finite, numbers_of, settings_of

EXPERIMENT = "fl-shuffle"
LONGEST = 500
"""Characters of a parameter that every MLflow server takes."""


class Tracker:
    """Logs settings as parameters, rounds as metrics by step, the summary as metrics and tags.

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
