"""Going on with a run: from its own ledger alone, and never with a release off the bill."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import RunError
from fl_shuffle.ledger import writer
from fl_shuffle.ledger.reader import LedgerRecord, LedgerView
from fl_shuffle.ledger.store import SCHEMA_VERSION, Ledger
from fl_shuffle.ledger.writer import LedgerWriter
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.events import RoundFinished
from fl_shuffle.runs.run import Run
from tests.crashes import Crash, Crashing, Refused, dying_after, released, resume
from tests.runs.test_runs import CLASS
from tests.small_federation import Launch, model_bytes, summary

SYSTEM = "run.entropy=system"


def crashed_twice(crash: Crashing, after: int, *settings: str) -> tuple[bytes, bytes]:
    """Six rounds that crash after `after` and, resumed, in the fourth: the ledger of each time."""
    run = crash(after, "run.rounds=6", *settings)
    older = (run / "ledger.sqlite").read_bytes()
    with dying_after(4):
        resume(run)
    return older, (run / "ledger.sqlite").read_bytes()


def test_a_release_is_recorded_under_its_own_attempt(tmp_path: Path) -> None:
    """Two writers of one ledger (which the lock prevents): the second one's attempts are its own,
    and the first one releases nothing more."""
    class_of = np.zeros(4, dtype=np.int64)
    everybody = np.ones(4, dtype=bool)
    first = Ledger.create(tmp_path / "l.sqlite", {"schema": SCHEMA_VERSION}, [CLASS], class_of)
    path = tmp_path / "l.sqlite"
    first.reserve(1, 4, 1.0)
    second = Ledger.open(path)
    second.reserve(1, 4, 1.0)
    from fl_shuffle.accounting.accountant import Accountant

    accountant = Accountant([CLASS], class_of, unit="client", schedule="aggregate", delta=1e-5)
    spend = accountant.preview(1, everybody)
    first.record(spend, {0: 4}, everybody)
    first.flush()
    assert released(path) == [(1, 1, 4)]
    second.record(spend, {0: 4}, everybody)
    second.flush()
    assert released(path) == [(1, 1, 4), (1, 2, 4)]
    with pytest.raises(RunError, match="another process"):
        first.reserve(2, 4, 1.0)
    with pytest.raises(RunError, match="not the one under way"):
        first.record(accountant.preview(2, everybody), {0: 4}, everybody)
    first.close(), second.close()


def test_a_stopped_run_says_from_where_it_replays(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a seeded run the state is kept now and then; a real one's after every round."""

    def stop(event: object) -> None:
        if isinstance(event, RoundFinished) and event.outcome.round_number == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 1e9)
    for name, entropy in (("seeded", "seeded"), ("real", "system")):
        with pytest.raises(KeyboardInterrupt) as stopped:
            fs.simulate(
                small, overrides={"run.rounds": 5, "run.entropy": entropy},
                out=tmp_path / name, on_event=stop,
            )  # fmt: skip
        replayed = "rounds 2 to 4 are played again" in str(stopped.value)
        assert replayed == (entropy == "seeded"), str(stopped.value)
        capsys.readouterr()
        assert main(["simulate", "--resume", str(tmp_path / name)]) == 0
        said = capsys.readouterr().err
        assert ("going on at round 2: rounds 2 to 4 are played again" in said) == replayed


def test_an_older_ledger_is_refused(crash: Crashing, refused: Refused, tmp_path: Path) -> None:
    run, ledger = tmp_path / "run", tmp_path / "run" / "ledger.sqlite"
    older, newer = crashed_twice(crash, 2, SYSTEM)
    ledger.write_bytes(older)
    said = refused(run)
    assert "the ledger is older than the run, as lock tells" in said
    ledger.write_bytes(newer)
    assert resume(run) == 0
    assert read_run(run).totals.rounds.tolist() == [6] * 12


def test_a_seeded_run_plays_again_what_an_older_ledger_forgot(
    crash: Crashing, launch: Launch, tmp_path: Path
) -> None:
    assert launch("whole", "run.rounds=6") == 0
    run = tmp_path / "run"
    older, _ = crashed_twice(crash, 1)
    (run / "ledger.sqlite").write_bytes(older)
    assert resume(run) == 0
    assert model_bytes(run) == model_bytes(tmp_path / "whole")
    notes = [
        text for _, kind, text in LedgerRecord(run / "ledger.sqlite").notes if kind == "resumed"
    ]
    assert len(notes) == 1 and "played again, to the same bits" in notes[0]


def test_a_missing_ledger_is_refused(
    crash: Crashing, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash(2, SYSTEM)
    for file in (tmp_path / "run").glob("ledger.sqlite*"):
        file.unlink()
    assert resume(tmp_path / "run") == 2
    assert "is missing" in capsys.readouterr().err
    assert launch("run") == 2
    assert "not empty" in capsys.readouterr().err


def test_another_runs_ledger_is_refused(crash: Crashing, refused: Refused, tmp_path: Path) -> None:
    crash(2, SYSTEM)
    (tmp_path / "run").rename(tmp_path / "other")
    crash(2, SYSTEM, "budgets.high=2.0")
    shutil.copy(tmp_path / "other" / "ledger.sqlite", tmp_path / "run" / "ledger.sqlite")
    for side in ("-wal", "-shm"):
        (tmp_path / "run" / f"ledger.sqlite{side}").unlink(missing_ok=True)
    assert "another run's" in refused(tmp_path / "run")


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
    ],
)
def test_a_changed_ledger_is_refused(
    change: str, crash: Crashing, refused: Refused, tmp_path: Path
) -> None:
    crash(2, SYSTEM)
    with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as db:
        assert db.execute(change).rowcount > 0
    db.close()
    said = refused(tmp_path / "run")
    assert "was changed" in said or "knows nothing of round 1" in said


