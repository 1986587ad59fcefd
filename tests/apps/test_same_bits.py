"""The same seed gives the same model bits, whatever plays the clients, and whoever else fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from torch import nn

import fl_shuffle as fs
from benchmarks.chaos.hostile import Silent
from clients.app import app as honest
from fl_shuffle.errors import DataError
from fl_shuffle.flower import nodes
from tests.gradients.gradient_modules import choose_path, small_blocks
from tests.small_federation import Launch, model_bytes, summary

pytestmark = pytest.mark.usefixtures("coarse_pairs")


def convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A user's own model, for torch.func."""
    side = round(float(shape[-1]) ** 0.5)
    layers = nn.Unflatten(1, (1, side, side)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4 * (side - 2) ** 2, classes))


POOLED = "run.noise=per-sum"
NETWORK = ("model.kind=mlp", "model.hidden=[300]", "training.participation=0.6",
           "data.sizes=unequal", "data.clients=150")  # fmt: skip
KINDS = {
    "laplace, ragged": ("privacy.unit=record", "privacy.randomizer=laplace", "data.sizes=unequal",
                        "server.weights=inverse-variance"),
    "totals, unequal": ("budgets.of=run", "privacy.release=sum", "privacy.unit=record",
                        "privacy.personalization=clipping", "data.sizes=unequal"),
    "sequential": ("training.schedule=sequential", "privacy.personalization=clipping"),
    "network, part, unequal": NETWORK,
    "convolution": (f"model.kind={__name__}:convolution", "data.features=raw",
                    "privacy.unit=record"),
    "pooled, rows": (POOLED, "training.local_steps=3"),
    "pooled, sums": (POOLED, "privacy.unit=record", "data.sizes=unequal"),
    "pooled, network": (POOLED, *NETWORK),
}  # fmt: skip
COMPILED = ("laplace, ragged", "pooled, rows")


@pytest.mark.parametrize("kind", KINDS)
def test_packing_jobs_and_chunks_do_not_matter(
    kind: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_path(monkeypatch, compiled=kind in COMPILED)
    if kind.startswith("convolution"):
        small_blocks(monkeypatch, 1 << 19)  # of a few clients each
    # Few and small budgets, whose rounds are soon certified.
    budgets = "budgets.levels=2", "budgets.low=0.2", "budgets.high=0.4"
    settings = (*KINDS[kind], *budgets, "run.rounds=2")
    assert launch("one", *settings, "run.jobs=1") == 0
    monkeypatch.setattr(nodes, "HELD_NUMBERS", 1)  # one block per message
    assert launch("many", *settings, "run.jobs=4") == 0
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "many")


def test_another_seed_gives_another_model(launch: Launch, tmp_path: Path) -> None:
    for name, setting in (("a", "run.seed=5"), ("b", "run.seed=6"), ("c", "run.entropy=system"),
                          ("d", "run.entropy=system")):  # fmt: skip
        assert launch(name, setting) == 0
    assert len({model_bytes(tmp_path / name) for name in "abcd"}) == 4


FAILURES = (DataError("a record of mine"), Silent(), ValueError("and now everything is float64"))
"""How the first clients fail: each in its own way, or all like the first."""


def failing(message: Message, context: Context) -> Message:
    reply, first = honest(message, context), message.content.config_records["request"]["first"]
    if first < len(FAILURES):
        alike = context.run_config["alike"]
        torch.set_default_dtype(torch.float32 if alike or first < 2 else torch.float64)
        raise FAILURES[0 if alike else first]
    return reply


def test_a_client_that_fails_is_absent_and_changes_nothing_else(
    launch: Launch, tmp_path: Path
) -> None:
    """What may be sent instead of a report: `tests/flower/test_strategy.py`."""
    settings = ("run.rounds=2", "training.schedule=sequential", f"app.client={__name__}:failing")
    for name in ("in_their_ways", "alike"):
        alike = str(name == "alike").lower()
        assert launch(name, *settings, f"app.config={{alike = {alike}}}") == 0
    result = fs.Result(tmp_path / "in_their_ways")
    assert list(result.metrics["num_reports"]) == [12 - len(FAILURES)] * 2
    for client in range(12):
        assert result.ledger.client(client).rounds == (2 if client >= len(FAILURES) else 0)
    assert model_bytes(tmp_path / "in_their_ways") == model_bytes(tmp_path / "alike")


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["per-report", "per-sum"])
def test_flowers_ray_engine_gives_the_same_bits(
    noise: str, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what its rounds say in another process is heard here; of what Flower, Ray and the clients
    print nothing is kept."""
    shown = []
    for name, options in (("here", ()), ("ray", ("--engine", "ray", "--jobs", "2"))):
        assert launch(name, *NETWORK, f"run.noise={noise}", options=(*options, "--json")) == 0
        lines = map(json.loads, capsys.readouterr().out.splitlines())
        shown.append([{**line, "seconds": 0} for line in lines if line["event"] == "round"])
    assert shown[0] == shown[1] and len(shown[0]) == 3
    here, ray = tmp_path / "here", tmp_path / "ray"
    assert model_bytes(here) == model_bytes(ray)
    assert summary(here)["shuffled_epsilon"] == summary(ray)["shuffled_epsilon"]
    assert {path.name for path in here.iterdir()} == {path.name for path in ray.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in ray.iterdir()} == {0o600}
