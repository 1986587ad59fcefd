"""What a sweep's runs left behind, as rows and columns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fl_shuffle.runs.finished import Summary, read_summary
from fl_shuffle.sweeps.directory import read_sweep, run_path, state_of
from fl_shuffle.sweeps.points import Point

EACH_ALONE = (
    "every epsilon is that of one run alone; these runs use the same records, so whoever sees "
    "several of them learns more (their epsilons and deltas add up)"
)


class SweepTables:
    """What a sweep's folder `directory` says, whether it is finished or not; read when asked for.

    Raises `RunError` if the folder holds no sweep.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.sweep = read_sweep(self.directory)

    def __repr__(self) -> str:
        runs, finished = len(self.sweep.points), len(self.finished)
        return f"<Sweep of {runs} runs, {finished} finished, in {self.directory}>"

    @cached_property
    def finished(self) -> dict[Point, Summary]:
        """The summaries of the runs that have one, in the order of the points."""
        found = {}
        for point in self.sweep.points:
            path = run_path(self.directory, point)
            if state_of(path) == "finished":
                found[point] = read_summary(path)
        return found

    @property
    def settings(self) -> list[str]:
        """The keys of the grid."""
        return [axis.key for axis in self.sweep.axes]

    @cached_property
    def runs(self) -> dict[str, list[Any]]:
        """One row a finished run: its settings, seed, rounds, accuracy, loss, each epsilon (nats
        at `delta`, of the worst client), and its folder. None where there is no number."""
        columns = list(
            dict.fromkeys(name for each in self.finished.values() for name in each.columns)
        )
        rows = [
            [
                *point.settings.values(), point.seed, each.rounds, each.accuracy, each.loss,
                each.delta, each.epsilon, *(each.columns.get(name) for name in columns),
                str(run_path(self.directory, point)),
            ]
            for point, each in self.finished.items()
        ]  # fmt: skip
        heads = [*self.settings, "seed", "rounds", "accuracy", "loss", "delta", "epsilon",
                 *(f"{name}_epsilon" for name in columns), "directory"]  # fmt: skip
        return _columns(heads, rows)

    @cached_property
    def table(self) -> dict[str, list[Any]]:
        """One row a combination: its settings, how many runs it has, mean and sample standard
        deviation of their accuracy (None with fewer than two), and the largest epsilon of any of
        them: the headline's, the local one's, and what the best computed attack reaches."""
        rows = []
        for number in range(len(self.sweep.points) // len(self.sweep.seeds)):
            points = [point for point in self.sweep.points if point.combination == number]
            own = [self.finished[point] for point in points if point in self.finished]
            accuracies = [each.accuracy for each in own if each.accuracy is not None]
            rows.append(
                [
                    *points[0].settings.values(),
                    len(own),
                    statistics.fmean(accuracies) if accuracies else None,
                    statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                    _largest(each.epsilon for each in own),
                    _largest(each.columns.get("local") for each in own),
                    _largest(each.lower for each in own),
                ]
            )
        heads = [*self.settings, "runs", "accuracy", "accuracy_sd", "epsilon", "local_epsilon",
                 "lower_epsilon"]  # fmt: skip
        return _columns(heads, rows)


def _largest(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return max(found) if found else None


def _columns(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {head: [row[index] for row in rows] for index, head in enumerate(heads)}


def shown(value: Any) -> str:
    """A cell as a reader wants it: four digits, `-` for what is not there."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)
