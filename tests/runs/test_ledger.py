"""What a run keeps: its ledger, the files that are views of it, and a directory of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch, approx

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.durable_files import UNFINISHED, replace_file, replace_text
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower.strategy import Schedule
from fl_shuffle.ledger import store
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger, first_link, next_link
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.runs import directory
from fl_shuffle.runs.directory import RunDirectory, RunPlace
from fl_shuffle.runs.resume import STATE_VARIABLE, recall_data, unfinished_config
from fl_shuffle.runs.views import summary_of
from tests.crashes import SYSTEM, Crash, Crashing, Refused, opened, released, resume
from tests.small_federation import Launch, Play, model_bytes, rows, stored, summary


def dying(*_: Any) -> NoReturn:
    raise Crash


def test_every_release_stays_on_the_bill_and_nothing_else(tmp_path: Path) -> None:
    everybody, present = np.ones(12, dtype=bool), np.arange(12) > 0
    folder = tmp_path / "run"
    with opened(folder, 12) as run:
        ledger = run.ledger
        # An attempt that ended before its reports left the shuffler.
        ledger.reserve(1, 12, 99.0)
        assert released(folder) == []
        # A second attempt, released without client 0; then a third, after a crash, with everybody.
        for mask in (present, everybody):
            ledger.reserve(1, 12, 99.0)
            ledger.record(run.accountant.preview(1, mask), {0: int(mask.sum())}, mask)
        # Sequential reports are used as they come: reserved is released.
        ledger.reserve(2, 11, 99.0, present)
    assert released(folder) == [(1, 2, 11), (1, 3, 12), (2, 4, 11)]
    attempts = LedgerRecord(folder).attempts
    assert [(number, unusable) for number, _, unusable in attempts] == [(1, 0), (1, 0), (2, 0)]
    for (_, found, _), mask in zip(attempts, (present, everybody, present), strict=True):
        assert (found == mask).all()


def test_a_release_is_recorded_under_its_own_attempt(tmp_path: Path) -> None:
    """Two writers of one ledger (which the lock prevents): the second one's attempts are its own,
    and the first one releases nothing more."""
    everybody = np.ones(4, bool)
    with opened(tmp_path / "run", 4) as run:
        first = run.ledger
        spend, later = run.accountant.preview(1, everybody), run.accountant.preview(2, everybody)
        first.reserve(1, 4, 1.0)
        second = Ledger(first.path)
        second.reserve(1, 4, 1.0)
        for ledger, known in ((first, [(1, 1, 4)]), (second, [(1, 1, 4), (1, 2, 4)])):
            ledger.record(spend, {0: 4}, everybody)
            ledger.flush()
            assert released(tmp_path / "run") == known
        with pytest.raises(RunError, match="another process"):
            first.reserve(2, 4, 1.0)
        with pytest.raises(RunError, match="not the one under way"):
            first.record(later, {0: 4}, everybody)
        second.close()


def test_commits_of_a_real_run_outlive_the_machine(tmp_path: Path) -> None:
    """SQLite's own levels: 2 syncs at every commit, 1 at checkpoints, which is enough for rounds
    that are played again from the seed."""
    with opened(tmp_path / "run", 4) as run:
        path = run.ledger.path
        (level,) = run.ledger._db.execute("PRAGMA synchronous").fetchone()
        assert level == 2
    for replayed in (False, True):
        with closing(Ledger(path, replayed=replayed)) as ledger:
            (level,) = ledger._db.execute("PRAGMA synchronous").fetchone()
            assert level == (1 if replayed else 2)


def test_an_interrupted_record_is_none(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Ctrl-C between two statements: what is then closed does not hold half a round."""
    everybody, insert = np.ones(4, dtype=bool), store.insert

    def half(database: sqlite3.Connection, table: str, found: Any) -> None:
        dying() if table == "round_classes" else insert(database, table, found)

    with opened(tmp_path / "run", 4) as run:
        run.ledger.reserve(1, 4, 1.0)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(store, "insert", half)
            run.ledger.record(run.accountant.preview(1, everybody), {0: 4}, everybody)
    assert stored(tmp_path / "run", "SELECT * FROM rounds") == []
    assert stored(tmp_path / "run", "SELECT released FROM reservations") == [(0,)]


