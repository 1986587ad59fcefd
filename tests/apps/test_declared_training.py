"""Clients that train privately themselves, and say how: counted as declared, never as proven."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from scipy.optimize import brentq
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.federation import RunParts
from fl_shuffle.plugins import load_attribute
from tests.apps import strangers
from tests.apps.strangers import ROUNDS, edit, simulate

CLIENTS, SIGMA, CLIP, STEPS, DELTA = 4, 3.0, 0.5, 2, 1e-5


def expected(mu: float) -> float:
    """Epsilon of a Gaussian mechanism at DELTA, from its exact curve."""

    def excess(epsilon: float) -> float:
        return float(
            norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            - DELTA
        )

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


def tables(**privacy: Any) -> dict[str, Any]:
    declared = {"declared_sigma": SIGMA, "declared_steps": STEPS}
    settings = {"randomizer": "declared", "clip_norm": CLIP, **declared, **privacy}
    return {
        "data": {"clients": CLIENTS},
        "privacy": {key: value for key, value in settings.items() if value is not None},
        "app": {"client": "a:b", "server": "a:b"},
    }


@pytest.mark.parametrize(
    ("sigma", "clip", "steps", "release"), [(3.0, 0.5, 2, "reports"), (50.0, 2.0, 64, "sum")]
)
def test_it_composes_the_gaussian_steps(
    sigma: float, clip: float, steps: int, release: str
) -> None:
    """mu = 2 clip / sigma a step, for a replaced record; a client that missed a round pays less."""
    config = parse_config(
        tables(declared_sigma=sigma, clip_norm=clip, declared_steps=steps, release=release)
    )
    accountant = RunParts.made_of(config).accountant(7)
    everybody, most = np.ones(CLIENTS, dtype=bool), np.arange(CLIENTS) != 1
    for number, present in enumerate((everybody, most, everybody), start=1):
        mu = 2.0 * clip / sigma * math.sqrt(steps * number)
        # What a target is compared with.
        after = accountant.client_epsilons_after(1, present)
        assert after[0] == pytest.approx(expected(mu), rel=1e-6)
        spend = accountant.preview(number, present)
        accountant.commit(number, present)
        assert spend.headline == pytest.approx(expected(mu), rel=1e-6)
        assert spend.headline_column == "local"
        assert spend.columns["local"].status is Status.DECLARED
        for name in ("proven", "sum", "gspa", "specific"):
            assert spend.columns[name].worst is None and spend.columns[name].note
    totals = accountant.client_totals()
    assert totals.headline[1] == pytest.approx(expected(2.0 * clip / sigma * math.sqrt(2 * steps)))
    assert np.isnan(totals.proven).all() and np.isnan(totals.sum).all()
    assert all(column.worst is None for column in accountant.lower_columns().values())
    worst = accountant.worst_client()
    assert worst is not None and worst.epsilon == pytest.approx(totals.headline[0])


KIND = "declared"
"""Of the app that is played."""
EPSILON = expected(2.0 / 3.0 * math.sqrt(ROUNDS))
"""Of that app's run, whose clips are 1 and whose noise is 3."""


def test_what_clients_train_is_averaged_and_nothing_is_added(
    torch_app: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model moves by the mean of what clients trained; the number is never called proven."""
    edit(
        Path("torch_app", "client_app.py"),
        ("    arrays = Arr", "    SENT.append(net.state_dict())\n    arrays = Arr"),
        ("@app.train()", "SENT = []\n\n\n@app.train()"),
    )
    assert simulate("run.jobs=1") == 0
    out, err = capsys.readouterr()
    result = fs.Result("run")
    assert result.epsilon == result.ledger.client(2).epsilon == pytest.approx(EPSILON, rel=1e-6)
    assert re.search(r"epsilon +[\d.]+ +as declared by the clients at delta 1e-05", out)
    assert "NOTHING IS PROVEN" in err and "clips over the records of a client's step" in err
    assert not re.search(r"\d +proven", out)
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["headline"] == "local" and summary["proven_epsilon"] is None
    last = load_attribute("torch_app.client_app:SENT", field="")[-strangers.CLIENTS :]
    for name, values in load_file("run/model.safetensors").items():
        mean = np.mean([each[name].numpy() for each in last], axis=0)
        assert values.numpy() == pytest.approx(mean, abs=1e-3)
    assert main(["report", "run"]) == 0
    page = next(Path("run").glob("*.html")).read_text()
    said = re.sub(r"<[^>]*>|\s+", " ", page)
    assert "as declared by the clients" in said and "NOTHING IS PROVEN" in said
    assert not re.search(r"\(proven\)|, proven,|A guarantee of the client|are guarantees", said)
    assert main(["certify", "run"]) == 2
    assert "the run's reports are not Gaussian" in capsys.readouterr().err


MISTAKES = [
    ({"declared_sigma": None}, {}, r"needs privacy\.declared_sigma"),
    ({"declared_sigma": 0.0}, {}, r"privacy\.declared_sigma = 0\.0"),
    ({"declared_steps": 0}, {}, r"privacy\.declared_steps = 0"),
    ({"unit": "client"}, {}, r"set privacy\.unit = 'record'"),
    ({"clip": "average"}, {}, r"leave privacy\.clip out"),
    ({"personalization": "clipping"}, {}, r"one noise for all"),
    ({"reports_per_round": 2}, {}, r"privacy\.reports_per_round = 2: must be 1 with"),
    ({}, {"app": {}}, r"what clients of an app of your own do"),
    ({}, {"server": {"weights": "inverse-variance"}}, r"set server\.weights = 'uniform'"),
]


@pytest.mark.parametrize(("privacy", "more", "told"), MISTAKES)
def test_what_cannot_be_declared_is_one_line(
    privacy: dict[str, Any], more: dict[str, Any], told: str
) -> None:
    with pytest.raises(FlShuffleError, match=told) as error:
        parse_config({**tables(**privacy), **more})
    assert "\n" not in str(error.value)


def test_bound_counts_what_is_declared(torch_app: None, capsys: pytest.CaptureFixture[str]) -> None:
    """And says that nothing of it is proven, and how much noise that is."""
    assert main(["bound", "shuffle.toml"]) == 0
    first, second, noise = capsys.readouterr().out.splitlines()
    assert first.startswith(f"declared cost of 3 rounds, unit = record: epsilon <= {EPSILON:.5g}")
    assert second.startswith("nothing is proven: ")
    # 3 sqrt(10000 / 16), beside clips of 1.
    assert "75 clips over the records of a client's step" in noise
    cost = fs.cost("shuffle.toml")
    assert cost.declared and cost.epsilon == pytest.approx(EPSILON)
    assert main(["bound", "shuffle.toml", "--solve-for", "clients", "--epsilon", "4"]) == 2
    assert "only rounds can be solved for" in capsys.readouterr().err
