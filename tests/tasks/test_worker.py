"""A node's reports: nobody is left out for their data, and the noise has the run's word size."""

from __future__ import annotations

import hashlib
import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_shuffle import planned_noise
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.records import TrainRequest
from fl_shuffle.gradients import NonfiniteRecords
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.tasks import canaries
from fl_shuffle.tasks.canaries import Canaries
from fl_shuffle.tasks.worker import Worker
from tests.tasks.small_tasks import MODELS, SIZES, configured, parameters_of, task_of


def means(config: Config, spoil: dict[int, float] | None = None) -> Tensor:
    everybody = np.arange(len(SIZES))
    rows, _ = Worker(config, task_of(config, spoil)).means(everybody, parameters_of(config))
    assert bool(torch.isfinite(rows).all())
    return rows.double()


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize(
    "privacy",
    [
        {},
        {"client_clip": 0.05},
        {"randomizer": "laplace"},
        {"clip": "average"},
        {"unit": "client"},
        {"unit": "client", "client_clip": 0.05},
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_a_nonfinite_record_moves_a_mean_by_no_more_than_the_plan_says(
    model: str, privacy: dict[str, Any], poison: float
) -> None:
    config = configured(model=model, **privacy)
    plan = task_of(config).plan
    clean = means(config)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    for client in range(len(SIZES)):
        rows = means(config, {int(offsets[client]): poison})
        others = [k for k in range(len(SIZES)) if k != client]
        assert torch.equal(rows[others], clean[others])
        moved = float(torch.linalg.vector_norm((rows - clean)[client], plan.norm))
        assert moved <= plan.sensitivity[client] * (1.0 + 1e-5)
        assert float(torch.linalg.vector_norm(rows[client], plan.norm)) <= plan.radius[client]
        whole = config.clip != "record" or SIZES[client] == 1
        if math.isnan(poison) and whole:
            assert not rows[client].any()
        elif math.isnan(poison):
            assert rows[client].any()


def test_local_steps_that_overflow_are_a_zero_mean() -> None:
    base = configured(unit="client").to_dict()
    base["training"]["local_steps"] = 3
    config = parse_config(base)
    clean, rows = means(config), means(config, {0: math.nan})
    assert not rows[0].any()
    assert torch.equal(rows[1:], clean[1:])


@pytest.mark.parametrize(
    ("model", "path"),
    [("linear", "closed-form linear"), ("mlp", "closed-form mlp"), ("own", "closed-form network")],
)
def test_the_log_says_once_how_gradients_are_computed(
    model: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(model=model)
    player = Worker(config, task_of(config))
    caplog.set_level(logging.INFO, logger="fl_shuffle.client")
    for number in (1, 2):
        player.reports(TrainRequest(number, 0, 4), parameters_of(config))
    assert [record.message for record in caplog.records] == [f"gradients: {path}"]


@pytest.mark.parametrize("privacy", [{}, {"clip": "average"}, {"unit": "client"}])
def test_everybody_sends_a_report_and_only_the_log_tells(
    privacy: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(**privacy)
    task = task_of(config, {0: math.nan, 5: math.inf, 6: math.nan})
    caplog.set_level(logging.WARNING)
    theta = parameters_of(config)
    reports = Worker(config, task).reports(TrainRequest(2, 0, 4), theta)
    assert np.isfinite(reports).all()
    [said] = caplog.records
    assert said.name == "fl_shuffle.client"
    assert "2 of 4 clients" in said.message
    assert ("in 3 records" in said.message) == (config.clip == "record")
    caplog.clear()
    clean = Worker(config, task_of(config)).reports(TrainRequest(2, 0, 4), theta)
    assert not caplog.records
    assert np.array_equal(reports[2:], clean[2:])
    # The noise is the same, so the reports differ by the means and the rounding to the grid.
    nonfinite = {0: math.nan, 5: math.inf, 6: math.nan}
    difference = means(config, nonfinite) - means(config)
    found = torch.from_numpy(reports.astype(np.float64) - clean)
    assert float((found - difference).abs().max()) <= 1.01 * float(task.plan.step.max())


@pytest.mark.parametrize(("entropy", "bits"), [("seeded", 32), ("system", 64)])
def test_noise_that_protects_somebody_has_64_bits(
    entropy: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    class Watched(NoiseStream):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            drawn.append(self.bits)

    monkeypatch.setattr(planned_noise, "NoiseStream", Watched)
    config = configured(entropy)
    task = task_of(config)
    reports = Worker(config, task).reports(TrainRequest(1, 0, 4), parameters_of(config))
    assert drawn == [bits]
    assert not np.mod(reports.astype(np.float64), task.plan.step[:, None]).any()
    # The audit plays with noise of the run's word size.
    Canaries(config, dimension=5).play(1)
    assert drawn and set(drawn) == {bits}
    assert canaries.Worker is Worker


@pytest.mark.parametrize(("entropy", "place"), [("seeded", "meta"), ("system", "cpu")])
def test_noise_that_protects_somebody_is_drawn_on_the_processor(
    entropy: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a GPU: means come from the device `meta`, whose `cpu()` here is zeros."""
    config = configured(entropy)
    player = Worker(config, task_of(config))
    drawn = []

    class Watched(NoiseStream):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            drawn.append((self.device.type, self.generator))

    class Rows(Tensor):
        def cpu(self) -> Tensor:
            return torch.zeros(self.shape)

    rows = torch.empty((4, 27), device="meta").as_subclass(Rows)
    monkeypatch.setattr(player, "means", lambda *_: (rows, NonfiniteRecords(0)))
    monkeypatch.setattr(player, "_device", torch.device("meta"))
    monkeypatch.setattr(planned_noise, "NoiseStream", Watched)
    if entropy == "seeded":
        monkeypatch.setattr(planned_noise, "randomize_rows_", lambda *_, **__: None)
    reports = player.reports(TrainRequest(1, 0, 4), parameters_of(config))
    assert drawn == [(place, "aes" if place == "cpu" else "philox")]
    assert bool(reports.any()) == (entropy == "system")


def picky(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> np.ndarray:
    """A user's randomizer that fails on one client's mean."""
    if float(np.abs(mean).max()) == 0.0:
        raise ArithmeticError("nothing to say")
    return mean + generator.laplace(size=mean.size)


def test_a_users_randomizer_that_raises_costs_its_own_client_alone_the_report() -> None:
    config = configured(randomizer=f"{__name__}:picky", clip="average")
    parameters = parameters_of(config)
    reports = Worker(config, task_of(config)).reports(TrainRequest(1, 0, 4), parameters)
    # The spoilt record's client has a mean of zero.
    spoilt = Worker(config, task_of(config, {4: math.nan}))
    with_failure = spoilt.reports(TrainRequest(1, 0, 4), parameters)
    assert np.isnan(with_failure[1]).all() and np.isfinite(reports).all()
    np.testing.assert_array_equal(with_failure[[0, 2, 3]], reports[[0, 2, 3]])


def test_seeded_noise_keeps_its_bits() -> None:
    """Published results hang on it. Means are zero, so no gradient's rounding enters."""
    config = configured()
    rows = torch.zeros(4, 27)
    Worker(config, task_of(config)).randomize_(rows, np.arange(4), 7)
    digest = hashlib.sha256(np.rint(rows.numpy() * 2.0**8).astype("<i4").tobytes()).hexdigest()
    assert digest == "bde8e010c09f5d9649648ce7367d988f5c19781e1943979fe4783f9ea79d1708"


@pytest.mark.parametrize(
    ("bits", "radius", "covered"),
    [
        (32, 0.003, False),
        (32, 0.006, True),
        (32, 4.8, True),
        (32, 5.0, False),
        (64, 1e-7, True),
        (64, 1.0, True),
        (64, 8.2, True),
        (64, 8.5, False),
    ],
)
def test_where_neighbouring_radii_are_closer_than_the_grid(
    bits: int, radius: float, covered: bool
) -> None:
    """The numbers of docs/noise.md: gaps of R = sqrt(-2 ln U), in sigma, against 2^-16."""
    unit = 2.0 ** (1 - bits)
    word = round(math.exp(-radius * radius / 2.0) / unit)
    real, digits = (np.float32, 24) if bits == 32 else (np.float64, 53)
    # Neighbouring words, or neighbouring floats where words have more digits than floats.
    apart = 1 << max(0, word.bit_length() - digits)
    words = word - apart * np.arange(8, dtype=np.int64)
    uniform = (words.astype(real) + real(0.5)) * real(unit)
    gaps = np.diff(np.sqrt(-np.log(uniform * uniform)).astype(np.float64))
    assert gaps.min() >= 0 and gaps.max() > 0
    assert (gaps.max() < 2.0**-16) == covered
