"""The report page: a changed ledger shows; nothing released; bad input."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from tests.report.reading import Page
from tests.small_federation import Launch


def page(folder: Path) -> Page:
    assert main(["report", str(folder)]) == 0
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_a_changed_client_is_reported(launch: Launch, tmp_path: Path) -> None:
    assert launch("run") == 0
    with sqlite3.connect(tmp_path / "run" / "ledger.sqlite") as db:
        db.execute("UPDATE client_spend SET proven = proven * 0.999 WHERE client_id = 7")
        db.execute("UPDATE rounds SET proven = proven / 2 WHERE round = 3")
    shown = page(tmp_path / "run").text
    assert "1 clients, counted again" in shown and "client 7" in shown
    assert "the ledger says epsilon" in shown


def test_a_run_that_released_nothing(launch: Launch, tmp_path: Path) -> None:
    assert launch("none", "privacy.target_epsilon=0.001") == 1
    shown = page(tmp_path / "none")
    assert "nothing has been spent" in shown.text and "svg" not in shown.count
    assert "above the target" in shown.text


def test_what_cannot_be_reported_is_one_line(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run") == 0
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ledger.sqlite").write_text("not a database, but long enough to look")
    shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    with sqlite3.connect(tmp_path / "damaged" / "ledger.sqlite") as database:
        database.execute("INSERT INTO metrics VALUES (1, 'accuracy ', 'a lot')")
    database.close()
    facts = {"started": '"then"', "finished": '"soon"', "libraries": '{"numpy": 2}'}
    for fact, value in facts.items():
        shutil.copytree(tmp_path / "run", tmp_path / fact)
        with sqlite3.connect(tmp_path / fact / "ledger.sqlite") as database:
            database.execute("UPDATE meta SET value = ? WHERE key = ?", (value, fact))
        database.close()
    for arguments, said in [
        *(([tmp_path / fact], f"{fact} of meta") for fact in facts),
        ([tmp_path / "nowhere"], "not a run directory"),
        ([tmp_path / "broken"], "ledger"),
        ([tmp_path / "damaged"], "metrics"),
        ([tmp_path / "run", "--out", tmp_path / "no" / "page.html"], "cannot be written"),
        ([tmp_path / "run", tmp_path / "run"], "--out"),
        ([tmp_path / "run", "--policy", "8,1"], "STRONG <= MODERATE"),
        ([tmp_path / "run", "--csv", tmp_path / "run" / "ledger.sqlite"], "as a folder"),
    ]:
        capsys.readouterr()
        assert main(["report", *map(str, arguments)]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1 and said in errors[0], errors
