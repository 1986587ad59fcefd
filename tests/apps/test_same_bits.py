"""The same seed gives the same model bits, whatever plays the clients."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.flower import nodes
from tests.gradients.tuning import choose_path
from tests.small_federation import Launch, model_bytes, summary

pytestmark = pytest.mark.usefixtures("coarse_pairs")

CONVOLUTION = (
    f"model.kind={__name__}:convolution",
    "data.features=raw",
)


class Convolution(nn.Module):
    """A user's own model, for torch.func."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.side = round(math.prod(shape) ** 0.5)
        self.convolution = nn.Conv2d(1, 4, 3)
        self.head = nn.Linear(4 * (self.side - 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        images = x.reshape(len(x), 1, self.side, self.side)
        return self.head(torch.relu(self.convolution(images)).flatten(1))


def convolution(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Convolution(shape, classes)


KINDS = {
    "laplace, ragged": (
        "privacy.unit=record",
        "privacy.randomizer=laplace",
        "data.sizes=unequal",
        "server.weights=inverse-variance",
    ),
    "sequential": ("training.schedule=sequential", "privacy.personalization=clipping"),
    "network, part, unequal": (
        "model.kind=mlp",
        "model.hidden=[300]",
        "training.participation=0.6",
        "data.sizes=unequal",
        "data.clients=150",
    ),
    "convolution": (*CONVOLUTION, "privacy.unit=record"),
    "local steps": ("training.local_steps=3",),
}


@pytest.mark.parametrize(
    ("kind", "compiled"),
    [*((kind, False) for kind in KINDS), ("laplace, ragged", True), ("local steps", True)],
)
def test_packing_jobs_and_chunks_do_not_matter(
    kind: str, compiled: bool, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_path(monkeypatch, compiled=compiled)
    # Few budgets, for few batches to certify.
    settings = (*KINDS[kind], "budgets.levels=2", "run.rounds=2")
    assert launch("one", *settings, "run.jobs=1") == 0
    assert launch("many", *settings, "run.jobs=4") == 0
    monkeypatch.setattr(nodes, "HELD_NUMBERS", 1)  # one block per message
    assert launch("single", *settings, "run.jobs=2") == 0
    first = model_bytes(tmp_path / "one")
    for name in ("many", "single"):
        assert model_bytes(tmp_path / name) == first, name


def test_another_seed_gives_another_model(launch: Launch, tmp_path: Path) -> None:
    assert launch("a") == 0
    assert launch("b", "run.seed=6") == 0
    assert model_bytes(tmp_path / "a") != model_bytes(tmp_path / "b")
    assert launch("c", "run.entropy=system") == 0
    assert launch("d", "run.entropy=system") == 0
    assert model_bytes(tmp_path / "c") != model_bytes(tmp_path / "d")


@pytest.mark.slow
def test_flowers_ray_engine_gives_the_same_bits(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = KINDS["network, part, unequal"]
    shown = []
    for name, options in (("here", ()), ("ray", ("--engine", "ray", "--jobs", "2"))):
        assert launch(name, *kind, options=(*options, "--json")) == 0
        shown.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    # Its rounds run in another process, and are heard of here all the same.
    events = [[event["event"] for event in each] for each in shown]
    assert events[0] == events[1] == ["start", "round", "round", "round", "finish"]
    for ours, theirs in zip(*(each[1:-1] for each in shown), strict=True):
        del ours["seconds"], theirs["seconds"]
        assert ours == theirs
    assert model_bytes(tmp_path / "here") == model_bytes(tmp_path / "ray")
    ours, theirs = summary(tmp_path / "here"), summary(tmp_path / "ray")
    assert ours["proven_epsilon"] == theirs["proven_epsilon"]
    # Nothing of what Flower, Ray and the clients print.
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        path.name for path in (tmp_path / "ray").iterdir()
    }
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ray").iterdir()} == {0o600}
