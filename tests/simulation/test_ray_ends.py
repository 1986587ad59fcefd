"""Whatever ends the command that started a run on Ray ends the run, and every process of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_shuffle.ledger.reader import LedgerRecord

pytest.importorskip("ray")

# A closed terminal ends it, even where whoever runs the tests ignores that signal.
COMMAND = [
    *(sys.executable, "-c"),
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from fl_shuffle.cli import main; sys.exit(main())",
]
MARK = "FL_SHUFFLE_TESTED_RUN"
START_SECONDS, END_SECONDS = 300.0, 60.0

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


def marked(mark: str) -> set[int]:
    """The processes that this run's command has begun, wherever they are by now."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and f"{MARK}={mark}".encode() in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue  # ended meanwhile, or not ours to look at
    return found


def wait_until(true: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def lines(run: Path) -> int:
    metrics = run / "metrics.csv"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.fixture
def started(small: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run of far more rounds than are waited for, when it has played some."""
    mark = uuid.uuid4().hex
    own = tempfile.mkdtemp()  # short: Ray's sockets lie below it
    environment = {**os.environ, MARK: mark, "TMPDIR": own}
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    command = [*COMMAND, "simulate", str(small), "--quiet", "--engine", "ray", "--jobs", "1",
               "--out", str(tmp_path / "run"), "--set", "run.rounds=100000"]  # fmt: skip
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            wait_until(
                lambda: process.poll() is not None or lines(tmp_path / "run") > 2,
                START_SECONDS,
                "no round was played",
            )
            assert process.poll() is None
            yield process, mark
        finally:
            for each in marked(mark):
                os.kill(each, signal.SIGKILL)
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
