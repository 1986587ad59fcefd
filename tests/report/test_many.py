"""Many runs in one table: finished or not, as their ledgers have them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from tests.crashes import Crashing
from tests.small_federation import Launch


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
