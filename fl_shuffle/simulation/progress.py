"""What a user sees while a run goes on: a live table, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING, Any, TextIO

from fl_shuffle.run_words import HEADINGS, cells, footer, header, row, wrapped

if TYPE_CHECKING:
    from fl_shuffle.flower.strategy import RoundOutcome
    from fl_shuffle.runs import RunEvent, RunStarted

ROWS = 12
"""Rounds that the live table shows."""
SLOW_ROUNDS = 3
"""So many rounds pass before the time that is left is estimated, by the median of a round's."""


class Display:
    """Plain lines; the base of the other displays. A run calls it with its events."""

    def __init__(self, out: TextIO, *, rounds_too: bool = True) -> None:
        self._out = out
        self._rounds_too = rounds_too
        self._run: RunStarted | None = None
        self._seconds: deque[float] = deque(maxlen=20)

    def __call__(self, event: RunEvent) -> None:
        from fl_shuffle.runs import Preparing, RoundFinished, RunFinished

        if isinstance(event, Preparing):
            self.prepare(event.text)
        elif isinstance(event, RoundFinished):
            self._seconds.append(event.outcome.seconds)
            self._round(event.outcome)
        elif isinstance(event, RunFinished):
            self._finish(event.summary)
        else:
            self._run = event
            self._start(event)

    def prepare(self, text: str) -> None:
        """Say what is being done before the run begins."""
        if self._rounds_too:
            self._print(f"{text} ...")

    def close(self) -> None:
        """Leave the terminal as it was."""

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def _say(self, lines: Iterable[str]) -> None:
        """Lines of text, wrapped where somebody reads them on a terminal."""
        say(*lines, out=self._out)

    def _start(self, run: RunStarted) -> None:
        if self._rounds_too:
            self._say(header(run.config, run.directory, run.warnings))
            self._print(row(HEADINGS))
            self._first(run)

    def _first(self, run: RunStarted) -> None:
        """Why nothing moves yet."""
        if self._out.isatty() and run.config.privacy.unit == "client":
            self._print("the first rounds take longest: what a round costs is worked out once")

    def _round(self, outcome: RoundOutcome) -> None:
        if self._rounds_too:
            self._print(row(self._cells(outcome)))

    def _finish(self, summary: dict[str, Any]) -> None:
        self._say(footer(summary))

    def _cells(self, outcome: RoundOutcome) -> tuple[str, ...]:
        assert self._run is not None
        # The first rounds are no measure: what a round costs is worked out in them.
        known = len(self._seconds) >= SLOW_ROUNDS
        seconds = median(self._seconds) if known else None
        return cells(outcome, self._run.config.run.rounds, seconds)


class LiveDisplay(Display):
    """A table that updates in place (rich), for terminals."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=out)
        self._live = Live(console=self._console, refresh_per_second=8)
        self._rows: deque[tuple[str, ...]] = deque(maxlen=ROWS)

    def _start(self, run: RunStarted) -> None:
        self._say(header(run.config, run.directory, run.warnings))
        self._first(run)
        self._live.start()

    def _round(self, outcome: RoundOutcome) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        self._rows.append(self._cells(outcome))
        # Without frames the widest rows fit into 80 columns; a heading may take two lines.
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for name in HEADINGS:
            table.add_column(name, justify="right", overflow="fold")
        for texts in self._rows:
            table.add_row(*texts)
        self._live.update(table)

    def _finish(self, summary: dict[str, Any]) -> None:
        self.close()
        super()._finish(summary)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


class JsonDisplay(Display):
    """One JSON object per round, then the summary: for machines."""

    def prepare(self, text: str) -> None:
        """Nothing: machines do not wonder."""

    def _start(self, run: RunStarted) -> None:
        self._print(
            json.dumps({"event": "start", "run_directory": str(run.directory),
                        "warnings": list(run.warnings)})
        )  # fmt: skip

    def _round(self, outcome: RoundOutcome) -> None:
        assert self._run is not None
        # How long a client computes may depend on its records.
        times = self._run.config.run.entropy == "seeded"
        columns = {
            f"{name}_epsilon": _finite(column.worst)
            for name, column in outcome.spend.columns.items()
        }
        self._print(
            json.dumps(
                {
                    "event": "round",
                    "round": outcome.round_number,
                    "n_reports": outcome.spend.n_reports,
                    **outcome.metrics,
                    **columns,
                    "delta": outcome.spend.delta,
                    **({"seconds": outcome.seconds} if times else {}),
                }
            )
        )

    def _finish(self, summary: dict[str, Any]) -> None:
        self._print(json.dumps({"event": "finish", **summary}))


def say(*lines: str, out: TextIO | None = None) -> None:
    """Print lines of text (to stdout), wrapped between words where a terminal shows them."""
    out = sys.stdout if out is None else out
    print("\n".join(wrapped(lines, terminal_width(out))), file=out, flush=True)


def terminal_width(out: TextIO) -> int | None:
    """Characters in a line of the terminal behind `out`; None if there is none."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def tell(text: str) -> None:
    """Say what is being done to whoever waits at the terminal; nothing of it is a result."""
    if text and sys.stderr.isatty():
        say(f"{text} ...", out=sys.stderr)


def make_display(*, quiet: bool, as_json: bool) -> Display:
    """The display that fits the options and the terminal."""
    if as_json:
        return JsonDisplay(sys.stdout)
    if quiet or not sys.stdout.isatty():
        return Display(sys.stdout, rounds_too=not quiet)
    return LiveDisplay(sys.stdout)


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
