"""Each way is open, in a process and a folder elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journeys.ways import WAYS
from tests.processes import environment


@pytest.mark.slow
@pytest.mark.parametrize("who", WAYS)
def test_the_way_is_open(who: str, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("ways.py")), who]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
