"""Joining a Ray cluster: what is refused, and a run that loses one of its machines."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment, free_port
from tests.small_federation import Launch, model_bytes, summary

pytest.importorskip("ray")

ON_RAY = ("--engine", "ray")


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
    cluster: Any, small: Path, launch: Launch, tmp_path: Path
) -> None:
    kind = ("privacy.unit=client", "run.rounds=12")
    assert launch("here", *kind) == 0
    machines = [cluster.add_node(num_cpus=1)]
    run = tmp_path / "cluster"
    settings = [*kind, f"run.ray_address={cluster.address}"]
    command = [sys.executable, "-m", "fl_shuffle", "simulate", str(small), "--quiet"]
    command += [*ON_RAY, "--jobs", "2", "--out", str(run)]
    command += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(command, env=environment()) as process:
        metrics = run / "metrics.csv"
        while process.poll() is None:
            if machines and metrics.exists() and metrics.read_text().count("\n") > 2:
                cluster.remove_node(machines.pop(), allow_graceful=False)
            time.sleep(0.05)
    assert process.returncode == 0 and not machines
    rows = list(csv.DictReader(metrics.open()))
    assert [row["n_reports"] for row in rows] == ["12"] * 12
    assert model_bytes(tmp_path / "here") == model_bytes(run)
    ours, theirs = summary(tmp_path / "here"), summary(run)
    assert ours["proven_epsilon"] == theirs["proven_epsilon"]
