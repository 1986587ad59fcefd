"""The noise benchmark runs from end to end; times are not looked at."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_every_candidate(tmp_path: Path) -> None:
    table = tmp_path / "noise.csv"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.noise",
            "--seconds",
            "0.1",
            "--dimensions",
            "610",
            "--csv",
            table,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with table.open(newline="") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    assert {"ours: normal", "ours: gaussian reports", "torch normal_ (mt19937)"} <= set(rows)
    assert all(float(row["median_ns"]) > 0 for row in rows.values())
