"""Files that were cut short, and records that were interrupted: whole, or not there."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from fl_shuffle.durable_files import UNFINISHED, replace_file, replace_text
from fl_shuffle.errors import RunError
from fl_shuffle.ledger import store
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.runs.directory import RunDirectory
from tests.crashes import Crash, Crashing, Refused, resume
from tests.runs.test_runs import CLASS
from tests.small_federation import Launch, model_bytes, summary


def dying(*_: Any) -> NoReturn:
    raise Crash


def torn(name: str, text: str | None) -> Callable[[Path], None]:
    def tear(run: Path) -> None:
        if text is None:
            (run / name).unlink(missing_ok=True)
        else:
            (run / name).write_text(text)

    return tear


@pytest.mark.parametrize(
    "tear",
    [torn("config.json", None), torn("config.json", "[[["), torn("metrics.csv", "round,n_rep")],
)
def test_torn_files_lose_nothing(
    tear: Callable[[Path], None], crash: Crashing, launch: Launch, tmp_path: Path
) -> None:
    assert launch("whole") == 0
    crash(2)
    tear(tmp_path / "run")
    assert resume(tmp_path / "run") == 0
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    whole = list(csv.DictReader((tmp_path / "whole" / "metrics.csv").open()))
    assert [row["proven_epsilon"] for row in rows] == [row["proven_epsilon"] for row in whole]
    json.loads((tmp_path / "run" / "config.json").read_text())


@pytest.mark.parametrize("text", [None, "", '{"rounds": 3, "proven'])
def test_finished_is_what_the_ledger_says(
    text: str | None, refused: Refused, launch: Launch, tmp_path: Path
) -> None:
    assert launch("run") == 0
    whole = summary(tmp_path / "run")
    torn("summary.json", text)(tmp_path / "run")
    assert "finished" in refused(tmp_path / "run")
    assert summary(tmp_path / "run") == whole
    assert whole["ledger_link"] == LedgerRecord(tmp_path / "run" / "ledger.sqlite").link


@pytest.mark.parametrize("place", ["create_tables", "insert", "fill"])
def test_killed_while_the_ledger_is_made(
    place: str, tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has begun, the directory can be used again."""

    def leave(path: Path, write: Callable[[Path], None]) -> None:
        """As a killed process would: nothing is tidied up."""
        try:
            replace_file(path, write)
        finally:
            path.with_name(path.name + UNFINISHED).write_bytes(b"SQLite format 3\0 and no more")
            path.with_name(path.name + UNFINISHED + "-journal").write_bytes(b"")

    with monkeypatch.context() as patch:
        patch.setattr(store, place, dying)
        patch.setattr(store, "replace_file", leave)
        with pytest.raises(Crash):
            launch("run")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
    with pytest.raises(RunError, match="stopped before it began"):
        RunDirectory.reopen(tmp_path / "run")
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


def test_an_interrupted_record_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two statements: what is then closed does not hold half a round."""
    ledger = Ledger.create(tmp_path / "l.sqlite", {}, [CLASS], np.zeros(4, dtype=np.int64))
    from fl_shuffle.accounting.accountant import Accountant

    accountant = Accountant([CLASS], np.zeros(4, dtype=np.int64), unit="client",
                            schedule="aggregate", delta=1e-5)  # fmt: skip
    everybody = np.ones(4, dtype=bool)
    ledger.reserve(1, 4, 1.0)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        insert = store.insert

        def half(database: sqlite3.Connection, table: str, rows: Any) -> None:
            dying() if table == "round_classes" else insert(database, table, rows)

        patch.setattr(store, "insert", half)
        ledger.record(accountant.preview(1, everybody), {0: 4}, everybody)
    ledger.close()
    with sqlite3.connect(tmp_path / "l.sqlite") as db:
        assert db.execute("SELECT count(*) FROM rounds").fetchone() == (0,)
        assert db.execute("SELECT released FROM reservations").fetchall() == [(0,)]


def test_killed_before_the_data_are_remembered(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the data is whole before the run has begun."""
    with monkeypatch.context() as patch:
        patch.setattr("fl_shuffle.runs.run.remember_data", dying)
        with pytest.raises(Crash):
            launch("run")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
    assert launch("run") == 0


def test_a_ledger_whose_names_are_no_text_is_one_line(launch: Launch, tmp_path: Path) -> None:
    """SQLite's own messages quote the names of tables; here one byte of each statement is none."""
    assert launch("run", "run.rounds=1") == 0
    path = tmp_path / "run" / "ledger.sqlite"
    whole = path.read_bytes()
    place, refusals = whole.find(b"CREATE TABLE"), 0
    while place >= 0:
        for offset in (13, 16, 24, 30):
            path.write_bytes(whole[: place + offset] + b"\xff" + whole[place + offset + 1 :])
            try:
                LedgerRecord(path)
            except RunError as error:
                refusals += 1
                assert "\n" not in str(error)
        place = whole.find(b"CREATE TABLE", place + 1)
    assert refusals > 10
