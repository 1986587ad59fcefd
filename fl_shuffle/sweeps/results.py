"""What a sweep's runs left behind: its tables, its page and its figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import EPSILONS
from fl_shuffle.plugins import require_extra
from fl_shuffle.report.draw import write_picture
from fl_shuffle.report.many import accuracy_against_epsilon, mean_and_spread
from fl_shuffle.report.page import sweep_page
from fl_shuffle.runs.directory import open_private
from fl_shuffle.runs.views import RunView
from fl_shuffle.sweeps.directory import read_sweep, run_path, state_of
from fl_shuffle.sweeps.points import Point

RUNS_TABLE = "runs.csv"
TABLE = "table.csv"
PAGE = "sweep.html"


class SweepResult:
    """A sweep, finished or not. `directory` is its folder; everything is read from there, when it
    is asked for.

    Raises `RunError` if the folder holds no sweep.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.sweep = read_sweep(self.directory)

    def __repr__(self) -> str:
        runs, finished = len(self.sweep.points), len(self.finished)
        return f"<Sweep of {runs} runs, {finished} finished, in {self.directory}>"

    @cached_property
    def finished(self) -> dict[Point, RunView]:
        """The runs that came to their end, in the order of the points."""
        found = {}
        for point in self.sweep.points:
            path = run_path(self.directory, point)
            if state_of(path) == "finished":
                found[point] = RunView(path)
        return found

    @property
    def delta(self) -> float | None:
        """Of every epsilon; None where the runs' own differ."""
        found = {each.delta for each in self.finished.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def settings(self) -> list[str]:
        """The keys of the grid."""
        return [axis.key for axis in self.sweep.axes]

    @cached_property
    def runs(self) -> dict[str, list[Any]]:
        """One row a finished run: its settings, seed, rounds, accuracy, loss, each epsilon (nats
        at `delta`, of the worst client), and its folder. None where there is no number."""
        rows = [
            [
                *point.settings.values(), point.seed, each.last_round, each.measured("accuracy"),
                each.measured("loss"), each.delta, each.epsilon, *map(each.spent, EPSILONS),
                str(each.directory),
            ]
            for point, each in self.finished.items()
        ]  # fmt: skip
        heads = [*self.settings, "seed", "rounds", "accuracy", "loss", "delta", "epsilon",
                 *EPSILONS.values(), "directory"]  # fmt: skip
        return _columns(heads, rows)

    @cached_property
    def table(self) -> dict[str, list[Any]]:
        """One row a combination: its settings, how many runs it has, mean and sample standard
        deviation of their accuracy (None with fewer than two), and the largest epsilon of any of
        them: the reported one, that towards whoever sees sums alone, the local one, and what the
        best computed attack reaches."""
        rows = []
        for number in range(len(self.sweep.points) // len(self.sweep.seeds)):
            points = [point for point in self.sweep.points if point.combination == number]
            own = [self.finished[point] for point in points if point in self.finished]
            rows.append(
                [
                    *points[0].settings.values(),
                    len(own),
                    *mean_and_spread(each.measured("accuracy") for each in own),
                    _largest(each.epsilon for each in own),
                    _largest(each.spent("sum") for each in own),
                    _largest(each.spent("local") for each in own),
                    _largest(each.lower for each in own),
                ]
            )
        heads = [*self.settings, "runs", "accuracy", "accuracy_sd", "epsilon", "sum_epsilon",
                 "local_epsilon", "lower_epsilon"]  # fmt: skip
        return _columns(heads, rows)

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


def _largest(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return max(found) if found else None


def _columns(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {head: [row[index] for row in rows] for index, head in enumerate(heads)}
