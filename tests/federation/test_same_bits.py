"""The same seed gives the same model bits, whatever plays the clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_shuffle.flower import strategy
from tests.federation.conftest import Launch, model_bytes, summary

KINDS = {
    "client unit": (),
    "record unit": ("privacy.unit=record",),
    "laplace": ("privacy.unit=record", "privacy.randomizer=laplace"),
    "common noise": ("privacy.personalization=clipping",),
    "weighted": ("server.weights=inverse-variance",),
    "ragged": ("data.sizes=unequal",),
    "part": ("training.participation=0.7",),
    "sequential": ("training.schedule=sequential",),
    "network": ("model.kind=mlp", "model.hidden=[16]", "privacy.unit=record"),
    "local steps": ("training.local_steps=3",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_packing_jobs_and_chunks_do_not_matter(
    kind: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch("one", *KINDS[kind], "run.jobs=1") == 0
    assert launch("again", *KINDS[kind], "run.jobs=1") == 0
    assert launch("many", *KINDS[kind], "run.jobs=5") == 0
    monkeypatch.setattr(strategy, "CHUNK_BYTES", 1)  # one client per message
    assert launch("single", *KINDS[kind], "run.jobs=2") == 0
    first = model_bytes(tmp_path / "one")
    for name in ("again", "many", "single"):
        assert model_bytes(tmp_path / name) == first, name


def test_another_seed_gives_another_model(launch: Launch, tmp_path: Path) -> None:
    assert launch("a") == 0
    assert launch("b", "run.seed=6") == 0
    assert model_bytes(tmp_path / "a") != model_bytes(tmp_path / "b")
    assert launch("c", "run.entropy=system") == 0
    assert launch("d", "run.entropy=system") == 0
    assert model_bytes(tmp_path / "c") != model_bytes(tmp_path / "d")


@pytest.mark.slow
def test_flowers_ray_engine_gives_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    assert launch("here", "run.jobs=2") == 0
    assert launch("ray", options=("--engine", "ray", "--jobs", "2")) == 0
    assert model_bytes(tmp_path / "here") == model_bytes(tmp_path / "ray")
    ours, theirs = summary(tmp_path / "here"), summary(tmp_path / "ray")
    assert ours["proven_epsilon"] == theirs["proven_epsilon"]
    assert {path.name for path in (tmp_path / "here").iterdir()} <= {
        path.name for path in (tmp_path / "ray").iterdir()
    }
