"""What a user sees during a run: a live line, plain lines, JSON lines, the result, or what
Flower keeps with the run (`flwr run . --stream`, `flwr log`)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fl_shuffle._internal.renamed import with_old_keys
from fl_shuffle.configuration.sections import Config
from fl_shuffle.ledger.tables import OLD_CSV
from fl_shuffle.runs import console_messages as words
from fl_shuffle.runs.events import RoundOutcome, Watcher, publishes_times
from fl_shuffle.runs.views import under_both_names
from fl_shuffle.settings_schema import json_ready

flower = logging.getLogger("flwr")
"""Flower's own logger, whose lines it keeps with the run."""


class Display(Watcher):
    """Plain lines: progress to `progress`, the result to `out`. A run calls it with its events.

    With `quiet` only the one line of the result, and what went wrong.
    """

    def __init__(self, out: TextIO, progress: TextIO, *, quiet: bool = False) -> None:
        self._out, self._progress, self._quiet = out, progress, quiet

    def prepare(self, text: str) -> None:
        """Say what is being done before the run begins."""
        self._tell(f"{text} ...")

    def _tell(self, *lines: str) -> None:
        """Write a progress line."""
        if not self._quiet:
            words.say(*lines, out=self._progress)

    def start(self) -> None:
        """Say what is about to run."""
        run = self.run
        told = run.config, run.directory, run.warnings, run.noise, run.budgets
        self._tell(*words.header(*told), *self._heads())

    def _heads(self) -> list[str]:
        """Return what stands above the lines of the rounds."""
        return [
            *words.shown_rounds(self.run.config.run.rounds),
            words.row(words.headings(self.run.config)),
        ]

    def round(self, outcome: RoundOutcome) -> None:
        """Print a line for a round, or none where there are many."""
        rounds = self.run.config.run.rounds
        if words.is_shown(outcome.round_number, rounds):
            self._tell(words.row(words.cells(outcome, self.run.config)))
        if estimated := words.estimates(outcome, self.run.config):
            self._tell(estimated)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Print the final numbers."""
        folder, here = Path(summary["run_directory"]), Path.cwd()
        # As who stands here calls it.
        place = folder.relative_to(here) if folder.is_relative_to(here) else folder
        if not self._quiet:
            words.say("", out=self._progress)
            words.say(*words.footer(summary, place), out=self._out)
            return
        for line in words.footer(summary, place):
            if line.startswith("!"):
                words.say(line, out=self._progress)
        words.say(words.one_line(summary, place), out=self._out)


class FlowerLog(Display):
    """The same lines in Flower's log, as a deployment has them.

    Others than the holders of the data may read it: it gets no times, and nothing of how the data
    are prepared.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(sys.stdout, sys.stderr)
        self._simulated = publishes_times(config)

    def prepare(self, text: str) -> None:
        """See `Display`."""
        if self._simulated:
            super().prepare(text)

    def _tell(self, *lines: str) -> None:
        for line in lines:
            flower.info("%s", line)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See `Display`."""
        self._tell(*words.footer(summary))


class LiveDisplay(Display):
    """One line that is rewritten in place, for terminals."""

    def __init__(self, out: TextIO, progress: TextIO) -> None:
        super().__init__(out, progress)
        from rich import progress as rich
        from rich.console import Console

        self._bar = rich.Progress(
            rich.MofNCompleteColumn(),
            rich.BarColumn(bar_width=24),
            rich.TextColumn("{task.description}"),
            rich.TimeRemainingColumn(),
            console=Console(file=progress),
            transient=True,
        )

    def start(self) -> None:
        """See `Display`; the line says itself what it shows."""
        super().start()
        if not publishes_times(self.run.config):
            self._bar.columns = self._bar.columns[:-1]
        self._task = self._bar.add_task("", total=self.run.config.run.rounds)
        self._bar.start()

    def certify(self, text: str) -> None:
        """Say so in the line that is rewritten, until the next round is over."""
        self._bar.update(self._task, description=text)

    def _heads(self) -> list[str]:
        """See `Display`: one line is rewritten, and says itself what it shows."""
        return []

    def round(self, outcome: RoundOutcome) -> None:
        """Move on."""
        accuracy = outcome.metrics.get("accuracy")
        shown = "" if accuracy is None else f"accuracy {accuracy:.1%}  "
        spend = outcome.spend
        column = spend.columns.get(spend.headline_column)
        status = "(no privacy)" if column is None else column.status
        said = f"{shown}epsilon {words.number(spend.headline)} {status}"
        self._bar.update(self._task, completed=outcome.round_number, description=said)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """See `Display`."""
        self.close()
        super().finish(summary)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()


class JsonDisplay(Display):
    """One JSON object per round, then the summary: for machines."""

    def prepare(self, text: str) -> None:
        """Print nothing: machines do not wonder."""

    def _print(self, event: str, **told: object) -> None:
        print(json.dumps(json_ready({"event": event, **told})), file=self._out, flush=True)

    def start(self) -> None:
        """Print where it is played, and what must be known of its numbers."""
        run = self.run
        self._print("start", run_directory=str(run.directory), warnings=list(run.warnings))

    def round(self, outcome: RoundOutcome) -> None:
        """Print the round's row of metrics.csv."""
        self._print("round", **with_old_keys(outcome.row, OLD_CSV), delta=outcome.spend.delta)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Print what summary.json holds."""
        self._print("finish", **under_both_names(summary))


def make_display(*, quiet: bool, as_json: bool) -> Display:
    """Return the display that fits the options and the terminal."""
    if as_json:
        return JsonDisplay(sys.stdout, sys.stderr)
    if quiet or not sys.stderr.isatty():
        return Display(sys.stdout, sys.stderr, quiet=quiet)
    return LiveDisplay(sys.stdout, sys.stderr)
