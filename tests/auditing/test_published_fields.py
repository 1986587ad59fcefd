"""Taking apart what a run published: every field is seen, and nothing but times is left out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fl_shuffle.auditing.published import compare, fields_of, without_times

LATER = '"2027-01-02T03:04:05.999+00:00"'


TABLES = """
CREATE TABLE meta (key TEXT, value TEXT);
CREATE TABLE rounds (round INTEGER, proven REAL, seconds REAL, bits BLOB);
CREATE TABLE checkpoint (only INTEGER, round INTEGER, state BLOB);
INSERT INTO meta VALUES ('started', '"2026-01-02T03:04:05.678+00:00"');
INSERT INTO rounds VALUES (1, 0.25, 0.125, x'0011');
INSERT INTO checkpoint VALUES (0, 1, x'22')
"""
FILES = {
    "summary.json": '{"loss": 1.5, "seconds": 2.0, "list": [1, 2]}',
    "metrics.csv": "round,loss,seconds\n1,0.5,0.01\n",
    "run.log": "2026-01-02 03:04:05,678 INFO started\n",
    "model.safetensors": "\x00\x01",
    "ledger.sqlite": TABLES,
}


def write(folder: Path, name: str, content: str) -> None:
    if not name.endswith(".sqlite"):
        (folder / name).write_text(content)
        return
    with sqlite3.connect(folder / name) as ledger:
        ledger.executescript(content)
    ledger.close()


@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("ledger.sqlite", "UPDATE rounds SET proven = 0.26", "rounds[0]"),
        ("ledger.sqlite", "UPDATE rounds SET bits = x'0012'", "rounds[0]"),
        ("ledger.sqlite", "CREATE TABLE more (a)", "schema"),
        ("ledger.sqlite", "UPDATE checkpoint SET state = x'23'", "checkpoint of round 1"),
        ("ledger.sqlite", "UPDATE rounds SET seconds = 7.5", None),
        ("ledger.sqlite", f"UPDATE meta SET value = '{LATER}' WHERE key = 'started'", None),
        # The clock says after which round a checkpoint is written.
        ("ledger.sqlite", "UPDATE checkpoint SET round = 2", None),
        ("summary.json", '{"loss": 1.6, "seconds": 9.0, "list": [1, 2]}', "line 1"),
        ("metrics.csv", "round,loss,seconds\n1,0.6,0.02\n", "line 1"),
        ("metrics.csv", "round,loss,seconds\n1,0.5,0.02\n", None),
        ("run.log", "2026-01-02 03:04:05,678 INFO started\nmore\n", "line 2"),
        ("run.log", "2026-01-02 03:04:06,789 INFO started\n", None),
        ("model.safetensors", "ab", "content"),
        ("new.bin", "", "mode"),
    ],
)
def test_everything_is_seen_but_times(
    tmp_path: Path, name: str, change: str, where: str | None
) -> None:
    for file, content in FILES.items():
        write(tmp_path, file, content)
    before = fields_of(tmp_path)
    write(tmp_path, name, change)
    found = [difference.where for difference in compare("n", before, fields_of(tmp_path))]
    assert found == [] if where is None else f"{name}: {where}" in found


def test_only_times_are_masked() -> None:
    assert without_times({"seconds": "1e-05"}) == without_times('{"seconds": "0.1"}')
    assert without_times({"loss": 1, "started": "2026-01-02 03:04:05 UTC"}) == without_times(
        {"loss": 1, "started": "2027-11-12T13:14"}
    )
    for kept in ("pixel 17", "1.25 pixels", "2026-01-02T03:04 pixel"):
        assert kept in without_times({"seconds": kept})
    assert "1.25" in without_times({"loss": 1.25}) and "1.2" in without_times({"a": "seconds: 1.2"})
    assert without_times({"run": "0" * 32}) == without_times({"run": "f" * 32})
    assert "digest" in without_times({"run": "digest"})
    assert "0" * 32 in without_times({"digest": "0" * 32})
