"""The same seed gives the same model bits, whatever plays the clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_shuffle.flower import strategy
from fl_shuffle.gradients import linear
from fl_shuffle.randomizers import noise_cpu
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


COMPILED = ("client unit", "record unit", "laplace", "weighted", "ragged", "part", "local steps")


@pytest.mark.parametrize(
    ("kind", "compiled"), [*((kind, False) for kind in KINDS), *((kind, True) for kind in COMPILED)]
)
def test_packing_jobs_and_chunks_do_not_matter(
    kind: str, compiled: bool, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "WORTH_COMPILING", 0 if compiled else 1 << 62)
    assert launch("one", *KINDS[kind], "run.jobs=1") == 0
    assert launch("again", *KINDS[kind], "run.jobs=1") == 0
    assert launch("many", *KINDS[kind], "run.jobs=5") == 0
    monkeypatch.setattr(strategy, "CHUNK_BYTES", 1)  # one client per message
    assert launch("single", *KINDS[kind], "run.jobs=2") == 0
    first = model_bytes(tmp_path / "one")
    for name in ("again", "many", "single"):
        assert model_bytes(tmp_path / name) == first, name


def test_compiled_noise_gives_the_same_bits(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for noise in ("gaussian", "laplace"):
        models = []
        for limit in (0, 1 << 62):
            monkeypatch.setattr(noise_cpu, "COMPILED_FROM", limit)
            assert launch(f"{noise} {limit}", f"privacy.randomizer={noise}") == 0
            models.append(model_bytes(tmp_path / f"{noise} {limit}"))
        assert models[0] == models[1]


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
    # Nothing of what Flower, Ray and the clients print.
    assert {path.name for path in (tmp_path / "here").iterdir()} == {
        path.name for path in (tmp_path / "ray").iterdir()
    }
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ray").iterdir()} == {0o600}
