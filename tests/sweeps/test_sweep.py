"""A sweep runs its points, survives what goes wrong, and tells what came out."""

from __future__ import annotations

import csv
import os
import stat
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import fl_shuffle as fs
from fl_shuffle.api.sweeps import resume_sweep
from fl_shuffle.cli import main
from fl_shuffle.cli.sweep import _progress
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.report.many import FEW_GROUPS, accuracy_against_epsilon
from fl_shuffle.sweeps import PointFailed, PointFinished, PointRound, SweepResult
from fl_shuffle.sweeps.directory import RUNS, SweepDirectory
from fl_shuffle.sweeps.points import Sweep
from tests.report.reading import Page
from tests.repository import ROOT

BASE = "configs/digits_record.toml"
SMALL = {"run.rounds": 2, "data.clients": 40, "run.jobs": 1}
GRID = {"privacy.clip_norm": [0.2, 0.5]}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SweepResult, list[object]]]:
    events: list[object] = []
    folder = tmp_path_factory.mktemp("sweep") / "s"
    before = os.umask(0)
    try:
        swept = fs.sweep(
            BASE, overrides=SMALL, grid=GRID, seeds=2, jobs=1, out=folder, on_event=events.append
        )
    finally:
        os.umask(before)
    yield swept, events


def test_every_run_is_what_it_would_be_alone(
    sweep: tuple[SweepResult, list[object]], tmp_path: Path
) -> None:
    result, _ = sweep
    point, swept = list(result.finished.items())[3]
    alone = fs.simulate(
        BASE, overrides={**SMALL, **point.settings, "run.seed": point.seed}, out=tmp_path / "alone"
    )
    assert (swept.measured("accuracy"), swept.epsilon) == (alone.accuracy, alone.epsilon)
    model = result.directory / RUNS / point.name / "model.safetensors"
    assert model.read_bytes() == (alone.directory / "model.safetensors").read_bytes()


def test_the_table_is_made_of_the_runs(sweep: tuple[SweepResult, list[object]]) -> None:
    result, _ = sweep
    assert result.table["runs"] == [2, 2]
    for row, clip in enumerate(GRID["privacy.clip_norm"]):
        mine = [i for i, value in enumerate(result.runs["privacy.clip_norm"]) if value == clip]
        accuracies = [result.runs["accuracy"][i] for i in mine]
        assert result.table["accuracy"][row] == statistics.fmean(accuracies)
        assert result.table["accuracy_sd"][row] == statistics.stdev(accuracies)
        assert result.table["epsilon"][row] == max(result.runs["epsilon"][i] for i in mine)


