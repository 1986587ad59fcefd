"""What the figures show: lines of numbers, to be drawn (`draw`) or tabulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.report.record import RunRecord

LABELS = {
    "shuffled": "reports seen (proven)",
    "sum": "only sums seen (proven)",
    "local": "no shuffling, local (proven)",
    "gspa": "GSPA, as published",
    "su2025": "Su 2025, as published",
    "rdp": "Renyi (proven)",
    "shuffled_lower": "attack on reports (lower bound)",
    "sum_lower": "attack on sums (lower bound)",
}
"""Column -> what its line is called."""


def _labels(run: RunRecord) -> dict[str, str]:
    """Return the same of a run: what clients declare is no proof."""
    if run.config["privacy"]["randomizer"] != "declared":
        return LABELS
    return {**LABELS, "local": "local, as declared by the clients"}


SMALLEST_DELTA = 1e-12
"""Curves of delta end here: smaller ones mean nothing to a reader."""
POINTS = 61
"""Of a curve, and rows of its table."""
MOST_POINTS = 400
"""Of a line over rounds or clients; of longer ones every k-th point is shown, and the last."""
WIDE = 20.0
"""Values that differ by more than this factor are drawn on a logarithmic axis."""
FEW_POINTS = 3
"""A line of fewer points is drawn with dots."""
STYLES = 8
"""Number of colors and dashes that distinguish runs side by side."""
COINCIDENT = 0.01
"""Lines nowhere further apart than this share of the larger would hide one another."""


@dataclass(frozen=True, eq=False)
class PlotLine:
    """Points [k] of one line; `spread` [k] is one sample standard deviation of y, if it has one.

    `kind` is the column whose color and dashes it has, `run-0`, `run-1`, ... for runs, or
    `proven-0`, `published-0`, `lower-0`, ... for methods.
    """

    kind: str
    label: str
    x: Vector
    y: Vector
    spread: Vector | None = None
    steps: bool = False

    @property
    def few(self) -> bool:
        """Whether its points are drawn as dots: a single round is no line."""
        return len(self.x) < FEW_POINTS and not self.steps and self.kind != "target"

    @classmethod
    def of(
        cls, kind: str, label: str, x: ArrayLike, y: ArrayLike, spread: ArrayLike | None = None,
        *, steps: bool = False,
    ) -> PlotLine:  # fmt: skip
        """Return a line without the points that are not finite (None is none)."""
        across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        kept = np.isfinite(across) & np.isfinite(up)
        wide = None if spread is None else np.asarray(spread, dtype=np.float64)[kept]
        return cls(kind, label, across[kept], up[kept], wide, steps)


@dataclass(frozen=True, eq=False)
class Figure:
    """Lines on two axes. `name` is its file's, and what the template has a title and a caption for;
    `client` is whose curves they are, if one's.

    An axis named in `stretched` ("x", "y") is logarithmic where values differ by more than `WIDE`;
    `low` and `high` are the ends of the y axis, where None what the lines need.
    """

    name: str
    x_label: str
    y_label: str
    lines: Sequence[PlotLine]
    stretched: str = ""
    low: float | None = None
    high: float | None = None
    client: int | None = None

    def shown(self) -> list[PlotLine]:
        """Return the lines to draw: those that coincide as one with all their names; highest first,
        by where they end, as the eye meets them."""
        found = list[PlotLine]()
        for line in self.lines:
            same = [at for at, other in enumerate(found) if _coincide(other, line)]
            for at in same:
                found[at] = replace(found[at], label=f"{found[at].label} = {line.label}")
            found += [line] if line.x.size and not same else []
        return sorted(found, key=lambda line: -float(line.y[-1]))

    def ratio(self, axis: str) -> float:
        """Return how many times the largest positive value on it exceeds the smallest."""
        every = np.concatenate([np.empty(0), *(getattr(line, axis) for line in self.lines)])
        every = every[every > 0.0]
        return float(every.max() / every.min()) if every.size else 1.0

    def is_log(self, axis: str) -> bool:
        """Return whether it is logarithmic: a linear one would hide the small values."""
        return axis in self.stretched and self.ratio(axis) > WIDE

    @property
    def counts(self) -> bool:
        """Whether the x axis counts something: rounds have no halves."""
        return all(np.array_equal(line.x, np.rint(line.x)) for line in self.lines)

    def table(self) -> dict[str, list[float]]:
        """Return the numbers behind it: one row an x, as often as a line has it; NaN where a line
        has no point there."""
        rows: dict[tuple[float, int], dict[str, float]] = {}
        names = dict[str, Any]()
        for line in self.lines:
            columns = {line.label: line.y, f"{line.label}, spread": line.spread}
            known = {n: v for n, v in columns.items() if v is not None and v.size}
            names, times = names | known, Counter[float]()
            for place, x in enumerate(line.x.tolist()):
                row = rows.setdefault((x, times[x]), {})
                times[x] += 1
                row |= {name: float(values[place]) for name, values in known.items()}
        at = sorted(rows)
        cells = {name: [rows[key].get(name, np.nan) for key in at] for name in names}
        return {self.x_label: [x for x, _ in at], **cells}


def _coincide(one: PlotLine, other: PlotLine) -> bool:
    same = np.array_equal(one.x, other.x)
    return same and bool(np.allclose(one.y, other.y, rtol=COINCIDENT, atol=0.0))


def thinned(count: int) -> NDArray[np.int64]:
    """Return at most about `MOST_POINTS` of all places, the first and the last among them."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(np.int64))


