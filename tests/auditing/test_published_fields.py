"""Taking apart what a run published: every field is seen, and nothing but times is left out."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.auditing import twin_runs
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.published import compare, fields_of, without_times
from fl_shuffle.auditing.twin_runs import NEIGHBOURS, audit_published
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.features.maps import FeatureMap
from fl_shuffle.errors import FlShuffleError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"loss": 1.5, "seconds": 2.0, "list": [1, 2]}))
    (folder / "metrics.csv").write_text("round,loss,seconds\n1,0.5,0.01\n")
    (folder / "run.log").write_text("2026-01-02 03:04:05,678 INFO started\n")
    (folder / "model.safetensors").write_bytes(b"\x00\x01")
    with sqlite3.connect(folder / "ledger.sqlite") as ledger:
        ledger.execute("CREATE TABLE meta (key TEXT, value TEXT)")
        ledger.execute("CREATE TABLE rounds (round INTEGER, proven REAL, seconds REAL, bits BLOB)")
        ledger.execute("CREATE TABLE checkpoint (only INTEGER, round INTEGER, state BLOB)")
        ledger.execute("INSERT INTO meta VALUES ('started', '\"2026-01-02T03:04:05.678+00:00\"')")
        ledger.execute("INSERT INTO meta VALUES ('data', '{\"classes\": 10}')")
        ledger.execute("INSERT INTO rounds VALUES (1, 0.25, 0.125, x'0011')")
        ledger.execute("INSERT INTO checkpoint VALUES (0, 1, x'22')")
    ledger.close()
    return folder


def changed_by(run: Path, statement: str) -> list[str]:
    before = fields_of(run)
    with sqlite3.connect(run / "ledger.sqlite") as ledger:
        ledger.execute(statement)
    ledger.close()
    return [found.where for found in compare("n", before, fields_of(run))]


def test_the_same_directory_has_no_difference(run: Path) -> None:
    assert compare("n", fields_of(run), fields_of(run)) == []


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE rounds SET proven = 0.26", "ledger.sqlite: rounds[0]"),
        ("UPDATE rounds SET bits = x'0012'", "ledger.sqlite: rounds[0]"),
        ("UPDATE meta SET value = '{\"classes\": 11}' WHERE key = 'data'", "ledger.sqlite: data"),
        ("INSERT INTO rounds VALUES (2, 1, 1, NULL)", "ledger.sqlite: rounds[1]"),
        ("CREATE TABLE more (a)", "ledger.sqlite: schema"),
        ("UPDATE checkpoint SET state = x'23'", "ledger.sqlite: checkpoint of round 1"),
    ],
)
def test_every_cell_of_the_ledger_is_seen(run: Path, statement: str, where: str) -> None:
    assert any(where in found for found in changed_by(run, statement))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rounds SET seconds = 7.5",
        "UPDATE meta SET value = '\"2027-01-02T03:04:05.999+00:00\"' WHERE key = 'started'",
        # The clock says after which round a checkpoint is written.
        "UPDATE checkpoint SET round = 2",
    ],
)
def test_times_are_left_out(run: Path, statement: str) -> None:
    assert changed_by(run, statement) == []


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("summary.json", '{"loss": 1.6, "seconds": 9.0, "list": [1, 2]}', "summary.json: line 1"),
        ("summary.json", '{"loss": 1.5, "seconds": 9.0, "list": [1]}', "summary.json: line 1"),
        ("summary.json", '{"loss": 1.5, "seconds": "x", "list": [1, 2]}', "summary.json: line 1"),
        ("metrics.csv", "round,loss,seconds\n1,0.6,0.02\n", "metrics.csv: line 1"),
        ("run.log", "2026-01-02 03:04:05,678 INFO stopped\n", "run.log: line 1"),
        ("run.log", "2026-01-02 03:04:05,678 INFO started\nmore\n", "run.log: line 2"),
        ("model.safetensors", "ab", "model.safetensors: content"),
        ("new.bin", "", "new.bin: mode"),
    ],
)
def test_every_file_is_seen(run: Path, name: str, content: str, where: str) -> None:
    before = fields_of(run)
    (run / name).write_text(content)
    found = compare("n", before, fields_of(run))
    assert any(where in difference.where for difference in found)


def test_only_times_are_masked() -> None:
    assert without_times({"seconds": 1.25}) == without_times({"seconds": 3})
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
    assert "2 bytes, " in without_times({"bits": b"ab"})


def test_what_is_declared_is_noted_and_the_rest_still_compared() -> None:
    settings = parse_config(
        {
            "run": {"rounds": 1},
            "data": {"clients": 8, "records": 5, "validation": 0.1},
            "budgets": {"epsilon": 2.0},
        }
    )
    found = audit_published(settings, Clock(600.0), NEIGHBOURS[:1])
    assert found.differences == ()
    assert found.notes == ("held-out records decide accuracy and loss: the run says so",)


def test_an_audited_run_that_cannot_start_says_why() -> None:
    settings = parse_config({"data": {"clients": 10_000}})
    with pytest.raises(FlShuffleError, match="more clients than"):
        audit_published(settings, Clock(600.0))


class EachRow(FeatureMap):
    """The mean of every picture; counts what it is asked for."""

    asked = 0
    dimension = 1

    def transform(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.asked += len(images)
        return np.asarray(images.mean(axis=(1, 2)), dtype=np.float32)[:, None]


def test_pictures_that_did_not_change_keep_their_features() -> None:
    images = np.arange(96, dtype=np.uint8).reshape(6, 4, 4)
    other = images.copy()
    other[2] = 7
    maps = EachRow(8)
    with twin_runs._living(twin_runs._World(DataSection())):
        for each, asked in ((images, 6), (other, 7), (images, 7)):
            assert np.array_equal(twin_runs._vectors(maps, each)[:, 0], each.mean(axis=(1, 2)))
            assert maps.asked == asked


def test_the_clock_cuts_the_list_and_says_so() -> None:
    settings = parse_config({"run": {"rounds": 1}, "data": {"clients": 8, "records": 5}})
    found = audit_published(settings, Clock(0.0))
    assert len(found.neighbours) == 1
    assert found.notes == (
        f"the time was up: {len(NEIGHBOURS) - 1} neighbouring data sets were not tried",
    )