def test_events_tables_and_page(sweep: tuple[SweepResult, list[object]]) -> None:
    result, events = sweep
    assert sum(isinstance(event, PointRound) for event in events) == 8
    assert sum(isinstance(event, PointFinished) for event in events) == 4
    with (result.directory / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == result.runs["accuracy"]
    # `Page` insists that nothing is fetched.
    shown = Page((result.directory / "sweep.html").read_text())
    for place, table in (("combinations", result.table), ("runs", result.runs)):
        found = dict(
            zip(shown.table(place).heads, zip(*shown.table(place).rows, strict=True), strict=True)
        )
        for name, values in table.items():
            if name == "directory":
                assert found["folder"] == tuple(Path(value).name for value in values)
            elif name in ("accuracy", "accuracy_sd"):
                head = "accuracy, %" if name == "accuracy" else "spread, %"
                assert found[head] == tuple(100.0 * value for value in values)
            else:
                assert found[name.removesuffix("_epsilon")] == tuple(values)
    drawn, table = shown.table("accuracy-epsilon"), result.table
    for column, words in (
        ("epsilon", "what is released (proven)"),
        ("sum_epsilon", "if only sums are seen (proven)"),
        ("lower_epsilon", "an attack (lower bound)"),
    ):
        at = drawn.heads.index(words)
        points = sorted((row[0], row[at]) for row in drawn.rows if row[at] is not None)
        accuracies = [100.0 * share for share in table["accuracy"]]
        assert points == sorted(zip(table[column], accuracies, strict=True))
    assert shown.count["svg"] >= 1
    # Made under a umask that keeps nobody out.
    for path in (result.directory, *result.directory.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    (result.directory / RUNS).chmod(0o755)
    SweepDirectory.reopen(result.directory).close()
    assert stat.S_IMODE((result.directory / RUNS).stat().st_mode) == 0o700


@pytest.mark.parametrize("keys", [("clip", "budget"), ("budget", "clip")])
def test_lines_run_along_what_moves_epsilon(keys: tuple[str, str]) -> None:
    """Whatever comes first on the command line: points of one epsilon make no line."""
    grid = [(clip, budget) for clip in (0.1, 0.5) for budget in (4.0, 1.0)]
    table = {
        "clip": [clip for clip, _ in grid],
        "budget": [budget for _, budget in grid],
        "epsilon": [2.0 * budget for _, budget in grid],
        "accuracy": [0.5, 0.4, 0.8, 0.7],
        "accuracy_sd": [None, 0.1, 0.2, 0.3],
    }
    tables = SimpleNamespace(table=table, settings=list(keys), delta=1e-5)
    figure = accuracy_against_epsilon(cast(SweepResult, tables))
    assert figure is not None
    found = {line.label: (line.x.tolist(), line.y.tolist()) for line in figure.lines}
    assert found == {
        "clip = 0.1": ([2.0, 8.0], [40.0, 50.0]),
        "clip = 0.5": ([2.0, 8.0], [70.0, 80.0]),
    }
    spread = figure.lines[0].spread
    assert spread is not None and spread.tolist() == [10.0, 0.0]
    assert "delta = 1e-05" in figure.x_label
    # Proven, sum and attack; one of which says the same as what is reported.
    bounds = {"sum_epsilon": table["epsilon"], "lower_epsilon": [6.0, 1.0, None, 1.5]}
    more = SimpleNamespace(table=table | bounds, settings=list(keys), delta=1e-5)
    figure = accuracy_against_epsilon(cast(SweepResult, more))
    assert figure is not None and len(figure.lines) == 4
    drawn = {line.label: (line.kind, line.x.tolist(), line.y.tolist()) for line in figure.lines}
    assert drawn["clip = 0.1: an attack (lower bound)"] == ("run-0-lower", [1.0, 6.0], [40.0, 50.0])
    assert drawn["clip = 0.5: an attack (lower bound)"] == ("run-1-lower", [1.5], [70.0])
    assert drawn["clip = 0.5: what is released (proven)"][0] == "run-1-proven"


def test_a_sweep_of_many_lines_shows_what_is_reported_alone() -> None:
    values = [(clip, budget) for clip in range(FEW_GROUPS + 1) for budget in (1.0, 2.0)]
    table = {
        "clip": [clip for clip, _ in values], "budget": [budget for _, budget in values],
        "epsilon": [budget for _, budget in values], "accuracy": [0.5] * len(values),
        "sum_epsilon": [0.5] * len(values), "lower_epsilon": [0.1] * len(values),
        "accuracy_sd": [None] * len(values),
    }  # fmt: skip
    tables = SimpleNamespace(table=table, settings=["clip", "budget"], delta=None)
    figure = accuracy_against_epsilon(cast(SweepResult, tables))
    assert figure is not None and len(figure.lines) == FEW_GROUPS + 1
    assert {line.label for line in figure.lines} == {f"clip = {c}" for c in range(FEW_GROUPS + 1)}


def test_a_stopped_sweep_goes_on_where_it_stood(tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, PointRound) and len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(event)

    seen: list[object] = []
    out = tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        fs.sweep(BASE, overrides=SMALL, seeds=2, out=out, on_event=stop)
    events: list[object] = []
    result = resume_sweep(out, on_event=events.append)
    assert result.table["runs"] == [2]
    kept = [event.kept for event in events if isinstance(event, PointFinished)]
    # The second run may have come to its end while it was being stopped.
    assert len(kept) == 2 and kept[0]
    with pytest.raises(RunError, match="already holds a sweep"):
        fs.sweep(BASE, overrides=SMALL, out=out)


@pytest.mark.slow
def test_a_run_that_dies_or_raises_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A public-file path that is missing is found out by the run, not by the configuration's check.
    code = main(
        ["sweep", "--set", "run.rounds=1", "--set", "data.clients=40", "--out", str(tmp_path / "s"),
         "--grid", "data.source=digits,nobody:source"]
    )  # fmt: skip
    said = capsys.readouterr()
    assert code == 1
    assert "failed: data.source = nobody:source, seed 1: " in said.out
    assert "sweep --resume" in said.out
    assert "[2/2] data.source = nobody:source, seed 1: failed" in said.err
    assert SweepResult(tmp_path / "s").table["runs"] == [1, 0]


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_own_point_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    events: list[object] = []
    result = fs.sweep(
        overrides={**SMALL, "run.rounds": 1}, out=tmp_path / "s", on_event=events.append,
        grid={"data.source": ["digits", "tests.sweeps.deadly:source"], "run.seed": [1, 2]},
    )  # fmt: skip
    failed = [event for event in events if isinstance(event, PointFailed)]
    assert [event.point.settings["data.source"] for event in failed] == [
        "tests.sweeps.deadly:source"
    ] * 2
    assert all(event.error.startswith("its process died") for event in failed)
    assert result.table["runs"] == [1, 1, 0, 0]


@pytest.mark.slow
def test_a_script_that_guards_nothing_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fl_shuffle as fs\nprint('once')\n"
        f"fs.sweep({BASE!r}, overrides={SMALL!r}, seeds=2, jobs=1, out={str(tmp_path / 's')!r})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr
    assert SweepResult(tmp_path / "s").table["runs"] == [2]


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_times_are_shown_where_they_may_be(
    entropy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    plan = Sweep.of({"run": {"entropy": entropy}}, [], 1)
    with _progress(plan, [], quiet=False) as observe:
        observe(PointRound(plan.points[0], 3))
    said = capsys.readouterr().err
    assert "0/1 runs" in said and ("-:--:--" in said) == (entropy == "seeded")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = SweepDirectory.create(Sweep.of({}, [], 1), tmp_path / "s")
    with pytest.raises(RunError, match="in use"):
        resume_sweep(tmp_path / "s")
    first.close()


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in [
        (["--resume", str(tmp_path)], "holds no sweep"),
        (["--resume", str(tmp_path), "--seeds", "2"], "leave out --seeds"),
        (["--grid", "privacy.clip_norm=1,-1"], "privacy.clip_norm = -1"),
        (["--seeds", "0"], "seeds = 0"),
        (["--jobs", "0", "--out", str(tmp_path / "j")], "jobs = 0"),
    ]:
        assert main(["sweep", *arguments]) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1
    with pytest.raises((InvalidValueError, ConfigError)):
        fs.sweep(jobs=100_000, out=tmp_path / "k")
    (tmp_path / "sweep.json").write_text("[")
    with pytest.raises(RunError, match="cannot be read"):
        SweepResult(tmp_path)


def test_a_failure_is_an_event(tmp_path: Path) -> None:
    events: list[object] = []
    result = fs.sweep(
        overrides={**SMALL, "data.source": "nobody:source"},
        out=tmp_path / "s",
        on_event=events.append,
    )
    assert [type(event) for event in events] == [PointFailed]
    assert not result.finished
    with pytest.raises(RunError, match="no run has"):
        result.figure(tmp_path / "f.svg")
