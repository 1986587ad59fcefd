"""metrics.csv: one line per round."""

from __future__ import annotations

import csv

from fl_shuffle.flower.strategy import RoundOutcome
from fl_shuffle.ledger.store import COLUMN_NAMES
from fl_shuffle.runs.directory import METRICS, RunDirectory

COLUMNS = (
    "round", "n_reports", "accuracy", "loss", "gspa_mu",
    *(f"{name}_epsilon" for name in COLUMN_NAMES), "seconds",
)  # fmt: skip


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
        columns = outcome.spend.columns
        self._rows.writerow(
            [
                outcome.round_number,
                outcome.spend.n_reports,
                _cell(outcome.metrics.get("accuracy")),
                _cell(outcome.metrics.get("loss")),
                _cell(outcome.spend.mu_total),
                *(_cell(columns[name].worst) for name in COLUMN_NAMES),
                f"{outcome.seconds:.6f}" if self._times else "",
            ]
        )
        self._file.flush()

    def keep_before(self, first: int) -> None:
        """Drop the lines of rounds from `first` on."""
        self._file.close()
        lines = (self._directory.path / METRICS).read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines[1:] if int(line.split(",")[0]) < first]
        self._directory.write(METRICS, "".join(f"{line}\n" for line in lines[:1] + kept))
        self._file = self._directory.append(METRICS)
        self._rows = csv.writer(self._file, lineterminator="\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"
