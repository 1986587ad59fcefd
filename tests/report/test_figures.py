"""Figures as numbers: which points lines have, which axes are logarithmic, what tables hold."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.report import figures
from fl_shuffle.report.draw import matplotlib_figure, write_each, write_figures
from fl_shuffle.report.figures import (
    COINCIDENT,
    FEW_POINTS,
    LABELS,
    MOST_POINTS,
    SMALLEST_DELTA,
    WIDE,
    Figure,
    PlotLine,
    accuracy_line,
    clients_distribution,
    run_figures,
    spend_over_rounds,
    thinned,
    worst_client_curves,
)
from fl_shuffle.report.formats import as_text
from fl_shuffle.report.history import SpendQuantiles
from fl_shuffle.report.record import RunRecord

ROUNDS = np.arange(1, 5)


def line(*values: float, label: str = "a", x: Any = None) -> PlotLine:
    return PlotLine.of("shuffled", label, np.arange(len(values)) if x is None else x, values)


def figure(*lines: PlotLine, **more: Any) -> Figure:
    return Figure("x", "round", "epsilon", lines, **more)


@pytest.mark.parametrize("others", [(), (0.0,), (-0.0, 0.0), (-1e-300, 0.0, -7.0)])
@pytest.mark.parametrize("values", [(2.0, 8.0), (1e-9, 3.0), (5.0,)])
def test_ratio_is_of_positive_values_alone(
    values: tuple[float, ...], others: tuple[float, ...]
) -> None:
    shown = figure(line(*values), line(*others, label="b"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown.ratio("y") == max(values) / min(values)


@pytest.mark.parametrize("values", [(), (0.0,), (0.0, -3.0)])
def test_ratio_without_positive_values_is_one(values: tuple[float, ...]) -> None:
    shown = figure(line(*values), stretched="y")
    assert shown.ratio("y") == 1.0 and not shown.is_log("y")


def test_axes_are_logarithmic_above_the_factor_if_named() -> None:
    at, above = line(1.0, WIDE), line(1.0, math.nextafter(WIDE, math.inf))
    assert not figure(at, stretched="xy").is_log("y")
    assert figure(above, stretched="xy").is_log("y") and figure(above, stretched="y").is_log("y")
    assert not figure(above, stretched="x").is_log("y") and not figure(above).is_log("y")
    assert not figure(above, stretched="xy").is_log("x")
    drawn = matplotlib_figure(figure(above, stretched="y")).axes[0]
    assert (drawn.get_xscale(), drawn.get_yscale()) == ("linear", "log")


def test_lines_keep_the_points_that_are_numbers() -> None:
    x, y = [0.0, 1.0, 2.0, math.inf, 4.0], [5.0, math.nan, None, 7.0, 9.0]
    kept = PlotLine.of("shuffled", "a", x, cast(Any, y), [0.1, 0.2, 0.3, 0.4, 0.5])
    assert kept.x.tolist() == [0.0, 4.0] and kept.y.tolist() == [5.0, 9.0]
    assert kept.spread is not None and kept.spread.tolist() == [0.1, 0.5]


@pytest.mark.parametrize("points", range(FEW_POINTS + 2))
def test_few_points_are_dots_but_for_steps_and_targets(points: int) -> None:
    of = np.arange(points, dtype=np.float64)
    assert PlotLine.of("shuffled", "a", of, of).few == (points < FEW_POINTS)
    assert not PlotLine.of("shuffled", "a", of, of, steps=True).few
    assert not PlotLine.of("target", "a", of, of).few


def test_lines_that_coincide_are_one_with_all_names() -> None:
    """Within the stated share of the other, at each of the same points; and highest first."""
    base, near = np.array([1.0, 1e-9]), 0.99 * COINCIDENT
    lines = [
        line(*base, label="a"), line(*(base * (1 + near)), label="b"),
        line(*(base * (1 + 3 * COINCIDENT)), label="c"), line(*base, label="d", x=[0, 2]),
        line(label="empty"), line(1.0, 5.0, label="top"), line(1.0, 3e-9, label="apart at one"),
    ]  # fmt: skip
    shown = figure(*lines).shown()
    assert shown[0].label == "top" and {each.label for each in shown[1:]} == {
        "a = b", "c", "d", "apart at one",
    }  # fmt: skip
    ends = [each.y[-1] for each in shown]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("x, counts", [([1, 2, 3], True), ([1, 2.5], False), ([], True)])
def test_an_axis_counts_where_all_its_values_are_whole(x: list[float], counts: bool) -> None:
    assert figure(line(1.0, 2.0), line(*x, label="b", x=x)).counts == counts


def test_tables_hold_each_point_of_each_line_once() -> None:
    """Of repeated x as well, beside the spread of the same point; NaN where a line has none."""
    one = PlotLine.of("shuffled", "a", [1, 2, 2, 3], [1.0, 2.0, 2.5, 3.0], [0.1, 0.2, 0.3, 0.4])
    other = PlotLine.of("sum", "b", [2, 4], [20.0, 40.0])
    shown = figure(one, other, line(label="empty")).table()
    assert list(shown) == ["round", "a", "a, spread", "b"]
    assert shown["round"] == [1, 2, 2, 3, 4]
    nan = math.nan
    for name, values in {
        "a": [1.0, 2.0, 2.5, 3.0, nan], "a, spread": [0.1, 0.2, 0.3, 0.4, nan],
        "b": [nan, 20.0, nan, nan, 40.0],
    }.items():  # fmt: skip
        np.testing.assert_array_equal(shown[name], values)


@pytest.mark.parametrize("count", [0, 1, 2, MOST_POINTS, MOST_POINTS + 1, 7 * MOST_POINTS + 3])
def test_thinned_places_hold_both_ends_and_are_few(count: int) -> None:
    at = thinned(count)
    assert len(at) == min(count, MOST_POINTS) and (np.diff(at) > 0).all()
    assert not count or (at[0], at[-1]) == (0, count - 1)
    assert count <= MOST_POINTS or np.diff(at).max() <= math.ceil(count / (MOST_POINTS - 1))


class Recorded(SimpleNamespace):
    """What stands for a run; two of them are two runs."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]


