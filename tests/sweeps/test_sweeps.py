"""What a grid means; a sweep runs its points, survives what goes wrong, tells what came out."""

from __future__ import annotations

import csv
import io
import os
import signal
import sqlite3
import stat
import statistics
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.api import resume_sweep
from fl_shuffle.cli import main
from fl_shuffle.cli.sweep import _lines, _progress
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records
from fl_shuffle.errors import ConfigError, RunError
from fl_shuffle.report.many import sweep_figure, sweep_table
from fl_shuffle.sweeps import running
from fl_shuffle.sweeps.directory import RUNS, reopen_sweep
from fl_shuffle.sweeps.points import Sweep, parse_grid
from fl_shuffle.sweeps.results import SweepResult
from fl_shuffle.sweeps.running import SweepEvent, _played
from tests.report.reading import Page
from tests.repository import ROOT

Swept = tuple[SweepResult, list[SweepEvent]]
BASE = "configs/digits_record.toml"
SMALL = {"run.rounds": 2, "data.clients": 40, "run.jobs": 1}
GRID = {"privacy.clip_norm": [0.2, 0.5]}
TABLES = {"run": {"rounds": 2, "seed": 7}}


def test_values_are_read_as_toml_or_text() -> None:
    for text, values in (
        ("privacy.clip_norm=0.01,0.02", [0.01, 0.02]),
        ("data.partition=iid,shards", ["iid", "shards"]),
        ("model.hidden=[10],[20, 30]", [[10], [20, 30]]),
    ):
        assert list(parse_grid([text]).values()) == [values]
        with pytest.raises(ConfigError, match="section.key=value"):
            parse_grid([text.replace(".", "")])
        with pytest.raises(ConfigError, match="given twice"):
            parse_grid([text, text])


def test_every_combination_meets_every_seed() -> None:
    grid = {"privacy.clip_norm": [0.1, 0.2, 0.3], "run.rounds": [3, 4]}
    points = Sweep.of(TABLES, grid, 2).points
    assert len(points) == len({point.name for point in points}) == 12
    seen = {(p.config.privacy.clip_norm, p.config.run.rounds, p.config.run.seed) for p in points}
    assert seen == {(c, r, s) for c in (0.1, 0.2, 0.3) for r in (3, 4) for s in (7, 8)}
    assert [point.name[:3] for point in points] == [f"{i:03d}" for i in range(6) for _ in range(2)]


def test_grids_refused() -> None:
    refused: list[tuple[dict[str, Sequence[object]], int, str]] = [
        ({"privacy.clip_norm": [1.0, -1.0]}, 1, "clip_norm = -1"),
        ({"privacy.clop": [1.0]}, 1, "did you mean"),
        ({"privacy.clip_norm": [1.0, 1.0]}, 1, "twice"),
        ({"privacy.clip_norm": []}, 1, "no value"),
        ({"run.out": ["a"]}, 1, "cannot be swept"),
        ({"run.seed": [1, 2]}, 2, "--seeds sets"),
        ({"run.rounds": range(1, 200), "run.seed": range(100)}, 1, "19,900"),
    ]
    for grid, seeds, message in refused:
        with pytest.raises(ConfigError, match=message):
            Sweep.of(TABLES, grid, seeds)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    events: list[SweepEvent] = []
    folder = tmp_path_factory.mktemp("sweep") / "s"
    before = os.umask(0)
    try:
        swept = fs.sweep(
            BASE, overrides=SMALL, grid=GRID, seeds=2, jobs=1, out=folder, on_event=events.append
        )
    finally:
        os.umask(before)
    return swept, events


