"""Files that were cut short, and records that were interrupted: whole, or not there."""

from __future__ import annotations

import csv
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
from fl_shuffle.runs.directory import RunDirectory
from tests.crashes import Crash, Crashing, Refused, resume
from tests.runs.test_runs import one_kind
from tests.small_federation import Launch, model_bytes, summary


def dying(*_: Any) -> NoReturn:
    raise Crash


def test_torn_files_lose_nothing(
    crash: Crashing, refused: Refused, launch: Launch, tmp_path: Path
) -> None:
    """Nobody reads what is not the ledger; a summary that was lost is written again."""
    assert launch("whole") == 0
    run, whole = crash(2), tmp_path / "whole"
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"seed": 5', '"seed": 6'))
    (run / "metrics.csv").write_text("round,n_rep")
    assert resume(run) == 0
    assert model_bytes(run) == model_bytes(whole)
    assert (run / "config.json").read_text() == config
    told = [
        [{**row, "seconds": ""} for row in csv.DictReader((folder / "metrics.csv").open())]
        for folder in (run, whole)
    ]
    assert told[0] == told[1] and len(told[0]) == 3
    final = summary(run)
    (run / "summary.json").write_text('{"rounds": 3, "proven')
    assert "finished" in refused(run)
    assert summary(run) == final
    assert final["ledger_link"] == LedgerRecord(run).link


@pytest.mark.parametrize(
    "place",
    ["runs.run.remember_data", "ledger.store.create_tables", "ledger.store.insert",
     "ledger.store.fill"],
)  # fmt: skip
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
        patch.setattr(f"fl_shuffle.{place}", dying)
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
    ledger, accountant = one_kind(tmp_path, 4)
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
