"""Clients that train privately themselves, and say how: counted as declared, never as proven."""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.federation import RunParts
from fl_shuffle.plugins import installed
from fl_shuffle.runs.facts import warnings_of
from tests.apps.test_strangers import _forgotten  # noqa: F401

CLIENTS, ROUNDS, SIGMA, CLIP, STEPS, DELTA = 4, 3, 3.0, 0.5, 2, 1e-5

CONFIG = f"""
run = {{ rounds = {ROUNDS} }}
data = {{ clients = {CLIENTS} }}
privacy.randomizer = "declared"
privacy.clip_norm = {CLIP}
privacy.declared_sigma = {SIGMA}
privacy.declared_steps = {STEPS}
app = {{ server = "dpapp:server", client = "dpapp:client" }}
"""

APP = """
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy

server, client = ServerApp(), ShuffleClientApp(beside=__file__)
SENT = {}


@client.train()
def train(message, context):
    net = nn.Linear(5, 3)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number = context.node_config["partition-id"]
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(24, 5, generator=draw)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=12)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5), data_loader=loader,
        noise_multiplier=6.0, max_grad_norm=0.5, poisson_sampling=False,
    )
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(inputs), labels).backward()
        optimizer.step()
    SENT.setdefault(message.content["config"]["server-round"], {})[number] = net.state_dict()
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)


@server.main()
def main(grid, context):
    strategy = ShuffleStrategy.of(context, beside=__file__)
    strategy.start(grid, ArrayRecord(nn.Linear(5, 3).state_dict()))
"""


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
    ("sigma", "clip", "steps", "release"),
    [
        (3.0, 0.5, 2, "reports"),
        (3.0, 0.5, 2, "sum"),
        (0.9, 1.0, 1, "reports"),
        (50.0, 2.0, 64, "sum"),
    ],
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
        spend = accountant.preview(number, present)
        accountant.commit(number, present)
        mu = 2.0 * clip / sigma * math.sqrt(steps * number)
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


def test_a_target_holds_for_what_is_declared() -> None:
    accountant = RunParts.made_of(parse_config(tables())).accountant(7)
    assert isinstance(accountant, Accountant)
    after = accountant.client_epsilons_after(1, np.ones(CLIENTS, dtype=bool))
    assert after == pytest.approx(expected(2.0 * CLIP / SIGMA * math.sqrt(STEPS)))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dp.toml").write_text(CONFIG)
    (tmp_path / "dpapp.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(not installed("opacus"), reason="Opacus is not installed")
def test_opacus_trains_and_nothing_is_added(
    app: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model moves by the mean of what clients trained; the number is never called proven."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(["simulate", "dp.toml", "--out", "run", "--set", "run.jobs=1"]) == 0
    out, err = capsys.readouterr()
    epsilon = expected(2.0 * CLIP / SIGMA * math.sqrt(STEPS * ROUNDS))
    result = fs.Result("run")
    assert result.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert re.search(r"epsilon +[\d.]+ +as declared by the clients at delta 1e-05", out)
    assert "NOTHING IS PROVEN" in err and "clips over the records of a client's step" in err
    assert not re.search(r"\d +proven", out)
    assert result.ledger.client(2).epsilon == pytest.approx(epsilon, rel=1e-6)
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["headline"] == "local" and summary["proven_epsilon"] is None
    assert summary["columns"]["local"]["status"] == "as declared by the clients"
    from dpapp import SENT  # type: ignore[import-not-found]
    from safetensors.torch import load_file

    final = load_file("run/model.safetensors")
    for name, values in final.items():
        sent = [SENT[ROUNDS][client][name] for client in range(CLIENTS)]
        assert values.numpy() == pytest.approx(
            np.mean([each.numpy() for each in sent], axis=0), abs=1e-3
        )
    assert main(["simulate", "dp.toml", "--out", "quiet", "--quiet"]) == 0
    assert "as declared by the clients" in capsys.readouterr().out
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
    ({"declared_sigma": math.nan}, {}, r"privacy\.declared_sigma = nan"),
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


def test_bound_counts_what_is_declared(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says that nothing of it is proven, and how much noise that is."""
    epsilon = expected(2.0 * CLIP / SIGMA * math.sqrt(STEPS * ROUNDS))
    assert main(["bound", "dp.toml"]) == 0
    first, second, noise = capsys.readouterr().out.splitlines()
    assert first.startswith(f"declared cost of 3 rounds, unit = record: epsilon <= {epsilon:.5g}")
    assert second.startswith("nothing is proven: ")
    # 3 sqrt(10000 / 4) beside 0.5 sqrt(2).
    assert "212.1 clips over the records of a client's step" in noise
    assert "for a model of 10,000 numbers" in noise
    assert main(["bound", "dp.toml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(epsilon)
    assert found["status"] == "as declared by the clients" and found["proven_over_lower"] is None
    cost = fs.cost("dp.toml")
    assert cost.declared and cost.epsilon == found["epsilon"]
    assert main(["bound", "dp.toml", "--grid", "run.rounds=2,3"]) == 0
    assert "declared epsilon" in capsys.readouterr().out
    assert main(["bound", "dp.toml", "--solve-for", "rounds", "--epsilon", "4"]) == 0
    assert "run.rounds <= 3 for epsilon <= 4" in capsys.readouterr().out
    for name in ("clients", "epsilon0", "reports-per-round"):
        assert main(["bound", "dp.toml", "--solve-for", name, "--epsilon", "4"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "only rounds can be solved for" in line and "privacy.declared_sigma" in line


@pytest.mark.parametrize(
    ("budgets", "idle"), [({}, False), ({"epsilon": 0.4}, True), ({"distribution": "unif2"}, True)]
)
def test_budgets_that_do_not_act_are_told(budgets: dict[str, Any], idle: bool) -> None:
    config = parse_config({**tables(), "budgets": budgets})
    said = warnings_of(config, RunParts.made_of(config).facts(18, ()))
    assert any(each.startswith("budgets do not act") for each in said) is idle


def test_records_that_are_given_get_no_noise_so_they_are_refused(
    app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "from flwr.app import ArrayRecord\nfrom flwr.serverapp import ServerApp\n"
        "from torch import nn\nfrom fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy\n"
        "server = ServerApp()\nmodel = lambda: nn.Linear(5, 3)\n"
        "client = ShuffleClientApp(records=lambda context: None, model=model)\n"
        "@server.main()\ndef main(grid, context):\n"
        "    ShuffleStrategy.of(context, beside=__file__).start(\n"
        "        grid, ArrayRecord(model().state_dict()))\n"
    )
    (app / "dpapp.py").write_text(text)
    assert main(["simulate", "dp.toml", "--out", "run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("fl-shuffle: error: ")]
    assert "no noise would be added to gradients" in line
