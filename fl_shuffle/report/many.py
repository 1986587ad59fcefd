"""Many runs compared: as a table (`runs`), on one page (`report RUN RUN`), and as a sweep."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.ledger import LEDGER
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.ledger.store import settings_of
from fl_shuffle.ledger.tables import COLUMN_NAMES
from fl_shuffle.report.figures import STYLES, Figure, PlotLine, accuracy_line, thinned
from fl_shuffle.report.formats import short
from fl_shuffle.report.record import RunRecord

if TYPE_CHECKING:
    from fl_shuffle.report.meaning import Policy
    from fl_shuffle.sweeps.results import SweepResult

DEPTH = 3
"""A sweep's runs lie two folders below it, and sweeps lie in a folder of runs."""
NOT_COMPARED = ("run.out", "run.jobs", "data.root")
"""Settings that change no number."""
SEED = "run.seed"
EACH_ALONE = (
    "every epsilon is that of one run alone; an attacker who sees several runs about the same "
    "records learns more: their epsilons and deltas add up"
)
FIXED_EPSILON = 0.01
"""If epsilon differs by less than this share over a sweep, the swept setting is on the axis."""

PERCENT = ("accuracy", "accuracy_sd")
HEADS = {"accuracy": "accuracy, %", "accuracy_sd": "spread, %", "directory": "folder"}
"""Of a sweep's tables: columns of shares, and what they are called on its page."""

Configuration = Mapping[str, Mapping[str, Any]]


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return every run directory at or below these folders, by name. Raises `RunError` if there is
    none, or a folder does not exist."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise RunError(f"{folder} is not a directory; name one that contains runs")
        below = [each for depth in range(DEPTH + 1) for each in folder.glob("*/" * depth + LEDGER)]
        found |= dict.fromkeys(sorted(ledger.parent for ledger in below))
    if not found:
        raise RunError(f"there is no run in {', '.join(map(str, folders))}")
    return list(found)


def runs_table(paths: Sequence[Path], *, with_settings: bool = False) -> dict[str, list[Any]]:
    """Return one row a run: folder, state, clients, rounds, accuracy, the reported epsilon (nats,
    most exposed client) and the local one, delta, unit; of an unfinished run as they stand in its
    ledger so far.

    `with_settings`: also the settings that are not the same in all of them. Raises `RunError` for
    a run whose files make no sense.
    """
    views = [RunView(path) for path in paths]
    configs = [view.config for view in views]
    found = differences(configs) if with_settings else {}
    return {
        "run": list(map(str, paths)),
        "state": ["finished" if view.finished else "unfinished" for view in views],
        "clients": [config["data"]["clients"] for config in configs],
        "rounds": [f"{view.last_round}/{view.config['run']['rounds']}" for view in views],
        "accuracy": [view.measured("accuracy") for view in views],
        "epsilon": [view.epsilon for view in views],
        "local": [view.spent("local") for view in views],
        "delta": [view.delta for view in views],
        "unit": [config["privacy"]["unit"] for config in configs],
        **{key: list(map(json.dumps, values)) for key, values in found.items()},
    }


def differences(
    configs: Sequence[Configuration], ignored: Iterable[str] = NOT_COMPARED
) -> dict[str, list[Any]]:
    """Return setting -> its value in each configuration, for settings that are not the same in
    all."""
    flat = [settings_of(config) for config in configs]
    found = {
        key: [each.get(key) for each in flat]
        for key in dict.fromkeys(key for each in flat for key in each)
        if key not in ignored
    }
    return {key: v for key, v in found.items() if len({json.dumps(value) for value in v}) > 1}


