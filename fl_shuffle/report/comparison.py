"""Several runs side by side: what differs, what each cost, and how accuracy spreads over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fl_shuffle.report.drawing import STYLES
from fl_shuffle.report.figures import Figure, Line, thinned, wide
from fl_shuffle.report.markup import Cell, Number, charts, html_table
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.record import RunRecord

NOT_COMPARED = ("run.out", "run.jobs", "data.root")
"""Settings that change no number."""
SEED = "run.seed"
TOGETHER = (
    "Every epsilon is that of one run alone. Whoever sees several runs about the same records "
    "learns more: their epsilons and deltas add up."
)


def side_by_side(runs: Sequence[RunRecord], policy: Policy | None) -> str:
    """The overview of several runs."""
    parts = [
        f"<p>{escape(TOGETHER)}</p>",
        "<h2>Side by side</h2>",
        f'<div id="overview">{_overview(runs, policy)}</div>',
        charts(figures_together(runs)),
        _seeds(runs),
        "<h2>What differs in their settings</h2>",
        _differences(runs),
        "<h2>Each run</h2>",
    ]
    return "\n".join(part for part in parts if part)


def differences(runs: Sequence[RunRecord]) -> Mapping[str, list[Any]]:
    """Setting -> its value in each run, for settings that are not the same in all."""
    flat = [
        {
            f"{section}.{key}": value
            for section, table in run.config.items()
            for key, value in table.items()
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for each in flat for key in each)
    found = {key: [each.get(key) for each in flat] for key in keys if key not in NOT_COMPARED}
    return {
        key: values
        for key, values in found.items()
        if len({json.dumps(value) for value in values}) > 1
    }


def seed_groups(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that differ in nothing but their seed, together, in the order given."""
    keys = [key for key in differences(runs) if key != SEED]
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        own = [run.config[key.split(".")[0]].get(key.split(".")[1]) for key in keys]
        found.setdefault(json.dumps(own), []).append(run)
    return list(found.values())


def last_accuracy(run: RunRecord) -> float | None:
    """The accuracy measured last; None if none was."""
    return run.accuracy[max(run.accuracy)] if run.accuracy else None


def _overview(runs: Sequence[RunRecord], policy: Policy | None) -> str:
    columns = list(dict.fromkeys(name for run in runs if run.spend for name in run.spend.columns))
    heads = ["run", "accuracy, %", "epsilon", "delta", *columns]
    if policy is not None:
        heads.append("policy")
    rows: list[list[Cell]] = []
    for number, run in enumerate(runs, start=1):
        last, spend = last_accuracy(run), run.spend
        own = {} if spend is None else {n: each.worst for n, each in spend.columns.items()}
        cells: list[Cell] = [
            f"{number}: {run.name}",
            Number(None if last is None else 100.0 * last),
            Number(None if spend is None else spend.headline),
            Number(run.delta),
            *(Number(own.get(name)) for name in columns),
        ]
        if policy is not None:
            cells.append("-" if spend is None else policy.grade(spend.headline))
        rows.append(cells)
    return html_table(heads, rows, caption="epsilon: of the column that matches what was released")


def figures_together(runs: Sequence[RunRecord]) -> list[Figure]:
    """What the runs spent, and their accuracy, in one figure each."""
    spent = [
        (number, run) for number, run in enumerate(runs) if run.spend and run.ledger.rounds.size
    ]
    lines = []
    for number, run in spent:
        assert run.spend is not None
        at = thinned(len(run.ledger.rounds))
        values = run.ledger.epsilon[run.spend.headline_column][at]
        lines.append(Line.of(_kind(number), _label(number, run), run.ledger.rounds[at], values))
    found: list[Figure] = []
    if lines:
        found.append(
            Figure(
                name="together-spend",
                title="Privacy spent",
                caption="Cumulative epsilon of each run's most exposed client, in the column that "
                "matches what it released.",
                x_label="round",
                y_label="epsilon",
                lines=lines,
                log_y=wide([line.y for line in lines]),
            )
        )
    place = {id(run): at for at, run in enumerate(runs)}
    accuracies = [_accuracy_line(place[id(each[0])], each) for each in seed_groups(runs)]
    measured = [line for line in accuracies if line is not None]
    if measured:
        found.append(
            Figure(
                name="together-accuracy",
                title="Accuracy",
                caption="Test accuracy; where runs differ in their seed alone their mean, with one "
                "sample standard deviation either way.",
                x_label="round",
                y_label="test accuracy, %",
                lines=measured,
            )
        )
    return found


def _accuracy_line(number: int, group: Sequence[RunRecord]) -> Line | None:
    common = sorted(set.intersection(*(set(run.accuracy) for run in group)))
    if not common:
        return None
    values = np.array([[100.0 * run.accuracy[at] for at in common] for run in group])
    shown = thinned(len(common))
    spread = values.std(axis=0, ddof=1)[shown] if len(group) > 1 else None
    label = _label(number, group[0])
    if len(group) > 1:
        label += f", mean of {len(group)} seeds"
    return Line(
        _kind(number),
        label,
        np.array(common, dtype=float)[shown],
        values.mean(axis=0)[shown],
        spread,
    )


def _seeds(runs: Sequence[RunRecord]) -> str:
    rows: list[list[Cell]] = []
    for group in seed_groups(runs):
        values = [each for run in group if (each := last_accuracy(run)) is not None]
        if len(values) > 1:
            rows.append(
                [
                    ", ".join(run.name for run in group),
                    Number(len(values)),
                    Number(100.0 * statistics.fmean(values)),
                    Number(100.0 * statistics.stdev(values)),
                ]
            )
    if not rows:
        return ""
    heads = ("runs that differ in their seed alone", "seeds", "mean accuracy, %", "spread")
    caption = "Accuracy over seeds (spread: one sample standard deviation)"
    return f'<div id="seeds">{html_table(heads, rows, caption=caption)}</div>'


def _differences(runs: Sequence[RunRecord]) -> str:
    found = differences(runs)
    if not found:
        return "<p>Nothing.</p>"
    heads = ("setting", *(f"{number}: {run.name}" for number, run in enumerate(runs, start=1)))
    rows = [
        (key, *("-" if value is None else json.dumps(value) for value in values))
        for key, values in found.items()
    ]
    return html_table(heads, rows, label="settings that differ")


def _kind(number: int) -> str:
    return f"run-{number % STYLES}"


def _label(number: int, run: RunRecord) -> str:
    return f"{number + 1}: {run.name}"
