"""What a sweep's runs left behind: its tables, its page and its figure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.ledger.tables import EPSILONS
from fl_shuffle.report.draw import matplotlib_figure, write_each, write_picture
from fl_shuffle.report.figures import Figure
from fl_shuffle.report.formats import write_table, write_text
from fl_shuffle.report.many import mean_and_spread, sweep_figure
from fl_shuffle.report.page import sweep_page
from fl_shuffle.sweeps.directory import read_sweep, run_path, state_of
from fl_shuffle.sweeps.points import BASELINE, LOCAL, SHUFFLED, SweepPoint
from fl_shuffle.together import ComposedRuns, compose_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

RUNS_TABLE = "runs.csv"
TABLE = "table.csv"
TOGETHER = "together.csv"
PAGE = "sweep.html"
COSTS: dict[str, Callable[[RunView], float | None]] = {
    "epsilon": lambda view: view.epsilon,
    "sum_epsilon": lambda view: view.spent("sum"),
    "local_epsilon": lambda view: view.spent("local"),
    "lower_epsilon": lambda view: view.lower,
}
"""The epsilons of a combination, and what they are of a run."""


def _reported(point: SweepPoint, view: RunView) -> float | None:
    """Return the reported epsilon of a run.

    It is the headline, or of the baseline `local` that of its own noise.
    """
    return view.spent("local") if point.settings.get(BASELINE) == LOCAL else view.epsilon


class SweepResult:
    """A sweep, finished or not, read from its directory.

    `fl_shuffle.sweep` and `fl_shuffle.resume_sweep` return it. To open an earlier sweep, pass its
    directory. Everything is read when it is asked for.

    Parameters
    ----------
    directory : str or Path
        Sweep directory.

    Raises
    ------
    RunError
        If the directory holds no sweep.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.sweep = read_sweep(self.directory)

    def __repr__(self) -> str:
        runs, finished = len(self.sweep.points), len(self.finished)
        return f"<Sweep of {runs} runs, {finished} finished, in {self.directory}>"

    @cached_property
    def finished(self) -> dict[SweepPoint, RunView]:
        """The runs that came to their end, in the order of the points."""
        paths = {point: run_path(self.directory, point) for point in self.sweep.points}
        over = {point: path for point, path in paths.items() if state_of(path) == "finished"}
        return {point: RunView(path) for point, path in over.items()}

    @property
    def delta(self) -> float | None:
        """Of every epsilon; None where the runs' own differ."""
        found = {each.delta for each in self.finished.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def settings(self) -> list[str]:
        """What tells the combinations apart: the keys of the grid, after the baseline's name."""
        return self.sweep.settings

    @cached_property
    def runs(self) -> dict[str, list[Any]]:
        """Columns with one row a finished run; None where there is no number.

        Its settings, seed, rounds, accuracy, loss, each epsilon (nats at `delta`, of the most
        exposed client), and its folder.
        """
        columns: dict[str, list[Any]] = {
            key: [point.settings[key] for point in self.finished] for key in self.settings
        }
        views = self.finished.values()
        return columns | {
            "seed": [point.config.run.seed for point in self.finished],
            "rounds": [view.last_round for view in views],
            **{name: [view.measured(name) for view in views] for name in ("accuracy", "loss")},
            "delta": [view.delta for view in views],
            "epsilon": [_reported(*each) for each in self.finished.items()],
            **{name: [view.spent(key) for view in views] for key, name in EPSILONS.items()},
            "directory": [str(view.directory) for view in views],
        }

    @cached_property
    def table(self) -> dict[str, list[Any]]:
        """Columns with one row a combination of settings.

        Its settings, how many runs it has, mean and sample standard deviation of their accuracy
        (None with fewer than two), and the largest epsilon of any of them: the reported one, that
        against an attacker who sees only sums, the local one, and what the best computed attack
        reaches.
        """
        rows = []
        for _, combined in groupby(self.sweep.points, lambda point: point.settings):
            points = list(combined)
            views = [self.finished[point] for point in points if point in self.finished]
            mean, spread = mean_and_spread(view.measured("accuracy") for view in views)
            row = {"runs": len(views), "accuracy": mean, "accuracy_sd": spread}
            for name, of in COSTS.items():
                row[name] = max((cost for cost in map(of, views) if cost is not None), default=None)
            if points[0].settings.get(BASELINE) == LOCAL:
                row["epsilon"] = row["local_epsilon"]
            rows.append({**points[0].settings, **row})
        return {name: [row[name] for row in rows] for name in rows[0]}

    @cached_property
    def _composed(self) -> tuple[ComposedRuns | None, str]:
        """What the runs have cost together, or why that is not composed; failed runs count."""
        paths = {
            run_path(self.directory, point): point for point in self.sweep.points
            if point.settings.get(BASELINE, SHUFFLED) == SHUFFLED
        }  # fmt: skip
        begun = [path for path in paths if state_of(path) != "new"]
        if len(begun) < 2:
            return None, ""
        try:
            # The largest delta of any run, where they differ.
            return compose_runs(begun, delta=max(RunView(path).delta for path in begun)), ""
        except FlShuffleError as error:
            return None, str(error)

    @property
    def together(self) -> ComposedRuns | None:
        """What all runs have cost the same clients together, as `compose_runs` says it.

        Runs that failed count as far as they came; baselines are left out. None with fewer than two
        runs, or where they have other clients or units.
        """
        return self._composed[0]

    @property
    def cost_together(self) -> str:
        """What choosing among the runs has cost, in words; empty with fewer than two runs."""
        found, why = self._composed
        if found is None:
            return f"what the runs have cost together is not composed: {why}" if why else ""
        worst, added = found.worst(), float(found.added["headline"].max())
        shown = "nothing that is bounded" if worst is None else f"epsilon {worst:.4g}"
        return (
            f"choosing the best of these {len(found.directories)} runs has cost the most exposed "
            f"client {shown} at delta = {found.delta:g}, all runs composed (the sum of their "
            f"epsilons is {added:.4g} at delta = {found.added_delta:g})"
        )

    def write_tables(self) -> None:
        """Write the tables into the sweep's folder: runs.csv, table.csv, and together.csv.

        The last one is written where the runs compose.
        """
        write_table(self.runs, self.directory / RUNS_TABLE, "csv")
        write_table(self.table, self.directory / TABLE, "csv")
        if self.together is not None:
            write_table(self.together.summary(), self.directory / TOGETHER, "csv")

    def report(self, path: str | Path | None = None) -> Path:
        """Write the table and the figure as one HTML page.

        Parameters
        ----------
        path : str or Path, optional
            File to write. By default, SWEEP/sweep.html.

        Returns
        -------
        Path
            Where the page is.
        """
        return write_text(sweep_page(self), self.directory / PAGE if path is None else Path(path))

    def figure(self, path: str | Path) -> Path:
        """Write the accuracy of the combinations, with error bars over the seeds, as a picture.

        Parameters
        ----------
        path : str or Path
            File to write. Its ending names the format: svg, png, or pdf.

        Returns
        -------
        Path
            Where the picture is.

        Raises
        ------
        RunError
            If no run has an accuracy and a finite epsilon, or the file cannot be written.
        """
        write_picture(self._accuracy(), Path(path))
        return Path(path)

    def figures(self, folder: str | Path, form: str) -> list[Path]:
        """Write the page's figures into a folder.

        Parameters
        ----------
        folder : str or Path
            Where to write.
        form : {"svg", "png", "pdf", "csv"}
            Format; csv holds the numbers.

        Returns
        -------
        list of Path
            The files.

        Raises
        ------
        RunError
            As for `figure`.
        """
        return write_each([self._accuracy()], Path(folder), form)

    def plot(self) -> MatplotlibFigure:
        """Return the accuracy of the combinations as a Matplotlib figure, to show or to change.

        The horizontal axis is epsilon, or the swept setting if no setting changes epsilon.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        RunError
            If no run has an accuracy and a finite epsilon.
        """
        return matplotlib_figure(self._accuracy())

    def _accuracy(self) -> Figure:
        figure = sweep_figure(self)
        if figure is None:
            raise RunError(f"{self.directory}: no run has an accuracy and a finite epsilon yet")
        return figure