def recorded(**more: Any) -> RunRecord:
    """What the figures read of a run: epsilons after four rounds, and a target."""
    epsilons = {name: np.array([0.0, 0.5, 1.0, 2.0]) * n for n, name in enumerate(LABELS, 1)}
    config = {"privacy": {"randomizer": "gaussian", "target_epsilon": 3.0}}
    own = Recorded(
        rounds=ROUNDS, epsilons=epsilons, config=config, delta=1e-5,
        spend=SimpleNamespace(
            columns={"rdp": SimpleNamespace(status=Status.PROVEN)}, headline_column="shuffled",
            mu_total=None,
        ),
    )  # fmt: skip
    for name, value in more.items():
        setattr(own, name, value)
    return cast(RunRecord, own)


def test_spend_shows_positive_epsilons_of_every_column() -> None:
    """A column that has said nothing yet has no point there, not a zero."""
    shown = spend_over_rounds(recorded())
    assert [each.label for each in shown.lines] == [*LABELS.values(), "the run's target"]
    for number, each in enumerate(shown.lines[:-1], start=1):
        assert each.x.tolist() == [2, 3, 4]
        assert each.y.tolist() == [0.5 * number, number, 2.0 * number]
    target = shown.lines[-1]
    assert target.x.tolist() == [1, 4] and target.y.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("declared", [False, True])
def test_spend_names_what_is_proven_and_what_is_not(published: bool, declared: bool) -> None:
    run = recorded()
    assert run.spend is not None
    if published:
        run.spend.columns["rdp"].status = Status.AS_PUBLISHED  # type: ignore[misc]
    if declared:
        run.config["privacy"]["randomizer"] = "declared"
    labels = {each.label: each.kind for each in spend_over_rounds(run).lines}
    assert (labels.get("Renyi, as published") == "rdp-published") == published
    assert (labels.get("Renyi (proven)") == "rdp") != published
    assert ("local, as declared by the clients" in labels) == declared
    assert (LABELS["local"] in labels) != declared


def test_distribution_is_the_share_of_all_at_most_x() -> None:
    """Those whose epsilon is not finite are clients, too: the line ends below 100 %."""
    values = np.array([3.0, 1.0, 1.0, math.inf])
    (shown,) = clients_distribution(recorded(proven_columns={"shuffled": values})).lines
    assert shown.steps
    assert list(zip(shown.x.tolist(), shown.y.tolist(), strict=True)) == [(1.0, 50.0), (3.0, 75.0)]