def seed_groups(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Return runs that differ in nothing but their seed, together, in the order given."""
    other = differences([run.config for run in runs], (*NOT_COMPARED, SEED))
    found: dict[str, list[RunRecord]] = {}
    for number, run in enumerate(runs):
        own = json.dumps([values[number] for values in other.values()])
        found.setdefault(own, []).append(run)
    return list(found.values())


def mean_and_spread(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return the mean and sample standard deviation of the numbers among these; None where too few
    are."""
    found = [value for value in values if value is not None]
    mean = statistics.fmean(found) if found else None
    return mean, statistics.stdev(found) if len(found) > 1 else None


def figures_together(runs: Sequence[RunRecord]) -> list[Figure]:
    """Return what the runs spent, and their accuracy, in one figure each."""
    spent, measured = list[PlotLine](), list[PlotLine]()
    for number, run in enumerate(runs):
        at = thinned(len(run.rounds))
        if run.headline == "none":  # an infinite epsilon has no line
            continue
        label, values = f"{number + 1}: {run.name}", run.epsilons[run.headline][at]
        spent.append(PlotLine.of(_kind(number), label, run.rounds[at], values))
    for group in seed_groups(runs):
        number = runs.index(group[0])
        seeds = f", mean of {len(group)} seeds" if len(group) > 1 else ""
        measured += accuracy_line(group, _kind(number), f"{number + 1}: {group[0].name}{seeds}")
    spend = Figure("together-spend", "round", "epsilon", spent, stretched="y")
    accuracy = Figure("together-accuracy", "round", "test accuracy, %", measured)
    return [figure for figure in (spend, accuracy) if figure.shown()]


def runs_view(runs: Sequence[RunRecord], policy: Policy | None) -> dict[str, Any]:
    """Return the overview of several runs: tables as columns, figures."""
    names = [f"{number}: {run.name}" for number, run in enumerate(runs, start=1)]
    accuracy = {id(run): 100.0 * run.accuracy[max(run.accuracy)] for run in runs if run.accuracy}
    reported = [None if run.spend is None else run.spend.headline for run in runs]
    overview: dict[str, Sequence[Any]] = {
        "run": names,
        "accuracy, %": [accuracy.get(id(run)) for run in runs],
        "epsilon": reported,
        "delta": [run.delta for run in runs],
        **{name: [run.spend and run.spend.columns[name].worst for run in runs]
           for name in COLUMN_NAMES},
    }  # fmt: skip
    if policy is not None:
        overview["policy"] = ["-" if cost is None else policy.grade(cost) for cost in reported]
        overview["policy, operator of the server"] = [_operators_grade(run, policy) for run in runs]
    seeds = []
    for group in seed_groups(runs):
        values = [accuracy[id(run)] for run in group if run.accuracy]
        if len(values) > 1:
            who = ", ".join(run.name for run in group)
            seeds.append((who, len(values), *mean_and_spread(values)))
    heads = ("runs", "seeds", "mean accuracy, %", "spread")
    changed = differences([run.config for run in runs])
    settings = {
        name: ["-" if value is None else json.dumps(value) for value in own]
        for name, own in zip(names, zip(*changed.values(), strict=True), strict=False)
    }
    return {
        "overview": overview,
        "figures": figures_together(runs),
        "seeds": dict(zip(heads, zip(*seeds, strict=True), strict=False)),
        "differences": {"setting": list(changed), **settings},
    }


def _operators_grade(run: RunRecord, policy: Policy) -> str:
    """Return what the policy says of the epsilon against the operator of a server that shuffles;
    `-` where another party does."""
    from fl_shuffle.report.meaning import who_looks

    looks = [] if run.spend is None else who_looks(run, policy)
    in_server = run.config["privacy"].get("shuffler", "server") == "server"
    return next((each.grade for each in looks[1:] if in_server and each.column == "local"), "-")


def sweep_table(columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Return a table of a sweep as it is shown: accuracies in percent, under the names of its
    page."""
    return {
        HEADS.get(name, name.removesuffix("_epsilon")): [
            100.0 * value if name in PERCENT and value is not None else value for value in values
        ]
        for name, values in columns.items()
    }


def sweep_figure(sweep: SweepResult) -> Figure | None:
    """Return the accuracy of a sweep with error bars, or None if no row has both numbers.

    The horizontal axis is the headline epsilon of the most exposed client where a swept setting
    changes it. Where none does (a clipping norm, a learning rate), every point would have the same
    epsilon: the numeric setting with the most values is on the axis instead. A line joins the rows
    that differ in one setting only, and each combination of the other settings has its own line.
    """
    column = {
        name: np.array(sweep.table[name], dtype=np.float64)
        for name in ("epsilon", "accuracy", "accuracy_sd")
    }
    epsilon = column["epsilon"]
    rows = np.flatnonzero(np.isfinite(epsilon) & np.isfinite(column["accuracy"])).tolist()
    if not rows:
        return None
    fixed = float(np.ptp(epsilon[rows])) <= FIXED_EPSILON * float(np.max(epsilon[rows]))
    along = (_longest_numeric if fixed else _moves_epsilon)(sweep, rows)
    delta = "" if sweep.delta is None else f" at delta = {sweep.delta:g}"
    if fixed and along:
        across = np.array(sweep.table[along], dtype=np.float64)
        x_label = f"{along} (epsilon = {float(np.max(epsilon[rows])):.4g}{delta})"
    else:
        across, x_label = epsilon, f"epsilon of the most exposed client{delta}"
    lines = []
    for number, (label, own) in enumerate(_groups(sweep, rows, along).items()):
        at = np.array(own)[np.argsort(across[own], kind="stable")]
        accuracy, spread = 100.0 * column["accuracy"][at], column["accuracy_sd"][at]
        kind = f"run-{number % STYLES}"
        lines.append(
            PlotLine.of(
                kind, label or "test accuracy", across[at], accuracy, 100 * _or_zero(spread)
            )
        )
    lines += _without_privacy(sweep, across[rows], len(lines))
    return Figure("accuracy-sweep", x_label, "test accuracy, %", lines, stretched="x")


def _without_privacy(
    sweep: SweepResult, across: NDArray[np.float64], number: int
) -> Iterator[PlotLine]:
    """Yield level lines, over all of the axis, at the accuracies of runs whose epsilon is
    infinite."""
    ends = np.array([0.8 * across.min(), 1.25 * across.max()])
    for epsilon, accuracy, spread in zip(
        *(sweep.table[name] for name in ("epsilon", "accuracy", "accuracy_sd")), strict=True
    ):
        if epsilon == math.inf and accuracy is not None:
            level, wide = np.full(2, 100.0 * accuracy), np.full(2, 100.0 * (spread or 0.0))
            yield PlotLine.of(f"run-{number % STYLES}", "no privacy", ends, level, wide)
            number += 1


def _or_zero(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return zero for no spread: a combination with a single seed has none."""
    return np.nan_to_num(spread)


def _longest_numeric(sweep: SweepResult, rows: Sequence[int]) -> str:
    """Return the swept setting with the most values, all of them numbers; empty if there is
    none."""
    counts = {}
    for key in sweep.settings:
        values = [sweep.table[key][row] for row in rows]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            counts[key] = len(set(values))
    return max((key for key in counts if counts[key] > 1), key=counts.__getitem__, default="")


def _moves_epsilon(sweep: SweepResult, rows: Sequence[int]) -> str:
    """Return the swept setting that changes epsilon most, the others being equal; the last of
    equals."""
    epsilon = np.array(sweep.table["epsilon"], dtype=np.float64)
    return max(
        sweep.settings[::-1],
        key=lambda key: sum(np.ptp(epsilon[own]) for own in _groups(sweep, rows, key).values()),
        default="",
    )


def _groups(sweep: SweepResult, rows: Sequence[int], along: str) -> dict[str, list[int]]:
    """Return the rows of the table in groups that differ in nothing but the setting `along`."""
    found: dict[str, list[int]] = {}
    others = [key for key in sweep.settings if key != along]
    for row in rows:
        label = ", ".join(f"{key} = {short(sweep.table[key][row])}" for key in others)
        found.setdefault(label, []).append(row)
    return found


def _kind(number: int) -> str:
    return f"run-{number % STYLES}"
