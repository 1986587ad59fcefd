"""A run that version 0.2.0 began is read, and goes on as 0.2.0 would have played it."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import approx

import fl_shuffle as fs
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import create_tables, first_hash, next_hash, settings_of
from fl_shuffle.report.record import read_run
from fl_shuffle.verify.claims import check
from tests.crashes import Refused, resume
from tests.small_federation import rows, stored

FILES = Path(__file__).with_name("version_0_2")
RENAMED = {
    "n_reports": "num_reports", "specific_epsilon": "su2025_epsilon",
    "proven_epsilon": "shuffled_epsilon", "lower_epsilon": "shuffled_lower_epsilon",
}  # fmt: skip


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of the run, with its ledger alone."""
    run = tmp_path / "run"
    run.mkdir()
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        database.executescript((FILES / "ledger.sql").read_text(encoding="utf-8"))
    return run


def whole() -> list[dict[str, str]]:
    """The lines of the whole run's metrics.csv, as 0.2.0 wrote them."""
    with (FILES / "whole.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def meta_of(run: Path) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in stored(run, "SELECT key, value FROM meta")}


def test_unfinished_ledger_of_0_2_is_read_by_its_own_names(begun: Path) -> None:
    before = (begun / "ledger.sqlite").read_bytes()
    record = read_run(begun)
    assert record.agrees and record.meta["schema"] == 6 and record.last_round == 2
    privacy, run = record.config["privacy"], record.config["run"]
    assert (privacy["clipping"], privacy["client_clip_norm"]) == ("average", 0.4)
    assert (privacy["shuffler"], privacy["lifetime_epsilon"]) == ("server", 50.0)
    assert (run["noise"], record.config["server"]["lr_schedule"]) == ("per-sum", "linear")
    for row, old in zip(record.rows, whole(), strict=False):
        for name, new in RENAMED.items():
            assert row[new] == approx(float(old[name]), rel=1e-9) if old[name] else row[new] is None
    assert record.hash == stored(begun, "SELECT link FROM reservations")[-1][0]
    assert (begun / "ledger.sqlite").read_bytes() == before


def test_run_of_0_2_goes_on_as_0_2_would_have(begun: Path) -> None:
    links = stored(begun, "SELECT attempt, link FROM reservations")
    configured = settings_of(meta_of(begun)["config"])
    assert resume(begun, "--data-unchanged") == 0
    for line, old in zip(rows(begun), whole(), strict=True):
        for name, value in old.items():
            if name != "seconds":
                assert line[name] == line[RENAMED.get(name, name)]
                assert (float(line[name]) if line[name] else None) == (
                    approx(float(value), rel=1e-7) if value else None
                ), name
    assert stored(begun, "SELECT attempt, hash FROM reservations")[: len(links)] == links
    # Settings stay as they were written: they are in the chain.
    now = settings_of(meta_of(begun)["config"])
    # What may change at a resume is written as it is now.
    changed = {key for key in {*now, *configured} if now.get(key) != configured.get(key)}
    assert changed <= {"data.root", "run.checkpoint_every"}
    assert now["privacy.clip"] == "average" and now["run.noise"] == "pooled"
    assert meta_of(begun)["schema"] == 7 and meta_of(begun)["chain_schema"] == 6
    assert read_run(begun).agrees and LedgerRecord(begun).finished
    result = fs.Result(begun)
    assert result.config.server.averaging_fraction == 0.5
    with pytest.warns(DeprecationWarning, match="'proven_epsilon' is now called"):
        assert result.summary["proven_epsilon"] == result.summary["shuffled_epsilon"]
    claim = fs.certify(begun, client=3, column="sum")
    assert check(json.dumps(claim), begun / "ledger.sqlite").client == "3"


def test_upgraded_ledger_has_the_tables_of_a_new_one(begun: Path) -> None:
    assert resume(begun, "--data-unchanged") == 0
    with closing(sqlite3.connect(":memory:")) as database:
        create_tables(database)
        new = columns(database)
    with closing(sqlite3.connect(begun / "ledger.sqlite")) as database:
        assert columns(database) == new
        attended = database.execute("SELECT * FROM participation ORDER BY 1, 2, 3").fetchall()
        assert attended == database.execute("SELECT * FROM attendance ORDER BY 1, 2, 3").fetchall()
    released = {(number, client) for number, _, client in attended}
    assert len(released) == sum(int(line["num_reports"]) for line in rows(begun))


def columns(database: sqlite3.Connection) -> dict[str, set[tuple[Any, ...]]]:
    """Table or view -> its columns: name, type, whether it must be there, place in the key."""
    names = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    return {
        name: {
            (column, kind, needed, key)
            for _, column, kind, needed, _, key in database.execute(f"PRAGMA table_info({name})")
        }
        for (name,) in names.fetchall()
    }


def test_other_noise_scales_name_the_version_that_began_the_run(
    begun: Path, refused: Refused
) -> None:
    """As those of 0.2.0 for analytic calibration: they differ in their last digits."""
    with closing(sqlite3.connect(begun / "ledger.sqlite")) as database:
        database.execute("UPDATE classes SET scale = scale * (1 + 1e-12)")
        kinds = database.execute("SELECT * FROM classes ORDER BY class_id").fetchall()
        who = database.execute("SELECT class_id FROM clients ORDER BY client_id").fetchall()
        classes = [ClientClass(*row) for _, *row in kinds]
        link = first_hash(meta_of(begun), classes, np.array(who)[:, 0])
        database.execute("UPDATE meta SET value = ? WHERE key = 'link'", (json.dumps(link),))
        for *row, _ in database.execute("SELECT * FROM reservations ORDER BY attempt").fetchall():
            link = next_hash(link, tuple(row))
            database.execute("UPDATE reservations SET link = ? WHERE attempt = ?", (link, row[0]))
        database.commit()
    line = refused(begun, "--data-unchanged")
    assert "budgets or clipping" in line and "version 0.2.0" in line
    assert meta_of(begun)["schema"] == 6
