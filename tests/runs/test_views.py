"""metrics.csv, summary.json and config.json are views of the ledger, which nothing reads."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pytest import approx

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger, first_link, next_link
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.views import summary_of
from tests.small_federation import Launch, summary


@pytest.mark.parametrize(
    "kind",
    [
        ("run.entropy=seeded", "run.evaluate_every=2"),
        ("run.entropy=system", "privacy.release=sum", "training.participation=0.7"),
        ("run.entropy=seeded", "privacy.target_epsilon=0.001"),
    ],
)
def test_the_files_are_what_the_ledger_says(
    kind: tuple[str, ...], launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", *kind) in (0, 1)
    run = tmp_path / "run"
    view = RunView(run)
    text = (run / "metrics.csv").read_text()
    assert view.metrics_text() == text
    for row, line in zip(view.rows, csv.DictReader(io.StringIO(text)), strict=True):
        for name, value in row.items():
            wanted = "" if value is None else approx(value, abs=1e-6)
            assert (float(line[name]) if line[name] else "") == wanted
    assert summary_of(view) == summary(run)
    assert view.config == json.loads((run / "config.json").read_text())


def test_nobody_misses_them(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Result, `runs`, report and ledger after all of them are gone: the same numbers."""
    assert launch("run", "run.entropy=system") == 0
    run = tmp_path / "run"
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


def test_attendance_has_the_bit_order_that_is_documented(launch: Launch, tmp_path: Path) -> None:
    """Client k is bit 7 - k % 8 of byte k // 8, as numpy.packbits has it."""
    assert launch("run", "training.participation=0.5") == 0
    path = tmp_path / "run" / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        stored = database.execute("SELECT round, present FROM reservations").fetchall()
        seen = set(database.execute("SELECT round, client_id FROM attendance"))
    wanted = {
        (number, client)
        for number, bits in stored
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


def test_a_run_of_version_0_1_is_read_and_not_gone_on_with(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run") == 0
    run = tmp_path / "run"
    now = fs.Result(run)
    table, accuracy = dict(now.metrics), read_run(run).accuracy
    as_version_0_1(run)
    old = fs.Result(run)
    assert old.summary == now.summary and old.config == now.config
    for name, values in table.items():
        np.testing.assert_allclose(old.metrics[name], values, rtol=1e-9)
    assert read_run(run).accuracy == approx(accuracy, rel=1e-9)
    assert read_run(run).agrees
    assert main(["report", str(run)]) == 0
    assert main(["ledger", str(run), "--client", "3"]) == 0
    with pytest.raises(RunError, match="schema 5"):
        Ledger.open(run / "ledger.sqlite")
