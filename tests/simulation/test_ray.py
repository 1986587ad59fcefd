"""Runs on Ray: whatever ends the command ends every process of it; a cluster may lose a machine."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.ledger.reader import LedgerRecord
from tests.processes import (
    COMMAND,
    END_SECONDS,
    environment,
    free_port,
    lines,
    linux,
    marked,
    playing,
    require_ended,
)
from tests.small_federation import Launch, Play, model_bytes, rows, summary

pytest.importorskip("ray")

ON_RAY = ("--engine", "ray")


@pytest.fixture
def started(small: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    own = tempfile.mkdtemp()  # short: Ray's sockets lie below it
    with playing(tmp_path / "run", str(small), *ON_RAY, "--jobs", "1", TMPDIR=own) as run:
        yield run
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
    require_ended(mark)
    played = lines(tmp_path / "run")
    # What was played is on the bill (the last round with the next one's reservation; the file of
    # metrics has a head), and nothing is added.
    assert len(LedgerRecord(tmp_path / "run" / "ledger.sqlite").attempts) >= played - 2
    time.sleep(1.0)
    assert lines(tmp_path / "run") == played


@pytest.mark.parametrize(
    ("by", "address"),
    [
        ("run.ray_address", f"127.0.0.1:{free_port()}"),
        ("RAY_ADDRESS", "ray://127.0.0.1:10001"),
        ("RAY_ADDRESS", "127.0.0.1:70000"),
    ],
    ids=["nobody listens", "Ray's client", "no port"],  # the same in every worker of pytest
)
def test_an_address_that_leads_nowhere_is_one_line(
    by: str, address: str, launch: Launch,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RAY_ADDRESS", address if by == "RAY_ADDRESS" else "not looked at")
    setting = [] if by == "RAY_ADDRESS" else [f"run.ray_address={address}"]
    assert launch("run", *setting, options=(*ON_RAY, "--jobs", "2")) == 2
    said = capsys.readouterr().err
    assert said.startswith("fl-shuffle: error: ") and said.count("\n") == 1
    assert by in said and address in said and "nobody listens there" in said


def test_a_cluster_wants_to_know_the_number_of_workers(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run", "run.ray_address=auto", options=ON_RAY) == 2
    assert "run.jobs is missing" in capsys.readouterr().err


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head with one processor."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1}
    try:
        found = Cluster(initialize_head=True, head_node_args=head)
    except RuntimeError:
        # Seen once in many runs: Ray's server had died before it wrote a line. Its starts are not
        # what is tested here.
        found = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield found
    finally:
        found.shutdown()


@pytest.mark.slow
def test_a_machine_that_dies_costs_no_report(
    cluster: Any, small: Path, play: Play, tmp_path: Path
) -> None:
    kind = ("privacy.unit=client", "run.rounds=12")
    here, run = play("here", *kind), tmp_path / "cluster"
    machines = [cluster.add_node(num_cpus=1)]
    command = [*COMMAND, "simulate", str(small), "--quiet", *ON_RAY, "--jobs", "2",
               "--out", str(run)]  # fmt: skip
    for setting in (*kind, f"run.ray_address={cluster.address}"):
        command += ["--set", setting]
    with subprocess.Popen(command, env=environment()) as process:
        while process.poll() is None:
            if machines and lines(run) > 2:
                cluster.remove_node(machines.pop(), allow_graceful=False)
            time.sleep(0.05)
    assert process.returncode == 0 and not machines
    assert [row["n_reports"] for row in rows(run)] == ["12"] * 12
    assert model_bytes(here) == model_bytes(run)
    assert summary(here)["proven_epsilon"] == summary(run)["proven_epsilon"]
