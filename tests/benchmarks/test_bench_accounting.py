"""The accountant's benchmark runs end to end on small sizes and prints every section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_smoke_run_prints_every_section() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.accounting", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for heading in ("accuracy", "speed", "curve", "Algorithm 4", "tightness", "peak memory"):
        assert heading in done.stdout
    assert "nan" not in done.stdout
