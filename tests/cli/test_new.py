"""`fl-shuffle new` writes an app that runs as it stands, outside of this repository."""

from __future__ import annotations

import signal
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.flower.simulation_runtime import PASSED
from tests.processes import MARK, START_SECONDS, linux, marking, playing, printed, require_ended
from tests.repository import ROOT
from tests.small_federation import model_bytes, summary

FLOWER = "--engine", "flwr", "--jobs", "1"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The new app's folder, which is the current one."""
    (tmp_path / "a space").mkdir()
    monkeypatch.chdir(tmp_path / "a space")
    assert main(["new", "my-hospitals"]) == 0
    monkeypatch.chdir("my-hospitals")
    return Path.cwd()


def test_it_has_a_budget_for_each_client_of_three_levels(app: Path) -> None:
    """As its configuration names them."""
    config = resolve_config("config.toml")
    budgets = make_budgets(config.budgets, config.data.clients)
    levels, counts = np.unique(budgets.epsilon, return_counts=True)
    assert levels.tolist() == [4.0, 8.0, 16.0] and np.ptp(counts) == 0
    assert len(budgets) == config.data.clients and (budgets.delta == 1e-5).all()


@linux
@pytest.mark.slow
def test_its_own_test_passes_and_it_learns_on_every_engine(app: Path) -> None:
    """In processes of their own, which know of this repository as of an installed package."""
    pytest.importorskip("ray")

    run = partial(printed, sys.executable, "-m", PYTEST_ADDOPTS="")  # not those of this suite
    run("pytest", "-q", "-p", "no:cacheprovider", "tests")
    simulate = "fl_shuffle", "simulate", "config.toml", "--quiet", "--rounds=5"
    run(*simulate, "--out", "run")
    final = summary(app / "run")
    assert final["accuracy"] > 0.2 and final["epsilon"] < 3.0  # type: ignore[operator]
    assert main(["report", "run"]) == 0
    with marking() as mark:
        run(*simulate, *FLOWER, "--out", "flower run", **{MARK: mark})
        require_ended(mark)
    assert model_bytes(app / "run") == model_bytes(app / "flower run")
    # Linters of its owner find nothing to say.
    run("ruff", "check", "--isolated", ".")
    assert (app / "my_hospitals" / "task.py").is_file()


@linux
@pytest.mark.slow
def test_on_ctrl_c_nothing_of_flwr_run_stays(app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    with playing(app / "flower run", "config.toml", *FLOWER) as (process, mark):
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=START_SECONDS)
        # Ray ends the whole process by itself where a thread of Flower's asks it for something
        # after it was shut down.
        assert code == 130 or "core worker has already been shutdown" in capfd.readouterr().err
        require_ended(mark)


def test_flwr_run_wants_an_app_that_takes_its_settings(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    run = ["simulate", str(app / "config.toml"), "--budgets", str(app / "budgets.csv"), *FLOWER]
    run += ["--out", "flower run"]
    monkeypatch.chdir(tmp_path)
    assert main(run) == 2
    assert "names none; go to the app's folder" in capsys.readouterr().err
    monkeypatch.chdir(app)
    file = app / "pyproject.toml"
    file.write_text(file.read_text().replace('resume = ""\n', ""))
    assert main(run) == 2
    assert capsys.readouterr().err.endswith('add there: resume = ""\n')


def test_new_app_config_has_every_key_of_a_run(app: Path) -> None:
    """`flwr run --run-config` refuses keys that the app's own file does not have."""
    here, shipped = (
        tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
        for folder in (app, ROOT)
    )
    assert here.keys() == shipped.keys()
    assert set(PASSED) <= here.keys()


@linux
@pytest.mark.slow
def test_deploy_script_runs_stops_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink, two SuperNodes and a separate shuffler; nothing of them stays."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-clinics", "--deploy"]) == 0
    with marking() as mark:
        said = printed("./deploy.sh", folder=tmp_path / "my-clinics", **{MARK: mark})
        require_ended(mark)
    assert "successfully stopped" in said
    run = tmp_path / "my-clinics" / "deployment" / "run"
    assert summary(run)["rounds"] == 4 and (run / "report.html").is_file()