def test_curves_of_the_worst_client_end_at_small_deltas() -> None:
    """delta is drawn where it is above the smallest, and the trade-off over all errors."""
    worst = SimpleNamespace(
        epsilon=10.0, client=3, profile=lambda at: 10.0 ** -np.asarray(at, dtype=np.float64),
        trade_off=lambda first: 1.0 - np.asarray(first) ** 0.5,
    )  # fmt: skip
    profile, errors = worst_client_curves(recorded(worst=worst))
    curve, target = profile.lines
    assert curve.label == LABELS["shuffled"] and profile.client == errors.client == 3
    assert curve.x[0] == 0.0 and (curve.y > SMALLEST_DELTA).all()
    step = 1.5 * worst.epsilon / (figures.POINTS - 1)
    assert curve.x[-1] <= -math.log10(SMALLEST_DELTA) <= curve.x[-1] + step
    assert curve.y.tolist() == worst.profile(curve.x).tolist()
    assert target.y.tolist() == [1e-5, 1e-5] and target.x.tolist() == [0.0, 15.0]
    guessing, own = errors.lines
    assert guessing.y.tolist() == (1.0 - guessing.x).tolist()
    assert (own.x[0], own.x[-1]) == (0.0, 1.0) and own.y.tolist() == worst.trade_off(own.x).tolist()


def test_accuracy_of_runs_is_mean_and_sample_spread() -> None:
    """After rounds that all of them have; of one run there is no spread."""
    runs = [recorded(accuracy=each) for each in ({1: 0.5, 2: 0.6}, {2: 0.8, 3: 0.9})]
    (shown,) = accuracy_line(runs, "accuracy", "a")
    assert shown.x.tolist() == [2.0] and shown.y.tolist() == pytest.approx([70.0])
    assert shown.spread is not None and shown.spread.tolist() == pytest.approx([200.0**0.5])
    (alone,) = accuracy_line(runs[:1], "accuracy", "a")
    assert alone.y.tolist() == pytest.approx([50.0, 60.0]) and alone.spread is None
    assert accuracy_line([recorded(accuracy={1: 0.5}), runs[1]], "accuracy", "a") == []


def test_steps_hold_a_share_from_its_value_on() -> None:
    shown = figure(PlotLine.of("shuffled", "a", [1.0, 3.0], [50.0, 75.0], steps=True))
    (drawn,) = matplotlib_figure(shown).axes[0].lines
    assert drawn.get_drawstyle() == "steps-post"
    assert cast(Any, drawn.get_xydata()).tolist() == [[1.0, 0.0], [1.0, 50.0], [3.0, 75.0]]


def test_each_figure_is_written_under_its_own_name(tmp_path: Path) -> None:
    """With its own numbers."""
    some = [Figure(name, "round", "y", [line(1.0, end)]) for name, end in (("p", 2.0), ("q", 7.0))]
    paths = write_each(some, tmp_path / "out", "csv")
    assert [path.name for path in paths] == ["p.csv", "q.csv"]
    for path, shown in zip(paths, some, strict=True):
        head, *rows = path.read_text(encoding="utf-8").splitlines()
        assert head == "round,a" and rows == ["0.0,1.0", f"1.0,{shown.lines[0].y[-1]}"]


def whole(number: int, **more: Any) -> RunRecord:
    """A run whose every figure is its own."""
    scale, quantiles = 1.0 + number, np.arange(20.0).reshape(4, 5)
    epsilons = {name: scale * values for name, values in recorded().epsilons.items()}
    config = {**recorded().config, "run": {"rounds": 4, "seed": 1}, "model": {"width": number}}
    return recorded(
        name=f"of {number}", epsilons=epsilons, headline="shuffled", worst=None, config=config,
        accuracy={1: 0.1 * scale, 4: 0.2 * scale}, followed=(7,),
        proven_columns={"shuffled": scale * np.array([1.0, 2.0])},
        quantiles=SpendQuantiles(ROUNDS, scale * quantiles, scale * quantiles[:, :1]), **more,
    )  # fmt: skip


def test_files_of_several_runs_hold_each_ones_numbers(tmp_path: Path) -> None:
    """Under the run's number; what they have in common is one file with a line for each."""
    runs = [whole(0), whole(1), whole(2, spend=None)]
    paths = write_figures(runs, tmp_path / "out", "csv")
    files = {path.stem: path.read_text(encoding="utf-8").rstrip("\n") for path in paths}
    own = {f"run{n}-{f.name}": f for n, run in enumerate(runs[:2], 1) for f in run_figures(run)}
    assert len(own) == 8 and set(files) == {*own, "together-spend", "together-accuracy"}
    for name, shown in own.items():
        assert files[name] == as_text(shown.table(), "csv")
    together, *_ = files["together-spend"].splitlines()
    assert together == "round," + ",".join(f"{n}: {run.name}" for n, run in enumerate(runs, 1))
    (alone, *_) = write_figures(runs[:1], tmp_path / "alone", "csv")
    assert alone.name == "spend.csv"
