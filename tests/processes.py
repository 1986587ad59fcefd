"""What tests need that start programs in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.repository import ROOT

MARK = "FL_SHUFFLE_TESTED_RUN"
# A closed terminal ends it, even where whoever runs the tests ignores that signal.
COMMAND = [
    *(sys.executable, "-c"),
    "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "from fl_shuffle.cli import main; sys.exit(main())",
]
START_SECONDS, END_SECONDS = 300.0, 180.0

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


def environment(**more: str) -> dict[str, str]:
    """Of such a program: this process's, where it finds the product, this Python's programs before
    others, and nothing that looks for a network."""
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        **more,
    }


def printed(*command: str, folder: Path | None = None, **variables: str) -> str:
    """What such a program prints, which ends well."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(true: Callable[[], object], seconds: float, what: Callable[[], str] | str) -> None:
    """Look often; after so many seconds fail with what there is to say."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.1)


def marked(mark: str) -> set[int]:
    """The processes that a command with this mark has begun, wherever they are by now."""
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


def require_ended(mark: str) -> None:
    """Every process with this mark ends soon."""
    wait_until(lambda: not marked(mark), END_SECONDS, lambda: f"these stay: {commands_of(mark)}")


def commands_of(mark: str) -> list[str]:
    """The command lines of the processes with this mark, as far as they are still there."""
    files = (Path("/proc") / str(each) / "cmdline" for each in marked(mark))
    return [
        file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        for file in files
        if file.exists()
    ]


@contextmanager
def marking() -> Iterator[str]:
    """A mark for processes; those that still have it are killed in the end."""
    mark = uuid.uuid4().hex
    try:
        yield mark
    finally:
        for each in marked(mark):
            os.kill(each, signal.SIGKILL)


def lines(run: Path) -> int:
    """Of a run's metrics: one for the head, one a round."""
    metrics = run / "metrics.csv"
    return metrics.read_text().count("\n") if metrics.exists() else 0


@contextmanager
def playing(
    run: Path, *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`fl-shuffle simulate ...` with far more rounds than are waited for, when it has played some;
    and the mark of its processes."""
    command = [*COMMAND, "simulate", *arguments, "--quiet", "--rounds", "100000", "--out", str(run)]
    with marking() as mark:
        process = subprocess.Popen(
            command, env=environment(**variables, **{MARK: mark}), start_new_session=True
        )
        wait_until(
            lambda: process.poll() is not None or lines(run) > 2,
            START_SECONDS,
            "no round was played",
        )
        assert process.poll() is None
        yield process, mark
    process.wait()
