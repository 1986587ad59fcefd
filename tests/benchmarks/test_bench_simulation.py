"""The federation benchmark runs from end to end and writes its table; times are not looked at."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import simulation
from tests.repository import ROOT


@pytest.mark.slow
def test_smoke_form_measures_the_floor_and_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    monkeypatch.setattr(sys, "argv", ["simulation", "--smoke", "--csv", str(table)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert simulation.main() == 0
    with table.open(newline="") as file:
        rows = {row["engine"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"floor", "ours", "pooled"}
    for row in rows.values():
        assert (row["clients"], row["records"], row["d"]) == ("40", "5", "610")
        assert row["rounds"] == "3"
        assert float(row["median_s"]) > 0
        assert float(row["start_up_s"]) > float(row["median_s"])
        # Each process holds at least an interpreter with torch in it.
        assert float(row["peak_mib"]) > 50
        assert row["note"] == ""
    assert float(rows["ours"]["accounting_share"]) > 0
    assert rows["floor"]["accounting_share"] == ""
    for row in rows.values():
        assert float(row["p10_s"]) <= float(row["median_s"]) <= float(row["p90_s"])
    for engine in ("ours", "pooled"):
        low, middle, high = (
            float(rows[engine][name]) for name in ("floor_p10", "wall_over_floor", "floor_p90")
        )
        assert 0 < low <= middle <= high
    assert float(rows["ours"]["wall_over_ours"]) == 1.0


def test_unknown_engine_is_refused_before_anything_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.simulation", "--smoke", "--engines", "flor"]
    command += ["--csv", str(tmp_path / "t.csv")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "known ones are floor, ours, pooled" in done.stderr
    assert not (tmp_path / "t.csv").exists()
