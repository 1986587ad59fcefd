"""The accountant's benchmark runs end to end on small sizes and prints every section."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_smoke_run_prints_every_section() -> None:
    script = Path(__file__).parents[2] / "scripts" / "bench_accounting"
    done = subprocess.run(
        [sys.executable, str(script), "--smoke"], capture_output=True, text=True, check=True
    )
    for heading in ("accuracy", "speed", "curve", "Algorithm 4", "tightness", "peak memory"):
        assert heading in done.stdout
    assert "nan" not in done.stdout
