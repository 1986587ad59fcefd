"""A run told to Flower's log: what `flwr run . --stream` and `flwr log` show."""

from __future__ import annotations

import logging

from fl_shuffle.configuration.sections import Config
from fl_shuffle.run_words import HEADINGS, cells, footer, header, row
from fl_shuffle.runs import Preparing, RoundFinished, RunEvent, RunStarted
from fl_shuffle.runs.facts import publishes_times

log = logging.getLogger("flwr")
"""Flower's own, whose lines it keeps with the run."""


class FlowerLog:
    """An observer that logs the lines that `fl-shuffle simulate` prints.

    A deployment's log may be read by others than the holders of the data: it gets no times, and
    nothing of how the data are prepared.
    """

    def __init__(self, config: Config) -> None:
        self._simulated = publishes_times(config)
        self._run: RunStarted | None = None

    def __call__(self, event: RunEvent) -> None:
        for line in self._lines(event):
            log.info("%s", line)

    def _lines(self, event: RunEvent) -> list[str]:
        if isinstance(event, Preparing):
            return [f"{event.text} ..."] if self._simulated else []
        if isinstance(event, RunStarted):
            self._run = event
            return [*header(event.config, event.directory, event.warnings), row(HEADINGS)]
        if isinstance(event, RoundFinished):
            assert self._run is not None
            seconds = event.outcome.seconds if self._simulated else None
            return [row(cells(event.outcome, self._run.config.run.rounds, seconds))]
        return footer(event.summary)
