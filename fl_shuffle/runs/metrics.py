"""metrics.csv: one line per round. The ledger is what counts: lines that are lost are made anew."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from fl_shuffle.errors import RunError
from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.ledger.store import COLUMN_NAMES
from fl_shuffle.runs.directory import METRICS, RunDirectory

COLUMNS = (
    "round", "n_reports", "accuracy", "loss", "gspa_mu",
    *(f"{name}_epsilon" for name in COLUMN_NAMES), "seconds",
)  # fmt: skip


Line = dict[str, str]
"""A round's cells by column."""


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
    for place, raw in enumerate(rows[:-1]):
        cells = raw.decode("utf-8", errors="replace").split(",")
        if place == 0 and tuple(cells) == COLUMNS:
            continue
        if place == 0 or len(cells) != len(COLUMNS) or not all(map(_is_number, cells)):
            raise RunError(f"{path} is not a run's metrics: line {place + 1} is damaged")
        if not cells[0].isdecimal() or len(cells[0]) > 9:
            raise RunError(f"{path} is not a run's metrics: line {place + 1} names no round")
        found[int(cells[0])] = dict(zip(COLUMNS, cells, strict=True))
    return found


def _is_number(cell: str) -> bool:
    try:
        return not cell or float(cell) is not None
    except ValueError:
        return False


class MetricsFile:
    """Appends rounds, and drops those that will be played again. `times`: seconds are written."""

    def __init__(self, directory: RunDirectory, *, times: bool) -> None:
        self._directory = directory
        self._times = times
        self._file = directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def write(self, outcome: RoundOutcome) -> None:
        """Write the round's line."""
        if self._file.tell() == 0:
            self._rows.writerow(COLUMNS)
        spend = outcome.spend
        line = line_of(
            outcome.round_number,
            spend.n_reports,
            outcome.metrics,
            spend.mu_total,
            (spend.columns[name].worst for name in COLUMN_NAMES),
            outcome.seconds if self._times else None,
        )
        self._rows.writerow(line.values())
        self._file.flush()

    def rewrite(self, lines: Mapping[int, Line]) -> None:
        """Hold these rounds' lines, and no others."""
        self._file.close()
        rows = [COLUMNS, *(tuple(lines[number].values()) for number in sorted(lines))]
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
