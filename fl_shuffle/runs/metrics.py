"""metrics.csv: one line per round. The ledger is what counts: lines that are lost are made anew."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.ledger.store import COLUMN_NAMES
from fl_shuffle.runs.directory import METRICS, RunDirectory

COLUMNS = (
    "round", "n_reports", "accuracy", "loss", "gspa_mu",
    *(f"{name}_epsilon" for name in COLUMN_NAMES), "seconds",
)  # fmt: skip


ALWAYS = ("accuracy", "loss")
"""Metrics that have their columns whatever is measured; others come behind `seconds`."""
MOST_METRICS = 64
"""Of a user's own: a line stays a line."""

Line = dict[str, str]
"""A round's cells by column."""


def own_columns(metrics: Iterable[str]) -> tuple[str, ...]:
    """The columns of a run's own metrics, in their order.

    Raises `ConfigError` for names that are no column's, or another one's already.
    """
    own = tuple(name for name in metrics if name not in ALWAYS)
    for name in own:
        if not name.isidentifier() or name in COLUMNS:
            raise ConfigError(
                f"a metric is named {name!r}: a name has letters, digits and _ only, and is none "
                "of metrics.csv's own columns"
            )
    if len(own) > MOST_METRICS:
        raise ConfigError(f"{len(own)} metrics are measured; at most {MOST_METRICS} are kept")
    return own


def read_lines(path: Path) -> dict[int, Line]:
    """The line of each round; none if there is no file.

    A last line that was cut short when a process died is left out. Raises `RunError` for anything
    else that is not a run's metrics.
    """
    try:
        rows = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    found: dict[int, Line] = {}
    header = COLUMNS
    for place, raw in enumerate(rows[:-1]):
        cells = raw.decode("utf-8", errors="replace").split(",")
        if place == 0 and tuple(cells[: len(COLUMNS)]) == COLUMNS:
            header = tuple(cells)
            continue
        if place == 0 or len(cells) != len(header) or not all(map(_is_number, cells)):
            raise RunError(f"{path} is not a run's metrics: line {place + 1} is damaged")
        if not cells[0].isdecimal() or len(cells[0]) > 9:
            raise RunError(f"{path} is not a run's metrics: line {place + 1} names no round")
        found[int(cells[0])] = dict(zip(header, cells, strict=True))
    return found


def _is_number(cell: str) -> bool:
    try:
        return not cell or float(cell) is not None
    except ValueError:
        return False


class MetricsFile:
    """Appends rounds, and drops those that will be played again. `metrics`: what is measured after
    a round; `times`: seconds are written. Raises `ConfigError` as `own_columns` does."""

    def __init__(self, directory: RunDirectory, metrics: Iterable[str], *, times: bool) -> None:
        self._own = own_columns(metrics)
        self._columns = (*COLUMNS, *self._own)
        self._directory = directory
        self._times = times
        self._file = directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def write(self, outcome: RoundOutcome) -> None:
        """Write the round's line."""
        if self._file.tell() == 0:
            self._rows.writerow(self._columns)
        spend = outcome.spend
        line = line_of(
            outcome.round_number,
            spend.n_reports,
            outcome.metrics,
            spend.mu_total,
            (spend.columns[name].worst for name in COLUMN_NAMES),
            outcome.seconds if self._times else None,
        )
        own = [cell(outcome.metrics.get(name)) for name in self._own]
        self._rows.writerow([*line.values(), *own])
        self._file.flush()

    def rewrite(self, lines: Mapping[int, Line]) -> None:
        """Hold these rounds' lines, and no others."""
        self._file.close()
        kept = [lines[number] for number in sorted(lines)]
        rows = [self._columns, *([line.get(name, "") for name in self._columns] for line in kept)]
        text = "".join(",".join(row) + "\n" for row in rows) if lines else ""
        self._directory.write(METRICS, text)
        self._file = self._directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(
    round_number: int,
    n_reports: int,
    metrics: Mapping[str, float],
    mu_total: float | None,
    epsilons: Iterable[float | None],
    seconds: float | None,
) -> Line:
    """A round's cells. `epsilons` are in the order of `COLUMN_NAMES`."""
    cells = (
        str(round_number),
        str(n_reports),
        cell(metrics.get("accuracy")),
        cell(metrics.get("loss")),
        cell(mu_total),
        *map(cell, epsilons),
        "" if seconds is None else f"{seconds:.6f}",
    )
    return dict(zip(COLUMNS, cells, strict=True))


def cell(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
