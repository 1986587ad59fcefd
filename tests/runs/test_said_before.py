"""What is said of a run before it is played: noise of its mean, and whether budgets act."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl_shuffle as fs
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.randomizer_plan import make_plan
from fl_shuffle.randomizers.personal import make_randomizer
from fl_shuffle.run_words import noise_words
from tests.small_federation import Launch, notes

PRIVACY = [{}, {"randomizer": "laplace"}, {"personalization": "clipping"}, {"client_clip": 0.1}]


@pytest.mark.parametrize("privacy", PRIVACY, ids=str)
@pytest.mark.parametrize("weights", ["uniform", "inverse-variance"])
def test_the_noise_of_the_mean_is_as_long_as_it_is_drawn(
    privacy: dict[str, Any], weights: str
) -> None:
    """The randomizers themselves, asked to randomize nothing."""
    tables = {
        "data": {"clients": 40},
        "privacy": {"unit": "client", "clip_norm": 0.5, **privacy},
        "budgets": {"distribution": "uniform", "low": 1.0, "high": 9.0},
        "server": {"weights": weights},
    }
    config, dimension = parse_config(tables), 2000
    plan = make_plan(config, make_budgets(config.budgets, 40), np.ones(40, dtype=np.int64))
    randomizer = make_randomizer(config, plan, None)
    drawn = [
        torch.linalg.vector_norm(randomizer(torch.zeros(40, dimension), np.arange(40), n).mean(0))
        for n in range(1, 4)
    ]
    clips = float(np.mean(drawn) / np.mean(plan.weight * plan.radius))
    found = [plan.noise_of_mean(dimension, share) or 0.0 for share in (1.0, 0.25)]
    # The length of 2,000 variates has a relative deviation of 1/60, Laplace's more.
    assert found[0] == pytest.approx(clips, rel=0.08) and found[1] == pytest.approx(2 * found[0])


def test_the_noise_of_what_is_declared() -> None:
    """As clients train who have nothing to learn: steps over 20 records with noise on their sum."""
    clients, sigma, clip, batch, steps, dimension = 8, 3.0, 0.5, 20, 4, 5000
    declared = {"randomizer": "declared", "clip_norm": clip, "declared_sigma": sigma}
    privacy, app = {**declared, "declared_steps": steps}, {"client": "a:b", "server": "a:b"}
    config = parse_config({"data": {"clients": clients}, "privacy": privacy, "app": app})
    plan = make_plan(config, make_budgets(config.budgets, clients), np.ones(clients, np.int64))
    size = (clients // 2, steps, dimension)
    draws = np.random.default_rng(1).normal(scale=sigma / batch, size=size)
    drawn = np.linalg.norm(draws.sum(axis=1).mean(axis=0))
    found = plan.noise_of_mean(dimension, 0.5)
    assert found is not None and found / batch == pytest.approx(drawn / (steps * clip), rel=0.05)
    assert noise_words(125.23, None) == (
        "noise of the mean: 125.2 clips over the records of a client's step; about 125 of them in "
        "each step would make it 1"
    )


@pytest.mark.parametrize(("epsilon", "hopeless"), [(0.1, True), (40.0, False)])
def test_simulate_report_and_bound_say_the_same(
    epsilon: float,
    hopeless: bool,
    launch: Launch,
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = ["budgets.distribution=constant", f"budgets.epsilon={epsilon}"]
    assert launch("run", *settings, quiet=False) == 0
    kind = "warning" if hopeless else "noise"
    (told,) = [text for text in notes(tmp_path / "run", kind) if "noise of the mean" in text]
    said = told.split(";")[0]
    assert said.startswith("noise of the mean: ")
    assert said in capsys.readouterr().err.split("reports  accuracy")[0]
    assert said in fs.Result(tmp_path / "run").report(tmp_path / "page.html").read_text()
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert main(["bound", str(small), *arguments]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "noise of the mean" in x]
    assert line.startswith("warning: ") is hopeless and "650 numbers" in line
    assert line.removeprefix("warning: ").startswith(said)


def test_of_an_own_app_the_size_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read or built: the app is not there."""
    config, app = tmp_path / "app.toml", "{ server = 'no.where:app', client = 'no.where:app' }"
    config.write_text(f"app = {app}\ndata.clients = 10\nprivacy.unit = 'client'\n")
    assert main(["bound", str(config)]) == 0
    assert "for a model of 10,000 numbers" in capsys.readouterr().out
    found = fs.cost(str(config))
    assert found.dimension is None and found.noise_of_mean is not None


IDLE = "budgets do not act"


@pytest.mark.parametrize(
    ("settings", "idle"),
    [
        (["privacy.release=sum"], True),
        (["privacy.release=sum", "privacy.randomizer=laplace"], False),
        (["privacy.release=sum", "privacy.assumed_honest=0.5"], False),
        (["privacy.release=sum", "server.weights=inverse-variance"], False),
    ],
    ids=str,
)
def test_a_run_in_which_budgets_do_not_act_says_so(
    settings: list[str], idle: bool, launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", *settings, "run.rounds=1") == 0
    assert any(text.startswith(IDLE) for text in notes(tmp_path / "run", "warning")) is idle
    ledger = fs.Result(tmp_path / "run").ledger
    spent = {ledger.client(client).epsilon for client in range(12)}
    assert (len(spent) == 1) is idle
