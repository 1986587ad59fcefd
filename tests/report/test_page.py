"""The page, read back: every number on it is the ledger's; several runs; pictures and tables."""

from __future__ import annotations

import csv
import itertools
import math
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.report import Policy
from fl_shuffle.report.comparison import differences, seed_groups
from fl_shuffle.report.drawing import _axis, _log_ticks, _ticks, svg
from fl_shuffle.report.figures import LABELS, Figure, Line, run_figures, thinned
from fl_shuffle.report.meaning import best_guess, odds_factor
from fl_shuffle.report.plots import write_figures
from fl_shuffle.report.record import RunRecord, read_run
from tests.report.reading import Page

SETTINGS = {
    "run.rounds": 3, "data.clients": 40, "training.participation": 0.6, "budgets.levels": 3,
    "run.jobs": 1, "privacy.unit": "client",
}  # fmt: skip
COLUMNS = {"specific": "gspa_specific"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of one federation, and the same with tighter budgets."""
    place = tmp_path_factory.mktemp("runs")
    asked = {
        "one": {},
        "two": {"run.seed": 2},
        "tight": {"budgets.high": 0.8, "privacy.release": "sum"},
    }
    for name, more in asked.items():
        fs.simulate("configs/digits_record.toml", overrides={**SETTINGS, **more}, out=place / name)
    return [place / name for name in asked]


def page(folders: Sequence[Path], out: Path, *options: str) -> Page:
    assert main(["report", *map(str, folders), "--out", str(out), *options]) == 0
    return Page(out.read_text(encoding="utf-8"))


def require_the_ledger(shown: Page, folder: Path, prefix: str) -> None:
    """Every number of a run's sections, compared with the run's own SQLite file."""
    with sqlite3.connect(folder / "ledger.sqlite") as database:
        bills = database.execute("SELECT client_id, rounds, proven, sum, local FROM client_spend "
                                 "ORDER BY client_id").fetchall()  # fmt: skip
        classes = dict(database.execute("SELECT client_id, class_id FROM clients"))
        kinds = {row[0]: row[1:] for row in database.execute(
            "SELECT class_id, epsilon0, delta0, scale, radius, records FROM classes")}  # fmt: skip
        names = ["gspa", "specific", "proven", "sum", "local", "lower", "sum_lower"]
        asked = ", ".join(COLUMNS.get(name, name) for name in names)
        rounds = database.execute(
            f"SELECT round, n_reports, {asked} FROM rounds ORDER BY round"
        ).fetchall()
    table = next(each for each in shown.sortable() if f"{prefix}clients-table" in shown.names
                 and (not prefix or f"run{prefix[3]}" in each.inside))  # fmt: skip
    assert len(table.rows) == len(bills) == 40
    read = {int(str(row[0]).split(".")[0]): row[1:] for row in table.rows}
    for client, *bill in bills:
        assert read[client] == [*bill, *kinds[classes[client]]]
    own = shown.table(f"{prefix}rounds")
    assert [list(row) for row in own.rows] == [list(row) for row in rounds]
    found = {str(row[0]): row[1] for row in shown.table(f"{prefix}bounds").rows}
    last = dict(zip(names, rounds[-1][2:], strict=True))
    assert found.keys() == last.keys()
    for name, value in last.items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-12))
    spent = shown.table(f"{prefix}spend")
    for name, label in (("proven", "reports seen (proven)"), ("sum", "only sums seen (proven)")):
        at = spent.heads.index(label)
        assert [row[at] for row in spent.rows] == [row[2 + names.index(name)] for row in rounds]
    own_epsilons = np.array(bills, dtype=float)[:, 2:].T
    every = dict(zip(("proven", "sum", "local"), own_epsilons, strict=True))
    shares = shown.table(f"{prefix}quantiles").rows
    assert [row[0] for row in shares] == [name for name in every if not np.isnan(every[name]).any()]
    for name, *values in shares:
        wanted = np.quantile(every[str(name)], (0.1, 0.5, 0.9, 0.99, 1.0))
        assert values == pytest.approx(wanted.tolist())
    with (folder / "metrics.csv").open(newline="") as file:
        measured = [[float(row["round"]), 100 * float(row["accuracy"])]
                    for row in csv.DictReader(file)]  # fmt: skip
    assert shown.table(f"{prefix}accuracy").rows == measured
    require_the_curves(shown, folder, prefix)


def test_every_number_of_the_page_is_the_ledgers(runs: list[Path], tmp_path: Path) -> None:
    shown = page(runs[:1], tmp_path / "page.html", "--policy", "1,100", "--purpose", "a <b> test")
    require_the_ledger(shown, runs[0], "")
    result = fs.Result(runs[0])
    assert shown.data == {"headline": result.epsilon, "accuracy": pytest.approx(result.accuracy)}
    assert "a <b> test" in shown.text and "moderate by the policy" in shown.text
    order = ("What was done", "What it cost", "What is not covered", "Spend per round",
             "Every bound", "Clients", "Profile and trade-off", "How to run it again",
             "Read and accepted")  # fmt: skip
    places = [shown.text.index(heading) for heading in order]
    assert places == sorted(places)


def require_the_curves(shown: Page, folder: Path, prefix: str) -> None:
    """Profile, trade-off and shares of clients, against the accountant's own."""
    run = read_run(folder)
    assert run.worst is not None and run.spend is not None
    headline = LABELS[run.spend.headline_column]
    profile = shown.table(f"{prefix}profile")
    grid = np.array([row[0] for row in profile.rows], dtype=float)
    at = profile.heads.index(headline)
    seen = [(row[0], row[at]) for row in profile.rows if row[at] is not None]
    assert len(seen) > 20
    for epsilon, delta in seen:
        assert delta == run.worst.profile([epsilon])[0]
    assert grid[-1] == pytest.approx(1.5 * run.worst.epsilon)
    curve = shown.table(f"{prefix}trade-off")
    at = curve.heads.index(headline)
    for row in curve.rows:
        assert row[at] == run.worst.trade_off([row[0]])[0]
    shares = shown.table(f"{prefix}clients")
    at = shares.heads.index("reports seen (proven)")
    for row in shares.rows:
        if row[at] is not None:
            assert row[at] == pytest.approx(100 * np.mean(run.totals.proven <= row[0]))


def test_several_runs_side_by_side(runs: list[Path], tmp_path: Path) -> None:
    shown = page(runs, tmp_path / "page.html", "--policy", "0.1,100")
    results = [fs.Result(folder) for folder in runs]
    overview = shown.table("overview")
    for row, result in zip(overview.rows, results, strict=True):
        columns = result.summary["columns"]
        bounds = [columns[name]["epsilon"] for name in overview.heads[4:-1]]
        assert set(overview.heads[4:-1]) == set(columns)
        assert row[1:-1] == [
            pytest.approx(value) if value is not None else None
            for value in (100 * result.accuracy, result.epsilon, result.delta, *bounds)
        ]
        assert row[-1] == "moderate"
    require_the_figures_together(shown, results)
    for number, folder in enumerate(runs, start=1):
        require_the_ledger(shown, folder, f"run{number}-")
    (seeds,) = shown.table("seeds").rows
    both = [100 * result.accuracy for result in results[:2]]
    assert seeds[1:] == [2, pytest.approx(np.mean(both)), pytest.approx(np.std(both, ddof=1))]
    assert "budgets.high" in shown.text and "add up" in shown.text
    records = [read_run(folder) for folder in runs]
    assert set(differences(records)) == {"run.seed", "budgets.high", "privacy.release"}
    assert [len(group) for group in seed_groups(records)] == [2, 1]


def require_the_figures_together(shown: Page, results: Sequence[fs.Result]) -> None:
    """Each run's epsilon after every round; accuracy, as a mean where seeds differ alone."""
    spent, learnt = shown.table("together-spend"), shown.table("together-accuracy")
    for number, result in enumerate(results, start=1):
        at = spent.heads.index(f"{number}: {result.directory.name}")
        own = result.metrics[f"{result.headline}_epsilon"]
        assert [row[at] for row in spent.rows] == pytest.approx(list(own))
    both = np.array([100 * result.metrics["accuracy"] for result in results[:2]])
    at = learnt.heads.index(f"1: {results[0].directory.name}, mean of 2 seeds")
    assert [row[at] for row in learnt.rows] == pytest.approx(both.mean(axis=0))
    assert [row[at + 1] for row in learnt.rows] == pytest.approx(both.std(axis=0, ddof=1))
    at = learnt.heads.index(f"3: {results[2].directory.name}")
    alone = 100 * results[2].metrics["accuracy"]
    assert [row[at] for row in learnt.rows] == pytest.approx(alone)


def test_pictures_and_numbers_for_papers(runs: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for form, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("csv", b"round")):
        page(runs[:1], tmp_path / "page.html", f"--{form}", str(tmp_path / form))
        names = {path.stem for path in (tmp_path / form).iterdir()}
        assert names == {"spend", "clients", "profile", "trade-off", "accuracy"}
        assert (tmp_path / form / f"spend.{form}").read_bytes().startswith(start)
    (spend, *_) = run_figures(read_run(runs[0]))
    with (tmp_path / "csv" / "spend.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in spend.table().items():
        assert [float(row[name] or "nan") for row in rows] == pytest.approx(values, nan_ok=True)
    records = [read_run(folder) for folder in runs]
    together = write_figures(records, tmp_path / "all", "csv")
    assert {"run3-spend", "together-spend", "together-accuracy"} <= {p.stem for p in together}


def test_pictures_without_their_library_are_one_line(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fl_shuffle.plugins.installed", lambda library: False)
    records = [read_run(runs[0])]
    with pytest.raises(ConfigError, match=r"fl-shuffle\[report\]"):
        write_figures(records, tmp_path / "png", "png")
    assert write_figures(records, tmp_path / "csv", "csv")


def test_a_policy_grades_by_its_two_limits() -> None:
    policy = Policy.parse("1, 8")
    assert [policy.grade(value) for value in (0.5, 1.0, 1.1, 8.0, 8.1, math.inf)] == [
        "strong", "strong", "moderate", "moderate", "weak", "weak",
    ]  # fmt: skip
    for text in ("1", "8,1", "0,1", "nan,2", "1,inf", "a,b", "1,2,3"):
        with pytest.raises(InvalidValueError, match="--policy"):
            Policy.parse(text)


def test_odds_and_guesses_are_what_the_definition_allows() -> None:
    """Randomized response with epsilon = ln 3, and a mechanism that fails with probability 1/10."""

    class Response:
        client, epsilon = 0, math.log(3.0)

        def profile(self, epsilons: Sequence[float]) -> np.ndarray:
            return np.maximum(0.0, 0.75 - np.exp(np.asarray(epsilons)) * 0.25)

        def trade_off(self, type_one: Sequence[float]) -> np.ndarray:
            raise NotImplementedError

    assert best_guess(Response()) == pytest.approx(0.75)
    assert odds_factor(math.log(3.0), 0.0) == pytest.approx(3.0)
    # Evidence of probability 1/100 without, 1/100 + 1/10 with: eleven times as probable.
    assert odds_factor(0.0, 0.1) == pytest.approx(11.0)


def test_lines_that_coincide_are_one_with_both_names() -> None:
    x = np.arange(4.0)
    lines = [Line.of("a", "low", x, x), Line.of("b", "same", x, 1.001 * x),
             Line.of("c", "high", x, 2.0 * x)]  # fmt: skip
    shown = Figure("f", "F", "", "x", "y", lines).shown()
    assert [line.label for line in shown] == ["high", "low = same"]
    table = Figure("f", "F", "", "x", "y", lines).table()
    assert list(table) == ["x", "low", "same", "high"]
    assert table["same"].tolist() == (1.001 * x).tolist()


def test_points_at_the_same_place_keep_a_row_each() -> None:
    one = Line.of("a", "one", [2.0, 1.0, 2.0], [5.0, 6.0, 7.0])
    other = Line.of("b", "other", [2.0, 3.0], [8.0, 9.0])
    table = Figure("f", "F", "", "x", "y", [one, other]).table()
    assert table["x"].tolist() == [1.0, 2.0, 2.0, 3.0]
    assert table["one"][:3].tolist() == [6.0, 5.0, 7.0] and np.isnan(table["one"][3])
    assert table["other"][[1, 3]].tolist() == [8.0, 9.0] and np.isnan(table["other"][[0, 2]]).all()


@pytest.mark.parametrize("ends", [(0.7, 19.0), (3.0, 5.0), (1e-12, 1.0), (0.0301, 0.0302)])
def test_labels_of_an_axis_are_few_round_and_inside(ends: tuple[float, float]) -> None:
    low, high = ends
    for ticks in (_ticks(low, high), _log_ticks(low, high)):
        assert 2 <= len(ticks) <= 8
        edge = 1e-9 * high
        assert all(low - edge <= tick <= high + edge for tick in ticks)
        assert ticks == sorted(set(ticks))
        assert all(len(f"{tick:.4g}") <= 7 for tick in ticks)


def test_labels_do_not_touch() -> None:
    """Over a narrow and a wide logarithmic axis, from the drawing itself."""
    for x in (np.array([4.2, 13.9]), np.array([0.0011, 0.9]), np.array([1e-9, 1e4])):
        figure = Figure("f", "F", "", "x", "y", [Line.of("a", "a", x, x)], log_x=True)
        found = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([^<]+)<',
                           svg(figure, "f"))  # fmt: skip
        spans = sorted(
            (float(at) - 4.0 * len(text), float(at) + 4.0 * len(text)) for at, text in found
        )
        assert len(spans) >= 2
        assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))
    axis = _axis([np.array([2.0, 2.0])], 0.0, 1.0, log=False)
    assert axis.low < 2.0 < axis.high


def test_rounds_have_no_halves() -> None:
    def labels(x: list[float]) -> list[str]:
        drawn = svg(Figure("f", "F", "", "x", "y", [Line.of("a", "a", x, np.zeros(len(x)))]), "f")
        return re.findall(r'text-anchor="middle">([\d.]+)<', drawn)

    assert labels([1.0, 2.0, 3.0, 4.0]) == ["1", "2", "3", "4"]
    assert labels([1.0]) == ["1"]
    assert labels([1.0, 2.5, 4.0]) == ["1", "1.5", "2", "2.5", "3", "3.5", "4"]


def test_long_lines_are_thinned_and_keep_their_ends() -> None:
    at = thinned(10_001)
    assert at[0] == 0 and at[-1] == 10_000 and len(at) <= 400
    assert thinned(3).tolist() == [0, 1, 2]


def test_a_run_of_one_round_has_dots(tmp_path: Path) -> None:
    settings = {**SETTINGS, "run.rounds": 1, "training.participation": 1.0}
    fs.simulate("configs/digits_record.toml", overrides=settings, out=tmp_path / "run")
    run: RunRecord = read_run(tmp_path / "run")
    assert '<circle class="dot' in svg(run_figures(run)[0], "spend")
