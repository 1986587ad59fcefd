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
    assert by in said and address in said and "no Ray cluster answers there" in said


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
    assert [row["num_reports"] for row in rows(run)] == ["12"] * 12
    assert model_bytes(here) == model_bytes(run)
    assert summary(here)["shuffled_epsilon"] == summary(run)["shuffled_epsilon"]


APP = """
from __future__ import annotations

import logging
import warnings

import numpy as np
import torch

from fl_shuffle.data import Records


def source(section):
    # Three records are not finite.
    images = np.ones((60, 7), np.float32)
    images[[0, 20, 59]] = np.nan
    return Records(images, np.arange(60) % 3, np.ones((51, 7), np.float32), np.arange(51) % 3, 3)


class Talking(torch.nn.Linear):
    def forward(self, x):
        print("a secret of record 17")
        warnings.warn("a secret of record 17")
        logging.getLogger("mine").error("a secret of record 17")
        return super().forward(x)


def talking(shape, classes):
    return Talking(shape[0], classes)
"""
PROJECT = """
[project]
name = "mine"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "me"

[tool.flwr.app.components]
serverapp = "fl_shuffle.builtin_apps.server.app:app"
clientapp = "fl_shuffle.builtin_apps.clients.app:app"

[tool.flwr.app.config]
resolved = ""
run-directory = ""
resume = ""
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "flwr"])
def test_ray_run_leaves_nothing_of_records_on_disk(
    engine: str, small: Path, tmp_path: Path
) -> None:
    """Session logs are for every local user to read. The terminal of the user shows the count."""
    (tmp_path / "records_of_mine.py").write_text(APP, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    own = tempfile.mkdtemp()  # short: Ray's sockets lie below it
    command = [*COMMAND, "simulate", str(small), "--engine", engine, "--jobs", "1", "--rounds", "1",
               "--out", str(tmp_path / "run")]  # fmt: skip
    for setting in ("data.source=records_of_mine:source", "data.features=none", "data.clients=6",
                    "privacy.unit=record", "model.kind=records_of_mine:talking"):  # fmt: skip
        command += ["--set", setting]
    try:
        variables = {"TMPDIR": own, "RAY_TMPDIR": own}
        paths = str(tmp_path), environment()["PYTHONPATH"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False,
            env=environment(**variables, PYTHONPATH=":".join(paths)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = re.findall(r"of 6 clients have gradients.*, in 3 records;", done.stderr)
        assert len(told) == (1 if engine == "ray" else 0), done.stderr
        logs = [path for path in Path(own).rglob("*") if path.is_file()]
        assert len([path for path in logs if path.name.startswith("worker-")]) > 1
        for path in logs:
            text = path.read_bytes()
            assert b"count as zero" not in text, path
            # What an app of a user's own prints on Flower's runtime is at least for no other user.
            assert b"a secret of record" not in text or engine == "flwr", path
            assert path.stat().st_mode & 0o077 == 0, path
    finally:
        shutil.rmtree(own, ignore_errors=True)