SETTINGS: list[tuple[str, str, object]] = [
    ("server", "learning_rate", 0.7),
    ("run", "seed", 6),
    ("run", "entropy", "seeded"),
    ("data", "partition", "ordered"),
    ("training", "participation", 0.5),
    ("privacy", "target_delta", 1e-3),
    ("run", "rounds", 2),
]


@pytest.mark.parametrize(("section", "key", "value"), SETTINGS)
def test_what_was_promised_cannot_be_changed(
    section: str, key: str, value: object, crash: Crashing, refused: Refused, tmp_path: Path
) -> None:
    """Not on the command line; and nobody reads config.json, which is written again."""
    crash(1, SYSTEM)
    run = tmp_path / "run"
    kept = (run / "config.json").read_text()
    config = json.loads(kept)
    config[section][key] = value
    (run / "config.json").write_text(json.dumps(config))
    assert f"{section}.{key} = " in refused(run, "--set", f"{section}.{key}={value}")
    assert resume(run) == 0
    assert (run / "config.json").read_text() == kept


def test_rounds_may_be_added_and_that_is_written_down(
    crash: Crashing, refused: Refused, launch: Launch, tmp_path: Path
) -> None:
    crash(2)
    run = tmp_path / "run"
    assert resume(run, "--rounds", "5", "--jobs", "1", "--set", "run.timeout=60") == 0
    assert summary(run)["rounds"] == 5
    known = LedgerRecord(run / "ledger.sqlite")
    assert [text for _, kind, text in known.notes if kind == "changed"] == [
        "resumed with run.jobs = 1 instead of 0",
        "resumed with run.rounds = 5 instead of 3",
        "resumed with run.timeout = 60.0 instead of 3600.0",
    ]
    assert json.loads((run / "config.json").read_text()) == known.meta["config"]
    assert launch("straight", "run.rounds=5") == 0
    assert model_bytes(run) == model_bytes(tmp_path / "straight")
    run.rename(tmp_path / "done")
    crash(2, "server.decay=linear")
    assert "server.decay" in refused(run, "--rounds", "5")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.out=elsewhere", ""),
        ("run.timeout=7.0", ""),
        ("data.root=elsewhere", ""),  # digits lie in the package
        ("run.ray_address=auto", "run.ray_address = 'auto': is for run.engine = 'ray'"),
        ("run.supernodes=nodes.csv", "a simulation has no SuperNodes"),
    ],
)
def test_what_a_run_may_change_when_it_goes_on(
    setting: str, words: str, crash: Crashing, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stays in its folder, and the change is noted; what means nothing here is one line."""
    run = crash(1)
    capsys.readouterr()
    code = resume(run, "--set", setting)
    said = capsys.readouterr().err
    assert (code, words in said) == (2 if words else 0, True), said
    assert len(said.splitlines()) <= 1
    notes = [text for _, kind, text in LedgerView(run / "ledger.sqlite").notes if kind == "changed"]
    assert [setting.partition("=")[0] in text for text in notes] == ([] if words else [True])


def test_budgets_may_lie_elsewhere_when_they_are_the_same(
    crash: Crashing, refused: Refused, tmp_path: Path
) -> None:
    """Where budgets are read from may change; what is in them is compared."""
    old, new, run = tmp_path / "old.csv", tmp_path / "new.csv", tmp_path / "run"
    lines = [
        "client_id,epsilon,delta",
        *(f"{client},2.0,1e-5" for client in range(12)),
    ]
    old.write_text("\n".join(lines) + "\n")
    crash(2, SYSTEM, options=("--budgets", str(old)))
    new.write_text(old.read_text().replace("2.0", "0.1"))
    old.unlink()
    moved = f"budgets.file={new}"
    assert "its budgets or clipping changed" in refused(run, "--set", moved)
    new.write_text("\n".join(lines) + "\n")
    assert resume(run, "--set", moved) == 0
    notes = LedgerRecord(run / "ledger.sqlite").notes
    (told,) = [text for _, kind, text in notes if kind == "changed"]
    assert told.startswith(f"resumed with budgets.file = {str(new)!r}")


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_nothing_left_to_do_has_numbers(
    entropy: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch("whole", f"run.entropy={entropy}") == 0

    def dying(self: Run, *_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Run, "finish", dying)
        with pytest.raises(Crash):
            launch("run", f"run.entropy={entropy}")
    assert resume(tmp_path / "run") == 0
    whole, resumed = summary(tmp_path / "whole"), summary(tmp_path / "run")
    assert resumed["rounds"] == 3 and resumed["proven_epsilon"] == whole["proven_epsilon"]
    assert resumed["columns"] == whole["columns"]
    if entropy == "seeded":
        lines = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
        assert resumed["accuracy"] == pytest.approx(float(lines[-1]["accuracy"]))
        assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")


def test_the_one_file_is_enough(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of ledger.sqlite alone, taken before each round and after the crash."""
    reserve, seen = LedgerWriter.reserve, []

    def copying(self: LedgerWriter, number: int, participants: np.ndarray) -> np.ndarray | None:
        (tmp_path / "copy").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "run" / "ledger.sqlite", tmp_path / "copy")
        seen.append(len(LedgerRecord(tmp_path / "copy" / "ledger.sqlite").attempts))
        if number == 3:
            raise Crash
        return reserve(self, number, participants)

    with monkeypatch.context() as patch:
        patch.setattr(LedgerWriter, "reserve", copying)
        with pytest.raises(Crash):
            launch("run", SYSTEM)
    assert seen == [0, 1, 2]
    assert resume(tmp_path / "run") == 0
    assert not list((tmp_path / "run").glob("ledger.sqlite-*"))
    assert main(["report", str(tmp_path / "run")]) == 0
