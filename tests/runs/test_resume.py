"""Going on with a run: from its own ledger alone, and never with a release off the bill."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.data import Records
from fl_shuffle.errors import RunError
from fl_shuffle.ledger import writer
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.ledger.writer import LedgerWriter
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.events import RoundFinished
from fl_shuffle.runs.run import Run
from tests.crashes import Crash, Crashing, Refused, dying_after, released, resume
from tests.runs.test_runs import one_kind
from tests.small_federation import Launch, model_bytes, summary

SYSTEM = "run.entropy=system"


def notes(run: Path, kind: str) -> list[str]:
    return [text for _, own, text in RunView(run).notes if own == kind]


def test_a_release_is_recorded_under_its_own_attempt(tmp_path: Path) -> None:
    """Two writers of one ledger (which the lock prevents): the second one's attempts are its own,
    and the first one releases nothing more."""
    first, accountant = one_kind(tmp_path, 4)
    path, everybody = first.path, np.ones(4, bool)
    spend = accountant.preview(1, everybody)
    first.reserve(1, 4, 1.0)
    second = Ledger.open(path)
    second.reserve(1, 4, 1.0)
    for ledger, known in ((first, [(1, 1, 4)]), (second, [(1, 1, 4), (1, 2, 4)])):
        ledger.record(spend, {0: 4}, everybody)
        ledger.flush()
        assert released(path) == known
    with pytest.raises(RunError, match="another process"):
        first.reserve(2, 4, 1.0)
    with pytest.raises(RunError, match="not the one under way"):
        first.record(accountant.preview(2, everybody), {0: 4}, everybody)
    first.close(), second.close()


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_a_stopped_run_says_from_where_it_replays(
    entropy: str,
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a seeded run the state is kept now and then; a real one's after every round."""

    def stop(event: object) -> None:
        if isinstance(event, RoundFinished) and event.outcome.round_number == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 1e9)
    run, settings = tmp_path / "run", {"run.rounds": 5, "run.entropy": entropy}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.simulate(small, overrides=settings, out=run, on_event=stop)
    replayed = "rounds 2 to 4 are played again"
    assert (replayed in str(stopped.value)) == (entropy == "seeded")
    assert main(["simulate", "--resume", str(run)]) == 0
    assert (f"going on at round 2: {replayed}" in capsys.readouterr().err) == (entropy == "seeded")


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_an_older_ledger_is_refused(
    entropy: str, crash: Crashing, launch: Launch, refused: Refused, tmp_path: Path
) -> None:
    """A seeded run plays again what it forgot, and says so."""
    run = crash(1, "run.rounds=6", f"run.entropy={entropy}")
    older = (run / "ledger.sqlite").read_bytes()
    with dying_after(4):
        resume(run)
    newer = (run / "ledger.sqlite").read_bytes()
    (run / "ledger.sqlite").write_bytes(older)
    if entropy == "system":
        assert "the ledger is older than the run, as lock tells" in refused(run)
        (run / "ledger.sqlite").write_bytes(newer)
    assert resume(run) == 0
    assert read_run(run).totals.rounds.tolist() == [6] * 12
    if entropy == "seeded":
        (note,) = notes(run, "resumed")
        assert "played again, to the same bits" in note
        assert launch("whole", "run.rounds=6") == 0
        assert model_bytes(run) == model_bytes(tmp_path / "whole")


