"""The report page: its numbers are the run's, recounted; a changed ledger shows; bad input."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from tests.report.reading import Page
from tests.small_federation import Launch, summary


def page(folder: Path) -> Page:
    assert main(["report", str(folder)]) == 0
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_says_what_the_run_says(launch: Launch, tmp_path: Path) -> None:
    assert launch("run") == 0
    shown, final = page(tmp_path / "run"), summary(tmp_path / "run")
    assert f"epsilon \N{LESS-THAN OR EQUAL TO} {final['epsilon']:.4g}" in " ".join(
        shown.text.split()
    )
    assert str(final["in_plain_words"])[1:] in shown.text
    assert "No policy is given." in shown.text and "was changed" not in shown.text
    assert shown.count["figure"] == 5 and "each of 12 clients was computed again" in shown.text


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
    (tmp_path / "damaged").mkdir()
    ledger = (tmp_path / "run" / "ledger.sqlite").read_bytes()
    (tmp_path / "damaged" / "ledger.sqlite").write_bytes(ledger)
    with sqlite3.connect(tmp_path / "damaged" / "ledger.sqlite") as database:
        database.execute("INSERT INTO metrics VALUES (1, 'accuracy ', 'a lot')")
    database.close()
    for arguments, said in [
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
