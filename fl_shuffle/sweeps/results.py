"""A finished sweep, or one under way: its tables, its page and its figure."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from fl_shuffle.errors import RunError
from fl_shuffle.plugins import require_extra
from fl_shuffle.report.draw import write_picture
from fl_shuffle.report.many import accuracy_against_epsilon
from fl_shuffle.report.page import sweep_page
from fl_shuffle.runs.directory import open_private
from fl_shuffle.sweeps.tables import SweepTables

RUNS_TABLE = "runs.csv"
TABLE = "table.csv"
PAGE = "sweep.html"


class SweepResult(SweepTables):
    """A sweep, finished or not. `directory` is its folder; everything is read from there.

    Raises `RunError` if the folder holds no sweep.
    """

    def write_tables(self) -> tuple[Path, Path]:
        """Write runs.csv and table.csv into the sweep's folder; returns where they are."""
        runs = _write(self.directory / RUNS_TABLE, _csv(self.runs))
        return runs, _write(self.directory / TABLE, _csv(self.table))

    def to_pandas(self) -> Any:
        """`runs` as a pandas DataFrame. Raises `ConfigError` where pandas is not installed."""
        require_extra("pandas", "all", "to_pandas()")
        import pandas

        return pandas.DataFrame(self.runs)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the table and the figure as one HTML page (default SWEEP/sweep.html)."""
        return _write(self.directory / PAGE if path is None else Path(path), sweep_page(self))

    def figure(self, path: str | Path) -> Path:
        """Write accuracy against epsilon, with error bars over the seeds, as the picture that the
        file's ending names (svg, png, pdf).

        Raises `RunError` if no run has both numbers.
        """
        figure = accuracy_against_epsilon(self)
        if figure is None:
            raise RunError(f"{self.directory}: no run has an accuracy and a finite epsilon yet")
        write_picture(figure, Path(path))
        return Path(path)


def _write(path: Path, text: str) -> Path:
    try:
        with open_private(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _csv(columns: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow("" if cell is None else cell for cell in row)
    return text.getvalue()
