"""metrics.csv: one line per round, for whoever wants to watch. Nothing reads it: see `views`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import Any

from fl_shuffle.errors import ConfigError
from fl_shuffle.ledger.store import COLUMN_NAMES
from fl_shuffle.runs.directory import METRICS, RunDirectory
from fl_shuffle.runs.outcome import RoundOutcome

COLUMNS = (
    "round", "n_reports", "accuracy", "loss", "gspa_mu",
    *(f"{name}_epsilon" for name in COLUMN_NAMES), "seconds",
)  # fmt: skip


ALWAYS = ("accuracy", "loss")
"""Metrics that have their columns whatever is measured; others come behind `seconds`."""
MOST_METRICS = 64
"""Of a user's own: a line stays a line."""


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


class MetricsFile:
    """Appends rounds. `metrics`: what is measured after a round; `times`: seconds are written.

    Raises `ConfigError` as `own_columns` does.
    """

    def __init__(self, directory: RunDirectory, metrics: Iterable[str], *, times: bool) -> None:
        self._columns = (*COLUMNS, *own_columns(metrics))
        self._directory = directory
        self._times = times
        self._file = directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def write(self, outcome: RoundOutcome) -> None:
        """Write the round's line."""
        if self._file.tell() == 0:
            self._rows.writerow(self._columns)
        spend = outcome.spend
        row = {
            "round": outcome.round_number,
            "n_reports": spend.n_reports,
            "gspa_mu": spend.mu_total,
            **{f"{name}_epsilon": column.worst for name, column in spend.columns.items()},
            "seconds": outcome.seconds if self._times else None,
        }
        self._rows.writerow(line_of(self._columns, row, outcome.metrics))
        self._file.flush()

    def rewrite(self, text: str) -> None:
        """Hold this text, and go on behind it."""
        self._file.close()
        self._directory.write(METRICS, text)
        self._file = self._directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line_of(
    columns: Iterable[str], row: Mapping[str, Any], metrics: Mapping[str, float]
) -> list[str]:
    """A round's cells under `columns`; `row` has what is no metric."""
    values = {**metrics, **row}
    found = [(name, values.get(name)) for name in columns]
    return [
        "" if value is None else f"{value:.6f}" if name == "seconds" else f"{value:.10g}"
        for name, value in found
    ]
