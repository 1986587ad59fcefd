"""A run directory is made for one run, locked while it is open, and its owner's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower.strategy import Schedule
from fl_shuffle.runs import directory
from fl_shuffle.runs.data_check import STATE_VARIABLE, recall_data
from fl_shuffle.runs.directory import RunDirectory, RunPlace
from fl_shuffle.runs.resume import unfinished_config
from tests.crashes import Crashing, Refused, resume
from tests.small_federation import Launch, summary


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_runs_started_in_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "stamp", lambda: "now")
    made = [RunDirectory.create(tmp_path / "runs").path for _ in range(3)]
    assert [path.name for path in made] == ["now", "now-2", "now-3"]


def test_a_second_process_is_turned_away(
    launch: Launch,
    crash: Crashing,
    refused: Refused,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether it begins a run there or goes on with one."""
    taken = RunDirectory.claim(tmp_path / "run")
    assert launch("run") == 2
    error = capsys.readouterr().err
    assert f"in use by process {os.getpid()};" in error and len(error.splitlines()) == 1
    taken.close()
    assert crash(1) == tmp_path / "run"
    taken = RunDirectory.reopen(tmp_path / "run")
    assert f"in use by process {os.getpid()};" in refused(tmp_path / "run")
    taken.close()
    before = (tmp_path / "run" / "ledger.sqlite").read_bytes()
    assert launch("run", "run.seed=8") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (tmp_path / "run" / "ledger.sqlite").read_bytes() == before
    assert resume(tmp_path / "run") == 0


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for name, words in (("file", "is a file"), ("full", "not empty")):
        with pytest.raises(RunError, match=words):
            RunDirectory.claim(tmp_path / name)
    with pytest.raises(RunError, match="cannot be used"):
        RunDirectory.create(tmp_path / "file")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "broken" / "ledger.sqlite").write_text("")
    with pytest.raises(RunError, match="not a readable ledger"):
        unfinished_config(tmp_path / "broken")


def test_where_a_run_goes_travels_as_flower_configuration(tmp_path: Path) -> None:
    for place in (RunPlace(), RunPlace(tmp_path), RunPlace(tmp_path, "data-unchanged")):
        assert RunPlace.of(place.run_config()) == place
    assert RunPlace.of({"resume": ""}) == RunPlace()
    with pytest.raises(ConfigError, match="run-directory"):
        RunPlace.of({"resume": "yes"})
    with pytest.raises(InvalidValueError, match="data-unchanged"):
        RunPlace.of({"resume": "please", "run-directory": "x"})


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_only_the_owner_may_read_a_run(
    entropy: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    rounds = Schedule.participants

    def looking(self: Schedule, number: int, least: int) -> object:
        for path in (tmp_path / "run").iterdir():
            seen.add(path.name)
            assert mode(path) == 0o600, path
        return rounds(self, number, least)

    monkeypatch.setattr(Schedule, "participants", looking)
    umask = os.umask(0)
    try:
        assert launch("run", f"run.entropy={entropy}") == 0
        assert main(["report", str(tmp_path / "run")]) == 0
    finally:
        os.umask(umask)
    assert {"ledger.sqlite-wal", "ledger.sqlite-shm"} <= seen
    assert mode(tmp_path / "run") == 0o700
    assert {mode(path) for path in (tmp_path / "run").iterdir()} == {0o600}


def test_data_that_cannot_be_compared_must_be_vouched_for(
    crash: Crashing, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: the state folder does not know the run. What is known of its data is
    private, and goes with the run."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    run = crash(1)
    [known] = (tmp_path / "state" / "data").iterdir()
    assert mode(known) == 0o600 and mode(known.parent) == 0o700 and recall_data(known.name)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "elsewhere"))
    error = refused(run)
    assert "cannot be verified here" in error and "--data-unchanged" in error
    assert STATE_VARIABLE in error
    assert resume(run, "--data-unchanged") == 0
    assert sum("without a check that the data" in text for text in summary(run)["warnings"]) == 1  # type: ignore[attr-defined]
    crash(1, name="known")
    assert resume(tmp_path / "known") == 0
    assert not list((tmp_path / "elsewhere" / "data").iterdir())
    assert recall_data("../../etc/passwd") is None
