"""Ledgers as tables, of one run and of many: their numbers, nothing else, in every format."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.report.formats import as_text, write_table
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.report.tables import TABLES
from tests.crashes import Crashing
from tests.small_federation import Launch

READ = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
import fl_shuffle as fs
from fl_shuffle.cli import main

run, page = sys.argv[2:]
for more in "--round 2 --format csv", "--notes", "--client 3", "--clients", f"--out {run}/tables":
    assert main(["ledger", run, *more.split()]) == 0, more
assert main(["runs", run]) == main(["runs", run, "--differences"]) == 0
assert "fl_shuffle.accounting.accountant" not in sys.modules
assert main(["ledger", run, "--client", "3", "--recount"]) == 0
assert main(["report", run, run, "--out", page]) == 0
result = fs.Result(run)
print(result.ledger.client(3).epsilon, result.metrics["round"], result.report(page))
"""
"""Every way to read a run. What was written down alone is there without the accountant, too."""

DAMAGED = {
    "metrics": "INSERT INTO metrics VALUES (1, 'accuracy ', 'a lot')",
    "started": "UPDATE meta SET value = '\"then\"' WHERE key = 'started'",
    "finished": "UPDATE meta SET value = '\"soon\"' WHERE key = 'finished'",
    "libraries": "UPDATE meta SET value = '{\"numpy\": 2}' WHERE key = 'libraries'",
}
"""What somebody may have done to a ledger."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "run"
    settings = {"run.rounds": 3, "data.clients": 21, "training.participation": 0.5,
                "budgets.levels": 3, "run.jobs": 1}  # fmt: skip
    fs.simulate("configs/digits_record.toml", overrides=settings, out=path)
    return path


def test_a_changed_client_is_reported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*options: str, code: int = 0) -> tuple[list[dict[str, str]], str]:
        assert main(["ledger", str(copy), "--clients", "--format", "csv", *options]) == code
        printed = capsys.readouterr()
        return list(csv.DictReader(io.StringIO(printed.out))), printed.err

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    written, _ = said()
    counted, verdict = said("--recount")
    assert counted == written and "the ledger says the same" in verdict
    with sqlite3.connect(copy / "ledger.sqlite") as database:
        database.execute("UPDATE client_spend SET proven = 2 * proven WHERE client_id = 7")
        database.execute("UPDATE rounds SET proven = proven / 2 WHERE round = 3")
    database.close()
    doubled, verdict = said()
    assert verdict == ""
    assert float(doubled[7]["proven_epsilon"]) == 2.0 * float(written[7]["proven_epsilon"])
    counted, verdict = said("--recount", code=1)
    assert counted == written and "SOMETHING ELSE" in verdict and "differ: 7" in verdict
    page = render([read_run(copy)])
    assert "1 clients, counted again" in page and "(the first is client 7)" in page
    assert "the ledger says epsilon" in page
    assert main(["ledger", str(copy), "--client", "7"]) == 0
    assert f"proven {float(doubled[7]['proven_epsilon']):.4g}" in capsys.readouterr().out


def test_reading_takes_neither_torch_nor_flower(run: Path, tmp_path: Path) -> None:
    missing = "torch,torchvision,flwr,grpc,ray,numba,pandas,safetensors"
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-c", READ, missing, str(run), str(page)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert page.is_file() and str(page) in done.stdout
    bill = fs.Result(run).ledger.client(3)
    assert f"reported in {bill.rounds} rounds" in done.stdout
    assert f"proven {bill.epsilon:.4g}" in done.stdout
    assert done.stdout.startswith("round,attempt,client\n") and "\nassumption: " in done.stdout


def numbers(cells: Iterable[Any]) -> list[float]:
    return [np.nan if cell is None or cell == "" else float(cell) for cell in cells]


def test_numbers_survive_csv_and_json(run: Path, tmp_path: Path) -> None:
    texts = ['100 % "of" it,\nonce', "", "nan"]
    odd = {"x": np.array([np.nan, np.inf, 1.5]), "%s": np.array(texts), "n": [None, -2, 3]}
    for table in (odd, *(make(read_run(run)) for make in TABLES.values())):
        named = json.loads(as_text(table, "json"))
        read = list(csv.DictReader(io.StringIO(as_text(table, "csv"))))
        for name, values in table.items():
            for shown in ([row[name] for row in read], [row[name] for row in named]):
                if isinstance(values, np.ndarray) and values.dtype.kind == "U":
                    assert shown == list(values)
                else:
                    np.testing.assert_array_equal(numbers(shown), numbers(values))
    write_table(odd, tmp_path / "t.csv", "csv")
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o600
    assert as_text({"x": np.empty(0)}, "json") == "[]"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ledger run --client 21", "client = 21"),
        ("ledger run --round 9", "round = 9"),
        ("ledger run --format parquet", "--out FILE"),
        ("ledger run --format parquet --out table", "pip install 'fl-shuffle[parquet]'"),
        ("ledger run --out /dev/null/x", "cannot be used"),
        ("ledger nowhere", "not a run directory"),
        ("runs nowhere", "is no folder"),
        ("runs empty", "there is no run"),
        ("report nowhere", "not a run directory"),
        ("report broken", "ledger"),
        ("report metrics", "metrics"),
        ("report started", "started of meta"),
        ("report finished", "finished of meta"),
        ("report libraries", "libraries of meta"),
        ("report run --out nowhere/page.html", "cannot be written"),
        ("report run run", "--out"),
        ("report run --policy 8,1", "STRONG <= MODERATE"),
        ("report run --policy a,b", "--policy"),
        ("report run --csv run/ledger.sqlite", "as a folder"),
    ],
)
def test_bad_input_is_one_line(
    command: str,
    text: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_shuffle.plugins.installed", lambda library: False)
    shutil.copytree(run, "run")
    for name, change in DAMAGED.items():
        shutil.copytree(run, name)
        with sqlite3.connect(Path(name, "ledger.sqlite")) as database:
            database.execute(change)
        database.close()
    for name in ("broken", "empty"):
        Path(name).mkdir()
    Path("broken", "ledger.sqlite").write_text("not a database, but long enough to look")
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def listed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict]:
    capsys.readouterr()
    assert main(["runs", str(folder), "--format", "csv", *options]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {Path(row["run"]).name: row for row in rows}


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_an_interrupted_run_shows_what_it_cost_so_far(
    release: str,
    crash: Crashing,
    launch: Launch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = f"privacy.release={release}"
    assert launch("whole", wanted, "run.rounds=2") == 0
    crash(2, wanted, name="stopped")
    crash(0, wanted, name="begun")
    rows, whole = listed(tmp_path, capsys), fs.Result(tmp_path / "whole")
    shown = [(name, row["state"], row["rounds"]) for name, row in sorted(rows.items())]
    begun, stopped = ("begun", "unfinished", "0/3"), ("stopped", "unfinished", "2/3")
    assert shown == [begun, stopped, ("whole", "finished", "2/2")]
    for name in ("whole", "stopped"):
        assert float(rows[name]["epsilon"]) == whole.epsilon
        assert float(rows[name]["accuracy"]) == whole.accuracy
        assert float(rows[name]["local"]) == whole.summary["columns"]["local"]["epsilon"]
    assert (rows["begun"]["epsilon"], rows["begun"]["accuracy"]) == ("", "")
    assert whole.headline == ("sum" if release == "sum" else "proven")
    rows = listed(tmp_path, capsys, "--differences")
    assert [json.loads(rows[name]["run.rounds"]) for name in ("whole", "begun")] == [2, 3]
    assert "run.out" not in rows["whole"] and "privacy.release" not in rows["whole"]
