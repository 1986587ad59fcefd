"""`fl-shuffle new` writes an app that runs as it stands, outside of this repository."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fl_shuffle.cli import main
from tests.repository import ROOT
from tests.simulation.test_ray_ends import (
    COMMAND,
    END_SECONDS,
    MARK,
    START_SECONDS,
    lines,
    linux,
    marked,
    wait_until,
)
from tests.small_federation import model_bytes


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a space").mkdir()
    monkeypatch.chdir(tmp_path / "a space")
    assert main(["new", "my-hospitals"]) == 0
    return tmp_path / "a space" / "my-hospitals"


@pytest.mark.slow
def test_its_own_test_passes_and_it_learns(app: Path) -> None:
    """In processes of their own, which know of this repository as of an installed package."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_ADDOPTS", None)  # those of this suite

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=app, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    run("-m", "fl_shuffle", "simulate", "config.toml", "--quiet", "--rounds=5", "--out", "run")
    summary = json.loads((app / "run" / "summary.json").read_text())
    assert summary["accuracy"] > 0.2 and summary["epsilon"] < 3.0
    assert main(["report", str(app / "run")]) == 0
    # Linters of its owner find nothing to say.
    run("-m", "ruff", "check", "--isolated", ".")
    assert (app / "my_hospitals" / "task.py").is_file()


@linux
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 100_000])
def test_flwr_run_ends_and_nothing_of_it_stays(app: Path, rounds: int) -> None:
    """At its end, with the bits of a run in one process; and on Ctrl-C."""
    pytest.importorskip("ray")
    mark, out = uuid.uuid4().hex, app / "flower run"
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}
    command = [*COMMAND, "simulate", "config.toml", "--quiet", "--rounds", str(rounds)]
    flower = [*command, "--engine", "flwr", "--jobs", "1", "--out", str(out)]
    with subprocess.Popen(flower, cwd=app, env=environment, start_new_session=True) as process:
        try:
            if rounds > 2:
                wait_until(
                    lambda: process.poll() is not None or lines(out) > 2, START_SECONDS, "no round"
                )
                process.send_signal(signal.SIGINT)
            assert process.wait(timeout=START_SECONDS) == (130 if rounds > 2 else 0)
            wait_until(lambda: not marked(mark), END_SECONDS, "processes of the run stay")
        finally:
            for each in marked(mark):
                os.kill(each, signal.SIGKILL)
    if rounds == 2:
        subprocess.run([*command, "--out", "here"], cwd=app, env=environment, check=True)
        assert model_bytes(app / "here") == model_bytes(out)


def test_flwr_run_wants_an_app_that_takes_its_settings(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    run = ["simulate", str(app / "config.toml"), "--budgets", str(app / "budgets.csv"),
           "--engine", "flwr", "--quiet"]  # fmt: skip
    assert main(run) == 2
    assert "names no Flower app; go to the app's folder" in capsys.readouterr().err
    monkeypatch.chdir(app)
    file = app / "pyproject.toml"
    file.write_text(file.read_text().replace('resume = ""\n', ""))
    assert main(run) == 2
    assert capsys.readouterr().err.endswith('add there: resume = ""\n')