def run_figures(run: RunRecord) -> list[Figure]:
    """Return the figures of one run that released something, in the order of the page."""
    found = [spend_over_rounds(run), clients_over_rounds(run), clients_distribution(run)]
    found += worst_client_curves(run)
    if len(run.accuracy) > 1:
        lines = accuracy_line([run], "accuracy", "test accuracy, %")
        found.append(Figure("accuracy", "round", "test accuracy, %", lines))
    return found


def spend_over_rounds(run: RunRecord) -> Figure:
    """Return the cumulative epsilon of the most exposed client after every round, in each
    column."""
    at = thinned(len(run.rounds))
    lines, rounds = list[PlotLine](), run.rounds[at]
    labels = {name: (name, label) for name, label in _labels(run).items()}
    if run.spend is None or run.spend.columns["rdp"].status is not Status.PROVEN:
        labels["rdp"] = "rdp-published", "Renyi, as published"
    for name, (kind, label) in labels.items():
        values = run.epsilons[name][at]
        lines.append(PlotLine.of(kind, label, rounds, np.where(values > 0.0, values, np.nan)))
    target = run.config["privacy"].get("target_epsilon")
    if target is not None and at.size:
        lines.append(PlotLine.of("target", "the run's target", rounds[[0, -1]], [target, target]))
    return Figure("spend", "round", f"epsilon at delta = {run.delta:g}", lines, stretched="y")


def clients_over_rounds(run: RunRecord) -> Figure:
    """Return the headline epsilon after rounds: quantiles over all clients, and each followed
    client."""
    from fl_shuffle.report.history import QUANTILES

    spent = run.quantiles
    lines = [
        PlotLine.of(f"quantile-{place}", name, spent.round_numbers, spent.quantiles[:, place])
        for place, name in enumerate(QUANTILES)
    ]
    lines += [
        PlotLine.of(f"client-{place % STYLES}", f"client {client}", spent.round_numbers, values)
        for place, (client, values) in enumerate(zip(run.followed, spent.clients.T, strict=True))
    ]
    return Figure("history", "round", f"epsilon at delta = {run.delta:g}", lines, low=0.0)


def clients_distribution(run: RunRecord) -> Figure:
    """Return the share of clients whose own epsilon is at most x, in each proven column."""
    lines = []
    for name, values in run.proven_columns.items():
        # Every value once, with the share of all clients that have at most it.
        levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
        share = 100.0 * np.cumsum(counts) / len(values)
        at = thinned(len(levels))
        lines.append(PlotLine.of(name, _labels(run)[name], levels[at], share[at], steps=True))
    return Figure(
        "clients", f"a client's own epsilon at delta = {run.delta:g}", "% of clients", lines,
        stretched="x", low=0.0, high=100.0,
    )  # fmt: skip


def worst_client_curves(run: RunRecord) -> list[Figure]:
    """Return delta against epsilon for the most exposed client, and the type II error that every
    test of it must have against its type I error: the headline's, and the published GSPA mu's, if
    there is one."""
    from scipy.special import ndtr, ndtri

    from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile

    worst, spend = run.worst, run.spend
    if worst is None or spend is None:
        return []
    top = 1.5 * worst.epsilon if np.isfinite(worst.epsilon) else 1.0
    grid, first = np.linspace(0.0, max(top, 1e-6), POINTS), np.linspace(0.0, 1.0, POINTS)
    column, mu = spend.headline_column, spend.mu_total
    curves = {column: (worst.profile(grid), worst.trade_off(first))}
    if mu is not None:
        curves["gspa"] = (gaussian_profile(grid, mu), ndtr(ndtri(1.0 - first) - mu))
    profile, errors = list[PlotLine](), [PlotLine.of("guessing", "guessing", first, 1.0 - first)]
    for name, (deltas, misses) in curves.items():
        seen = np.where(deltas > SMALLEST_DELTA, deltas, np.nan)
        profile.append(PlotLine.of(name, _labels(run)[name], grid, seen))
        errors.append(PlotLine.of(name, _labels(run)[name], first, misses))
    profile.append(PlotLine.of("target", "the run's delta", grid[[0, -1]], [run.delta] * 2))
    axes = ("false alarms (type I error)", "misses (type II error)")
    return [
        Figure("profile", "epsilon", "delta", profile, stretched="y", client=worst.client),
        Figure("trade-off", *axes, errors, low=0.0, high=1.0, client=worst.client),
    ]


def accuracy_line(runs: Sequence[RunRecord], kind: str, label: str) -> list[PlotLine]:
    """Return the mean and spread of these runs' accuracy after the rounds at which all have it, if
    any."""
    common = sorted(set.intersection(*(set(run.accuracy) for run in runs)))
    values = np.array([[100.0 * run.accuracy[at] for at in common] for run in runs])
    at = thinned(len(common))
    spread = values.std(axis=0, ddof=1)[at] if len(runs) > 1 else None
    mean = values.mean(axis=0)[at]
    return [PlotLine.of(kind, label, np.array(common)[at], mean, spread)] if common else []