@pytest.mark.slow
def test_every_run_is_what_it_would_be_alone(sweep: Swept, tmp_path: Path) -> None:
    result, _ = sweep
    point, swept = list(result.finished.items())[3]
    alone = fs.simulate(
        BASE,
        overrides={**SMALL, **point.settings, "run.seed": point.config.run.seed},
        out=tmp_path / "alone",
    )
    assert (swept.measured("accuracy"), swept.epsilon) == (alone.accuracy, alone.epsilon)
    model = result.directory / RUNS / point.name / "model.safetensors"
    assert model.read_bytes() == (alone.directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_times_are_shown_where_they_may_be(
    entropy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    plan = Sweep.of({"run": {"entropy": entropy}}, {}, 1)
    with _progress(plan, [], quiet=False) as observe:
        observe(SweepEvent(plan.points[0], 3))
    said = capsys.readouterr().err
    assert "0/1 runs" in said and ("-:--:--" in said) == (entropy == "seeded")


def test_sweep_says_what_its_runs_cost_together(sweep: Swept) -> None:
    """Composed, of all runs; on the screen, on the page, and as a table."""
    result, _ = sweep
    paths = [result.directory / RUNS / point.name for point in result.finished]
    theirs = fs.compose_runs(paths)
    found = result.together
    assert found is not None and len(found.directories) == 4
    assert found.worst() == theirs.worst() is not None
    assert found.worst() > max(result.runs["epsilon"])
    shown = f"the best of these 4 runs has cost the most exposed client epsilon {found.worst():.4g}"
    page = (result.directory / "sweep.html").read_text()
    assert shown in page and shown in result.cost_together
    assert shown in " ".join(_lines(result, []))
    added = f"{found.added['headline'].max():.4g} at delta = {4 * found.delta:g}"
    assert added in result.cost_together
    with (result.directory / "together.csv").open(newline="") as file:
        rows = {row["column"]: row for row in csv.DictReader(file)}
    assert float(rows["headline"]["epsilon"]) == found.worst()


@pytest.mark.slow
def test_sweep_says_why_its_runs_do_not_compose(tmp_path: Path) -> None:
    """Other clients in every run; and a run by itself has nothing to add."""
    small = {**SMALL, "run.rounds": 1}
    grid = {"data.clients": [40, 41]}
    result = fs.sweep(BASE, overrides=small, grid=grid, out=tmp_path / "s")
    assert result.together is None and not (tmp_path / "s" / "together.csv").exists()
    assert "is not composed: " in result.cost_together
    assert "data.clients = 41 instead of 40" in result.cost_together
    assert "data.clients = 41" in (tmp_path / "s" / "sweep.html").read_text()
    alone = fs.sweep(BASE, overrides=small, out=tmp_path / "one")
    assert alone.together is None and alone.cost_together == ""


@pytest.mark.slow
def test_failed_runs_of_a_sweep_count_and_baselines_do_not(tmp_path: Path) -> None:
    small = {**SMALL, "run.rounds": 2, "run.entropy": "system"}
    result = fs.sweep(BASE, overrides=small, grid={"run.rounds": [1, 2]}, out=tmp_path / "s")
    [first, _] = [tmp_path / "s" / RUNS / point.name for point in result.finished]
    with closing(sqlite3.connect(first / "ledger.sqlite")) as database:
        database.execute("DELETE FROM meta WHERE key = 'finished'")
        database.commit()
    again = SweepResult(tmp_path / "s")
    assert len(again.finished) == 1 and again.together is not None
    assert again.together.rounds.tolist() == [3] * 40
    compared = fs.sweep(
        BASE, overrides={**SMALL, "run.rounds": 1}, grid=GRID, baselines=True, out=tmp_path / "b"
    )
    assert compared.together is not None and len(compared.together.directories) == 2


def test_events_tables_and_page(sweep: Swept) -> None:
    result, events = sweep
    assert sum(event.round_number is not None for event in events) == 8
    assert len(events) == 12 and not any(event.error or event.kept for event in events)
    with (result.directory / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == result.runs["accuracy"]
    for row, clip in enumerate(GRID["privacy.clip_norm"]):
        mine = [i for i, value in enumerate(result.runs["privacy.clip_norm"]) if value == clip]
        accuracies = [result.runs["accuracy"][i] for i in mine]
        assert result.table["accuracy"][row] == statistics.fmean(accuracies)
        assert result.table["accuracy_sd"][row] == statistics.stdev(accuracies)
        assert result.table["epsilon"][row] == max(result.runs["epsilon"][i] for i in mine)
    # `Page` insists that nothing is fetched.
    shown = Page((result.directory / "sweep.html").read_text())
    for place, table in (("combinations", result.table), ("runs", result.runs)):
        read = shown.table(place)
        found = dict(zip(read.heads, zip(*read.rows, strict=True), strict=True))
        numbers = {name: values for name, values in table.items() if name != "directory"}
        for name, values in sweep_table(numbers).items():
            assert found[name] == tuple(values)
    # No epsilon depends on a clipping norm: the norm is on the axis.
    drawn, table = shown.table("accuracy-sweep"), result.table
    assert drawn.heads[0].startswith("privacy.clip_norm (epsilon = ")
    points = [(row[0], row[drawn.heads.index("test accuracy")]) for row in drawn.rows]
    accuracies = [100.0 * share for share in table["accuracy"]]
    assert points == sorted(zip(table["privacy.clip_norm"], accuracies, strict=True))
    axes = result.plot().axes[0]
    assert axes.get_xlabel() == drawn.heads[0]
    # Made under a umask that keeps nobody out.
    for path in (result.directory, *result.directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_combination_costs_what_its_costliest_run_does(
    sweep: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds may draw other clients; where one of two runs says nothing the other's number stays."""
    result = SweepResult(sweep[0].directory)

    def view(number: float, lower: float | None) -> Any:
        spent = {"sum": 2.0 * number, "local": 3.0 * number}
        return SimpleNamespace(
            epsilon=number, lower=lower, spent=spent.get, measured=lambda _: number
        )

    views = [view(1.0, 0.5), view(4.0, None), view(3.0, None), view(2.0, None)]
    found = dict(zip(result.sweep.points, views, strict=True))
    monkeypatch.setattr(result, "finished", found)
    for name, times in (("epsilon", 1.0), ("sum_epsilon", 2.0), ("local_epsilon", 3.0)):
        assert result.table[name] == [4.0 * times, 3.0 * times]
    assert result.table["lower_epsilon"] == [0.5, None] and result.table["runs"] == [2, 2]


def test_points_that_are_over_are_told_as_kept_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Sweep.of({"run": {"rounds": 1}}, {"privacy.clip_norm": [1.0, 2.0]}, 2)
    monkeypatch.setattr(running, "state_of", lambda _: "finished")
    monkeypatch.setattr(running, "_started", None)
    told: list[SweepEvent] = []
    running.run_sweep(tmp_path, over, jobs=1, observe=told.append)
    assert told == [SweepEvent(point, kept=True) for point in over.points]


@pytest.mark.parametrize(
    ("deltas", "found"),
    [([], None), ([1e-5], 1e-5), ([1e-5, 1e-5], 1e-5), ([1e-5, 1e-6], None), ([1e-6, 1e-5], None)],
)
def test_runs_of_several_deltas_have_none_in_common(
    deltas: list[float], found: float | None
) -> None:
    """Epsilons at several deltas are no numbers of one axis."""
    runs: Any = SimpleNamespace(
        finished={place: SimpleNamespace(delta=delta) for place, delta in enumerate(deltas)}
    )
    delta: Any = SweepResult.delta
    assert delta.fget(runs) == found


def test_report_sweep_writes_page_and_figures(
    sweep: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(sweep[0].directory)
    page, pictures = tmp_path / "page.html", tmp_path / "pictures"
    formats = ("png", "pdf", "svg", "csv")
    asked = [each for form in formats for each in (f"--{form}", str(pictures))]
    assert main(["report", folder, "--out", str(page), *asked]) == 0
    assert "Accuracy" in page.read_text()
    assert sorted(p.name for p in pictures.iterdir()) == sorted(
        f"accuracy-sweep.{form}" for form in formats
    )
    capsys.readouterr()
    for refused, why in (([folder], "report it alone"), (["--policy", "1,2"], "leave it out")):
        assert main(["report", folder, *refused]) == 2
        assert why in capsys.readouterr().err


def test_sweep_figure_epsilon_varies_is_on_the_axis() -> None:
    table = {"budgets.high": [1.0, 2.0, 1.0, 2.0], "model.kind": ["linear"] * 2 + ["mlp"] * 2,
             "epsilon": [1.0, 3.0, 1.0, 3.0], "accuracy": [0.5, 0.7, 0.6, 0.8],
             "accuracy_sd": [None, 0.1, 0.1, 0.1]}  # fmt: skip
    shown = SimpleNamespace(table=table, settings=["budgets.high", "model.kind"], delta=1e-5)
    figure = sweep_figure(shown)  # type: ignore[arg-type]
    assert figure is not None and figure.x_label.startswith("epsilon of the most exposed client")
    lines = {
        line.label: (line.x.tolist(), line.y.tolist(), list(np.asarray(line.spread)))
        for line in figure.lines
    }
    # In percent, and none of a single seed.
    assert lines == {
        "model.kind = linear": ([1.0, 3.0], [50.0, 70.0], [0.0, 10.0]),
        "model.kind = mlp": ([1.0, 3.0], [60.0, 80.0], [10.0, 10.0]),
    }


@pytest.mark.parametrize("order", [1, -1])
def test_sweep_figure_fixed_epsilon_longest_setting_is_on_the_axis(order: int) -> None:
    """The one with the most values of those that are numbers, wherever it stands: neither texts nor
    truth values, and not the one whose rows are as many and all equal."""
    own = {"data.seed": 7, "server.momentum": [0.0, 0.9], "server.learning_rate": [0.1, 0.2, 0.3],
           "model.kind": ["linear", "mlp", "conv", "lstm"], "run.save": [True, False]}  # fmt: skip
    rows = range(12)
    table: dict[str, list[object]] = {
        key: [values[row % len(values)] if isinstance(values, list) else values for row in rows]
        for key, values in own.items()
    }
    table |= {"epsilon": [2.0, 2.001] * 6, "accuracy": [row / 16 for row in rows],
              "accuracy_sd": [None] * 12}  # fmt: skip
    shown = SimpleNamespace(table=table, settings=list(own)[::order], delta=None)
    figure = sweep_figure(shown)  # type: ignore[arg-type]
    assert figure is not None and figure.x_label == "server.learning_rate (epsilon = 2.001)"
    points = {(x, y) for line in figure.lines for x, y in zip(line.x, line.y, strict=True)}
    assert points == {(table["server.learning_rate"][row], 100.0 * row / 16) for row in rows}


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_where_it_stood(tmp_path: Path) -> None:
    def stop(event: SweepEvent) -> None:
        if event.round_number and len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(event)

    seen: list[SweepEvent] = []
    out = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        fs.sweep(BASE, overrides=SMALL, seeds=2, out=out, on_event=stop)
    held, _ = reopen_sweep(out)
    with pytest.raises(RunError, match="in use"):
        resume_sweep(out)
    held.close()
    events: list[SweepEvent] = []
    result = resume_sweep(out, on_event=events.append)
    assert result.table["runs"] == [2]
    kept = [event.kept for event in events if event.round_number is None]
    # The second run may have come to its end while it was being stopped.
    assert len(kept) == 2 and kept[0]
    with pytest.raises(RunError, match="is not empty"):
        fs.sweep(BASE, overrides=SMALL, out=out)


def deadly(section: DataSection) -> Records:
    """A data source that takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("dead")


@pytest.mark.slow
def test_what_dies_or_fails_costs_its_own_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    sources = f"digits,nobody:source,{__name__}:deadly"
    settings = ["--set", "run.rounds=1", "--set", "data.clients=40", "--out", str(tmp_path / "s")]
    assert main(["sweep", *settings, "--grid", f"data.source={sources}"]) == 1
    said = capsys.readouterr()
    assert "failed: data.source = nobody:source, seed 1: " in said.out
    assert f"failed: data.source = {__name__}:deadly, seed 1: its process died" in said.out
    assert "sweep --resume" in said.out
    assert "[2/3] data.source = nobody:source, seed 1: failed" in said.err
    assert SweepResult(tmp_path / "s").table["runs"] == [1, 0, 0]


def test_a_worker_that_dies_within_a_line_has_said_what_came_before(tmp_path: Path) -> None:
    told = io.StringIO('{"round": 1}\n{"error": "Out of mem')
    worker = SimpleNamespace(stdin=io.StringIO(), stdout=told, wait=lambda: -9)
    assert list(_played(cast(Any, worker), tmp_path, {})) == [{"round": 1}]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in [
        (["--resume", str(tmp_path)], "holds no sweep"),
        (["--resume", str(tmp_path), "--seeds", "2"], "leave out --seeds"),
        (["--grid", "privacy.clip_norm=1,-1"], "privacy.clip_norm = -1"),
        (["--seeds", "0"], "seeds = 0"),
        (["--jobs", "0", "--out", str(tmp_path / "j")], "jobs = 0"),
        (["--jobs", "1000", "--out", str(tmp_path / "k")], "processors; use fewer"),
    ]:
        assert main(["sweep", *arguments]) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1
    (tmp_path / "sweep.json").write_text("[")
    with pytest.raises(RunError, match="cannot be read"):
        SweepResult(tmp_path)
