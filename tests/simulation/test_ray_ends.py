"""Whatever ends the command that started a run on Ray ends the run, and every process of it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_shuffle.ledger.reader import LedgerRecord
from tests.processes import (
    COMMAND,
    END_SECONDS,
    MARK,
    START_SECONDS,
    environment,
    lines,
    linux,
    marked,
    marking,
    wait_until,
)

pytest.importorskip("ray")


@pytest.fixture
def started(small: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run of far more rounds than are waited for, when it has played some."""
    own = tempfile.mkdtemp()  # short: Ray's sockets lie below it
    command = [*COMMAND, "simulate", str(small), "--quiet", "--engine", "ray", "--jobs", "1",
               "--out", str(tmp_path / "run"), "--set", "run.rounds=100000"]  # fmt: skip
    with marking() as mark:
        process = subprocess.Popen(
            command, env=environment(TMPDIR=own, **{MARK: mark}), start_new_session=True
        )
        wait_until(
            lambda: process.poll() is not None or lines(tmp_path / "run") > 2,
            START_SECONDS,
            "no round was played",
        )
        assert process.poll() is None
        yield process, mark
    process.wait()
    shutil.rmtree(own, ignore_errors=True)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_no_process_of_a_run_outlives_its_command(
    how: str, started: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, mark = started
    assert len(marked(mark)) > 4
    if how == "SIGTERM":  # once is enough
        beside = subprocess.run(
            [*COMMAND, "simulate", "--resume", str(tmp_path / "run"), "--quiet"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        (number,) = re.findall(r"in use by process (\d+);", beside.stderr)
        assert beside.returncode == 2 and int(number) in marked(mark)
    process.send_signal(signal.Signals[how])
    process.wait(timeout=END_SECONDS)
    wait_until(lambda: not marked(mark), END_SECONDS, "processes of the run stay")
    played = lines(tmp_path / "run")
    # What was played is on the bill (the last round with the next one's reservation; the file of
    # metrics has a head), and nothing is added.
    assert len(LedgerRecord(tmp_path / "run" / "ledger.sqlite").attempts) >= played - 2
    time.sleep(1.0)
    assert lines(tmp_path / "run") == played
