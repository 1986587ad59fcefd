"""TensorBoard: a folder `tensorboard/RUN` here, for `tensorboard --logdir tensorboard`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_shuffle.runs.events import RoundFinished, RunEvent, RunFinished, RunStarted
from fl_shuffle.runs.facts import publishes_times
from fl_shuffle.trackers.protocol import numbers_of

FOLDER = "tensorboard"


class Tracker:
    """Writes scalars by round, and the configuration and summary as text.

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
