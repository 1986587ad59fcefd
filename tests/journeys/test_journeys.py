"""Three people's ways through the software, each a script in a folder elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("who", ["researcher", "engineer", "officer"])
def test_the_way_is_open(who: str, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / f"{who}.py")]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{who}: done\n")