@pytest.mark.parametrize(
    "place",
    ["runs.resume.remember_data", "ledger.store.create_tables", "ledger.store.insert",
     "ledger.store.fill"],
)  # fmt: skip
def test_killed_while_the_ledger_is_made(
    place: str, tmp_path: Path, launch: Launch, monkeypatch: MonkeyPatch
) -> None:
    """Nothing has begun, the directory can be used again."""

    def leave(path: Path, write: Callable[[Path], None]) -> None:
        """As a killed process would: nothing is tidied up."""
        try:
            replace_file(path, write)
        finally:
            path.with_name(path.name + UNFINISHED).write_bytes(b"SQLite format 3\0 and no more")
            path.with_name(path.name + UNFINISHED + "-journal").write_bytes(b"")

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(f"fl_shuffle.{place}", dying)
        patch.setattr(store, "replace_file", leave)
        launch("run")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
    with pytest.raises(RunError, match="stopped before it began"):
        RunDirectory.at(RunPlace(tmp_path / "run", "yes"), tmp_path)
    assert launch("run") == 0
    assert not list((tmp_path / "run").glob(f"*{UNFINISHED}*"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def half(unfinished: Path) -> None:
        unfinished.write_text("aft")
        raise Crash

    with pytest.raises(Crash):
        replace_file(path, half)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["file"]
    replace_text(path, "after")
    assert path.read_text() == "after" and path.stat().st_mode & 0o777 == 0o600


def test_torn_files_lose_nothing(crash: Crashing, refused: Refused, play: Play) -> None:
    """Nobody reads what is not the ledger; a summary that was lost is written again."""
    run, whole = crash(2), play("whole")
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"seed": 5', '"seed": 6'))
    (run / "metrics.csv").write_text("round,n_rep")
    assert resume(run) == 0
    assert model_bytes(run) == model_bytes(whole)
    assert (run / "config.json").read_text() == config
    told = [[{**row, "seconds": ""} for row in rows(folder)] for folder in (run, whole)]
    assert told[0] == told[1] and len(told[0]) == 3
    final = summary(run)
    (run / "summary.json").write_text('{"rounds": 3, "proven')
    assert "finished" in refused(run)
    assert summary(run) == final
    assert final["ledger_link"] == LedgerRecord(run).link


@pytest.mark.parametrize(
    "kind",
    [
        ("run.entropy=seeded", "run.evaluate_every=2"),
        (SYSTEM, "privacy.release=sum", "training.participation=0.7"),
        ("run.entropy=seeded", "privacy.target_epsilon=0.001"),
    ],
)
def test_the_files_are_what_the_ledger_says(
    kind: tuple[str, ...], launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", *kind) in (0, 1)
    run = tmp_path / "run"
    view = RunView(run)
    for known, line in zip(view.lines, rows(run), strict=True):
        for name in view.columns:
            value = known.get(name)
            wanted = "" if value is None else approx(value, abs=1e-6)
            assert (float(line[name]) if line[name] else "") == wanted
    assert summary_of(view) == summary(run)
    assert view.config == json.loads((run / "config.json").read_text())


def test_nobody_misses_them(play: Play, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """Result, `runs`, report and ledger after all of them are gone: the same numbers."""
    run = play("run", SYSTEM)
    before = fs.Result(run)
    table, page = dict(before.metrics), write_report([read_run(run)]).read_text()
    for name in ("metrics.csv", "summary.json", "config.json"):
        (run / name).unlink()
    after = fs.Result(run)
    assert after.summary == before.summary and after.config == before.config
    np.testing.assert_equal(dict(after.metrics), table)
    assert write_report([read_run(run)]).read_text() == page
    capsys.readouterr()
    assert main(["runs", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["ledger", str(run), "--client", "3"]) == 0


def test_attendance_has_the_bit_order_that_is_documented(play: Play) -> None:
    """Client k is bit 7 - k % 8 of byte k // 8, as numpy.packbits has it."""
    run = play("run", "training.participation=0.5")
    seen = set(stored(run, "SELECT round, client_id FROM attendance"))
    wanted = {
        (number, client)
        for number, bits in stored(run, "SELECT round, present FROM reservations")
        for client in range(12)
        if bits is None or bits[client // 8] & (128 >> client % 8)
    }
    assert seen == wanted and len(wanted) < 36


def as_version_0_1(run: Path) -> None:
    """Make a ledger what version 0.1 would have written."""
    known = LedgerRecord(run / "ledger.sqlite")
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database, database:
        database.execute("DROP TABLE metrics")
        meta = {k: json.loads(v) for k, v in database.execute("SELECT key, value FROM meta")}
        for key in ("outcome", "metrics", "unit", "release", "assumed_honest", "delta",
                    "report_grid"):  # fmt: skip
            del meta[key]
        meta |= {"schema": 5, "summary": json.loads((run / "summary.json").read_text())}
        meta["config"]["app"] = {
            "server": "fl_shuffle.apps.server:app", "client": "fl_shuffle.apps.client:app",
        }  # fmt: skip
        meta["link"] = link = first_link(meta, known.classes, known.class_of)
        fill = [(key, json.dumps(value)) for key, value in meta.items()]
        database.execute("DELETE FROM meta")
        database.executemany("INSERT INTO meta VALUES (?, ?)", fill)
        for *row, _ in database.execute("SELECT * FROM reservations ORDER BY attempt").fetchall():
            link = next_link(link, tuple(row))
            database.execute("UPDATE reservations SET link = ? WHERE attempt = ?", (link, row[0]))


def test_a_run_of_version_0_1_is_read_and_not_gone_on_with(play: Play) -> None:
    run = play("run")
    now = fs.Result(run)
    table, accuracy = dict(now.metrics), read_run(run).accuracy
    as_version_0_1(run)
    old = fs.Result(run)
    assert old.summary == now.summary and old.config == now.config
    for name, values in table.items():
        np.testing.assert_allclose(old.metrics[name], values, rtol=1e-9)
    assert read_run(run).agrees and read_run(run).accuracy == approx(accuracy, rel=1e-9)
    assert main(["report", str(run)]) == main(["ledger", str(run), "--client", "3"]) == 0
    with pytest.raises(RunError, match="schema 5"):
        Ledger(run / "ledger.sqlite")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_runs_started_in_the_same_second(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "stamp", lambda: "now")
    made = [RunDirectory.create(tmp_path / "runs").path for _ in range(3)]
    assert [path.name for path in made] == ["now", "now-2", "now-3"]


def test_a_second_process_is_turned_away(
    launch: Launch, crash: Crashing, refused: Refused, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    """Whether it begins a run there or goes on with one."""
    told = f"in use by process {os.getpid()};"
    taken = RunDirectory.claim(tmp_path / "run")
    assert launch("run") == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    taken.close()
    run = crash(1)
    taken = RunDirectory.at(RunPlace(run, "yes"), tmp_path)
    assert told in refused(run)
    taken.close()
    before = (run / "ledger.sqlite").read_bytes()
    assert launch("run", "run.seed=8") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (run / "ledger.sqlite").read_bytes() == before
    assert resume(run) == 0


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
    told = r"^--run-config resume='yes' needs .*: add run-directory='FOLDER' to --run-config"
    with pytest.raises(ConfigError, match=told):
        RunPlace.of({"resume": "yes"})
    told = r"^--run-config resume = 'maybe': must be one of no, yes, data-unchanged"
    for folder in ("x", ""):
        with pytest.raises(InvalidValueError, match=told):
            RunPlace.of({"resume": "maybe", "run-directory": folder})


def test_folders_are_refused_in_the_words_of_who_named_them(tmp_path: Path) -> None:
    """`flwr run` has neither --out nor --resume."""
    run, empty = tmp_path / "run", tmp_path / "empty"
    run.mkdir(), empty.mkdir()
    (run / "ledger.sqlite").write_text("")
    for place, here, by_flower in (
        (RunPlace(run), r"^--out .*run already holds a run; .* or --resume it$",
         r"^--run-config run-directory='.*run' already holds a run; .* or add resume='yes' "),
        (RunPlace(empty, "yes"), r"^--resume .*empty: there is no .* start it with --out$",
         r"^--run-config run-directory='.*empty': there is no .* start it without resume$"),
    ):  # fmt: skip
        for flwr, told in ((False, here), (True, by_flower)):
            with pytest.raises(RunError, match=told):
                RunDirectory.at(place, tmp_path, flwr=flwr)


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_only_the_owner_may_read_a_run(
    entropy: str, play: Play, tmp_path: Path, monkeypatch: MonkeyPatch
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
        run = play("run", f"run.entropy={entropy}")
        assert main(["report", str(run)]) == 0
    finally:
        os.umask(umask)
    assert {"ledger.sqlite-wal", "ledger.sqlite-shm"} <= seen
    assert mode(run) == 0o700 and {mode(path) for path in run.iterdir()} == {0o600}


def test_data_that_cannot_be_compared_must_be_vouched_for(
    crash: Crashing, refused: Refused, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """As on another machine: the state folder does not know the run. What is known of its data is
    private, and goes with the run."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    run = crash(1)
    [known] = (tmp_path / "state" / "data").iterdir()
    assert mode(known) == 0o600 and mode(known.parent) == 0o700 and recall_data(known.name)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "elsewhere"))
    error = refused(run)
    for words in ("cannot be verified here", "--data-unchanged", STATE_VARIABLE):
        assert words in error
    assert resume(run, "--data-unchanged") == 0
    assert sum("without a check that the data" in text for text in summary(run)["warnings"]) == 1
    crash(1, name="known")
    assert resume(tmp_path / "known") == 0
    assert not list((tmp_path / "elsewhere" / "data").iterdir())
    assert recall_data("../../etc/passwd") is None
    # Without a home folder it is the same line.
    for name in (STATE_VARIABLE, "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    assert "cannot be verified here" in refused(crash(1, name="homeless"))
