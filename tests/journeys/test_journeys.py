"""Each way is open, in a process and a folder elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.journeys.ways import WAYS
from tests.processes import printed


@pytest.mark.slow
@pytest.mark.parametrize("who", WAYS)
def test_the_way_is_open(who: str, tmp_path: Path) -> None:
    printed(sys.executable, str(Path(__file__).with_name("ways.py")), who, folder=tmp_path)