def test_a_missing_ledger_is_refused(
    crash: Crashing, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = crash(2, SYSTEM)
    for file in run.glob("ledger.sqlite*"):
        file.unlink()
    assert resume(run) == resume(tmp_path / "none") == launch("run") == 2
    said = capsys.readouterr().err
    assert all(
        x in said for x in ("put the ledger back", "this is not a run directory", "not empty")
    )


def test_another_runs_ledger_is_refused(crash: Crashing, refused: Refused, tmp_path: Path) -> None:
    other, run = crash(2, SYSTEM, name="other"), crash(2, SYSTEM, "budgets.high=2.0")
    shutil.copy(other / "ledger.sqlite", run / "ledger.sqlite")
    for side in ("-wal", "-shm"):
        (run / f"ledger.sqlite{side}").unlink(missing_ok=True)
    assert "another run's" in refused(run)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM reservations WHERE attempt = 1",
        "UPDATE reservations SET round = 1 WHERE attempt = 2",
        "UPDATE reservations SET released = 0 WHERE attempt = 2",
        "UPDATE reservations SET present = x'0fff' WHERE attempt = 2",
        "UPDATE reservations SET attempt = 9 WHERE attempt = 2",
        "UPDATE classes SET scale = 2 * scale",
        "UPDATE clients SET class_id = 0",
        "UPDATE meta SET value = replace(value, 'learning_rate\": 0.5', 'learning_rate\": 0.6')",
        "DELETE FROM rounds WHERE round = 1",
        "UPDATE meta SET value = '7' WHERE key = 'metrics'",
    ],
)
def test_a_changed_ledger_is_refused(change: str, crash: Crashing, refused: Refused) -> None:
    run = crash(2, SYSTEM)
    with sqlite3.connect(run / "ledger.sqlite") as db:
        assert db.execute(change).rowcount > 0
    db.close()
    said = refused(run)
    assert any(x in said for x in ("was changed", "knows nothing of round 1", "is damaged"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.out=elsewhere", ""),
        ("run.timeout=7.0", ""),
        ("data.root=elsewhere", ""),  # digits lie in the package
        ("server.learning_rate=0.7", "server.learning_rate = 0.7: it was started with 0.5"),
        ("run.entropy=system", "run.entropy = 'system'"),
        ("run.rounds=2", "rounds may only be added"),
        ("run.rounds=5", "with server.decay or server.averaging"),
        ("run.ray_address=auto", "run.ray_address = 'auto': is for run.engine = 'ray'"),
        ("run.supernodes=nodes.csv", "a simulation has no SuperNodes"),
    ],
)
def test_what_a_run_may_change_when_it_goes_on(
    setting: str, words: str, crash: Crashing, refused: Refused
) -> None:
    """It stays in its folder, and the change is noted; what was promised is one line."""
    run = crash(1, "server.decay=linear")
    if words:
        assert words in refused(run, "--set", setting)
    else:
        assert resume(run, "--set", setting) == 0
    assert [setting.partition("=")[0] in text for text in notes(run, "changed")] == [True] * (
        not words
    )


def test_rounds_may_be_added_and_that_is_written_down(
    crash: Crashing, launch: Launch, tmp_path: Path
) -> None:
    run = crash(2)
    assert resume(run, "--rounds", "5", "--jobs", "1", "--set", "run.timeout=60") == 0
    assert notes(run, "changed") == [
        "resumed with run.jobs = 1 instead of 0",
        "resumed with run.rounds = 5 instead of 3",
        "resumed with run.timeout = 60.0 instead of 3600.0",
    ]
    config = RunView(run).config
    assert json.loads((run / "config.json").read_text()) == config
    assert launch("straight", "run.rounds=5") == 0
    assert model_bytes(run) == model_bytes(tmp_path / "straight")


def test_budgets_may_lie_elsewhere_when_they_are_the_same(
    crash: Crashing, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where budgets are read from may change; what is in them, and the data, are compared."""
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    budgets = "client_id,epsilon,delta\n" + "".join(f"{client},2.0,1e-5\n" for client in range(12))
    old.write_text(budgets)
    run, moved = crash(2, SYSTEM, options=("--budgets", str(old))), f"budgets.file={new}"
    old.unlink()
    new.write_text(budgets.replace("2.0", "0.1"))
    assert "its budgets or clipping changed" in refused(run, "--set", moved)
    new.write_text(budgets)
    with monkeypatch.context() as patch:
        patch.setattr("fl_shuffle.data.task._cache", {})
        patch.setattr("fl_shuffle.data.task._data_cache", {})
        patch.setattr(Records, "fingerprint", lambda self: "another")
        assert "its data changed" in refused(run, "--set", moved)
    monkeypatch.setattr("fl_shuffle.data.task._cache", {})
    assert resume(run, "--set", moved) == 0
    (told,) = notes(run, "changed")
    assert told.startswith(f"resumed with budgets.file = {str(new)!r}")


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_nothing_left_to_do_has_numbers(
    entropy: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(self: Run, *_: Any, **__: Any) -> None:
        raise Crash

    whole, run = tmp_path / "whole", tmp_path / "run"
    assert launch("whole", f"run.entropy={entropy}") == 0
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Run, "finish", dying)
        launch("run", f"run.entropy={entropy}")
    assert resume(run) == 0
    for name in ("rounds", "proven_epsilon", "columns"):
        assert summary(run)[name] == summary(whole)[name]
    if entropy == "seeded":
        assert summary(run)["accuracy"] == summary(whole)["accuracy"]
        assert model_bytes(run) == model_bytes(whole)


def test_the_one_file_is_enough(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of ledger.sqlite alone, taken before each round and after the crash."""
    reserve, seen, copy = LedgerWriter.reserve, [], tmp_path / "copy.sqlite"

    def copying(self: LedgerWriter, number: int, participants: np.ndarray) -> np.ndarray | None:
        shutil.copy(tmp_path / "run" / "ledger.sqlite", copy)
        seen.append(len(LedgerRecord(copy).attempts))
        if number == 3:
            raise Crash
        return reserve(self, number, participants)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(LedgerWriter, "reserve", copying)
        launch("run", SYSTEM)
    assert seen == [0, 1, 2]
    assert resume(tmp_path / "run") == 0
    assert not list((tmp_path / "run").glob("ledger.sqlite-*"))
