"""What a user sees while a run goes on: a live table, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, TextIO

from fl_shuffle.accounting.guarantee import ratio_line
from fl_shuffle.accounting.rounds.trust import towards

if TYPE_CHECKING:
    from fl_shuffle.flower.strategy import RoundOutcome
    from fl_shuffle.runs import RunEvent, RunStarted

ROWS = 12
"""Rounds that the live table shows."""
HEADINGS = ("round", "reports", "accuracy", "loss", "GSPA eps", "proven eps", "sum eps", "left")


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

    def _start(self, run: RunStarted) -> None:
        if self._rounds_too:
            self._print("\n".join(header(run)))
            self._print("  ".join(f"{name:>10}" for name in HEADINGS))

    def _round(self, outcome: RoundOutcome) -> None:
        if self._rounds_too:
            self._print("  ".join(f"{cell:>10}" for cell in self._cells(outcome)))

    def _finish(self, summary: dict[str, Any]) -> None:
        self._print("\n".join(footer(summary)))

    def _cells(self, outcome: RoundOutcome) -> tuple[str, ...]:
        assert self._run is not None
        columns = outcome.spend.columns
        accuracy, loss = outcome.metrics.get("accuracy"), outcome.metrics.get("loss")
        left = self._run.config.run.rounds - outcome.round_number
        seconds = left * sum(self._seconds) / len(self._seconds)
        return (
            f"{outcome.round_number}/{self._run.config.run.rounds}",
            str(outcome.spend.n_reports),
            "" if accuracy is None else f"{accuracy:.2%}",
            "" if loss is None else f"{loss:.4f}",
            number(columns["gspa"].worst),
            number(columns["proven"].worst),
            number(columns["sum"].worst),
            f"{seconds:.0f} s",
        )


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
        self._print("\n".join(header(run)))
        self._live.start()

    def _round(self, outcome: RoundOutcome) -> None:
        from rich.table import Table

        self._rows.append(self._cells(outcome))
        table = Table(*HEADINGS)
        for column in table.columns:
            column.justify = "right"
        for row in self._rows:
            table.add_row(*row)
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


def make_display(*, quiet: bool, as_json: bool) -> Display:
    """The display that fits the options and the terminal."""
    if as_json:
        return JsonDisplay(sys.stdout)
    if quiet or not sys.stdout.isatty():
        return Display(sys.stdout, rounds_too=not quiet)
    return LiveDisplay(sys.stdout)


def header(run: RunStarted) -> list[str]:
    """What is about to run, and what the numbers will not cover."""
    config = run.config
    lines = [
        f"{config.data.clients} clients, {config.run.rounds} rounds, {config.training.schedule}; "
        f"{config.privacy.randomizer} reports, unit of privacy = {config.privacy.unit}, "
        f"delta = {config.privacy.target_delta:g}",
        f"the guarantee is towards {towards(config.privacy.release, config.privacy.shuffler)}",
        f"run directory: {run.directory}",
    ]
    return lines + [f"note: {text}" for text in run.warnings]


def footer(summary: dict[str, Any]) -> list[str]:
    """The final numbers, each with its name and standing."""
    accuracy = summary["accuracy"]
    lines = [""]
    if summary["stopped_early"]:
        lines.append(summary["stopped_early"])
    if accuracy is not None:
        lines.append(
            f"test accuracy {accuracy:.2%} after {summary['rounds']} rounds "
            f"(test records: {summary['test_data']})"
        )
    lines.append(
        f"privacy: epsilon <= {number(summary['epsilon'])} at delta = {summary['delta']:g} for the "
        f"worst client (column {summary['headline'] or '-'}: proven, unit = {summary['unit']}, "
        f"{summary['relation']})"
    )
    lines.append(f"         towards {towards(summary['release'], summary['shuffler'])}")
    if summary["shuffler"] == "in-server" and summary["columns"]:
        local = number(summary["columns"]["local"]["epsilon"])
        lines.append(
            f"         towards the operator of the server, which shuffles, too: {local} "
            "(column local)"
        )
    if summary["records_not_covered"]:
        lines.append(
            f"         NOT COVERED: {summary['records_not_covered']} private records "
            "(see the notes above)"
        )
    for name, quantiles in summary["epsilon_quantiles"].items():
        if quantiles is not None:
            shares = ", ".join(f"{level} {number(value)}" for level, value in quantiles.items())
            lines.append(f"         over all clients, {name}: {shares}")
    for name, column in summary["columns"].items():
        shown = number(column["epsilon"])
        lines.append(f"  {name:<9} epsilon {shown:>10}  {column['status']}; {column['source']}")
        if column["note"]:
            lines.append(f"            {column['note']}")
        if name == "lower" and summary["proven_over_lower"] is not None:
            lines.append(f"            {ratio_line(summary['proven_over_lower'])}")
    lines += [f"assumed: {text}" for text in summary["assumptions"]]
    lines.append(f"run directory: {summary['run_directory']}")
    return lines


def number(value: float | str | None) -> str:
    """Four significant digits; `-` for a number that does not exist."""
    return "-" if value is None else f"{float(value):.4g}"


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)
