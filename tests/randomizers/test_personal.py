"""A node's reports: nobody is left out for their data, and the noise has the run's word size."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.messages import TrainRequest
from fl_shuffle.randomizers import personal
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.noise import AesWords, NoiseStream
from fl_shuffle.randomizers.personal import make_randomizer
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of
from tests.one_node import OneNode


def means(config: Config, spoil: dict[int, float] | None = None) -> Tensor:
    everybody = np.arange(len(SIZES))
    rows = OneNode(config, task_of(config, spoil)).means(everybody, parameters_of(config))
    assert bool(torch.isfinite(rows).all())
    return rows.double()


@pytest.mark.parametrize(
    ("model", "privacy", "poison"),
    [
        ("linear", {}, math.nan),
        ("linear", {"client_clip_norm": 0.05}, math.nan),
        ("linear", {"randomizer": "laplace"}, 3e38),
        ("linear", {"clip": "average"}, math.inf),
        ("linear", {"unit": "client"}, math.nan),
        ("mlp", {}, math.inf),
        ("own", {"unit": "client", "client_clip_norm": 0.05}, math.nan),
        # A mean turns around: more than once the clip.
        ("linear", {"clip": "average"}, 3e38),
        ("linear", {"unit": "client"}, 3e38),
        ("mlp", {"unit": "client", "client_clip_norm": 0.05}, 3e38),
    ],
)
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
        others_count = config.clipping == "record" and SIZES[client] > 1
        assert not math.isnan(poison) or bool(rows[client].any()) == others_count


@pytest.mark.parametrize(
    ("entropy", "bits", "place"), [("seeded", 32, "meta"), ("system", 64, "cpu")]
)
def test_noise_that_protects_somebody_has_64_bits(
    entropy: str, bits: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is drawn on the processor, wherever the means are."""
    drawn = []

    def watched(*arguments: Any, **options: Any) -> NoiseStream:
        drawn.append(NoiseStream(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(personal, "NoiseStream", watched)
    config = configured(entropy)
    task = task_of(config)
    reports = OneNode(config, task).reports(TrainRequest(1, np.arange(4)), parameters_of(config))
    assert not np.mod(reports.astype(np.float64), task.plan.step[:, None]).any()
    # The audit plays with noise of the run's word size.
    Canaries(config, dimension=5).play(1)
    assert len(drawn) > 1 and {(each.bits, each.device.type) for each in drawn} == {(bits, "cpu")}
    zeros = torch.zeros(4, 27)
    gpu = Mock(shape=zeros.shape, device=torch.device("meta"), cpu=lambda: zeros)
    monkeypatch.setattr(type(task.plan.local), "reports", lambda *_: zeros)
    make_randomizer(config, task.plan)(gpu, np.arange(4), 1)
    assert (drawn[-1].bits, drawn[-1].device.type) == (bits, place)


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace", "discrete-gaussian"])
def test_who_asks_twice_gets_other_noise(randomizer: str) -> None:
    """A worker that is kept, and asked again for the same round with another model: the difference
    of the reports holds two reports' noise, not the two means alone."""
    clip = "average" if randomizer == "discrete-gaussian" else "record"
    config = configured("system", randomizer=randomizer, clip=clip)
    task, theta = task_of(config), parameters_of(config)
    player, request = OneNode(config, task), TrainRequest(1, np.arange(len(SIZES)))
    drawn = np.array([player.reports(request, theta) for _ in range(80)], dtype=np.float64)
    moved = (drawn[:40] - drawn[40:]) / task.plan.scale[:, None]
    # Of one noise the variance is 1 (2 for Laplace, in its scale), of two independent ones twice.
    wanted = 2.0 * (2.0 if randomizer == "laplace" else 1.0)
    assert 0.85 < np.mean(np.square(moved)) / wanted < 1.15
    assert not np.array_equal(*(player.sum_of_reports(request, theta)[0] for _ in range(2)))


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_the_reports_of_a_round_have_noise_of_their_own(entropy: str) -> None:
    """Shared noise would leave one report, shown several times."""
    config = configured(entropy, reports_per_round=3)
    plan, everybody, zeros = task_of(config).plan, np.arange(len(SIZES)), torch.zeros(4, 27)
    randomize = make_randomizer(config, plan)
    drawn = [randomize(zeros.clone(), everybody, k).double().numpy() for k in range(1, 301)]
    noise = np.array(drawn).reshape(300, 3, len(SIZES), 27) / plan.scale[:, None]
    if entropy == "seeded":
        # The first report is that of a round of one.
        alone = make_randomizer(config, replace(plan, reports_per_round=1))
        assert np.array_equal(alone(zeros.clone(), everybody, 1).numpy(), drawn[0][: len(SIZES)])
    size = noise[:, 0].size
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(np.mean(noise[:, a] * noise[:, b]))) < 5.0 / math.sqrt(size)
        assert 0.95 < float(np.mean(np.square(noise[:, a]))) < 1.05


def test_seeded_noise_keeps_its_bits() -> None:
    """Published results hang on it. Means are zero, so no gradient's rounding enters."""
    config = configured()
    rows = torch.zeros(4, 27)
    rows = OneNode(config, task_of(config)).federation.randomizer(rows, np.arange(4), 7)
    digest = hashlib.sha256(np.rint(rows.numpy() * 2.0**8).astype("<i4").tobytes()).hexdigest()
    assert digest == "bde8e010c09f5d9649648ce7367d988f5c19781e1943979fe4783f9ea79d1708"


@pytest.mark.parametrize(("entropy", "bits"), [("seeded", 32), ("system", 64)])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("kind", ["equal", "weighted", "common noise"])
def test_noise_of_known_words_is_the_plans_scale_times_a_constant(
    kind: str, noise: str, entropy: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of U = 1/2 and of the angle 0 make the normal variate sqrt(2 ln 2) and the Laplace
    variate ln 2. Nothing but one rounding to the grid is left between report and scale."""
    tables = configured(entropy, randomizer=noise, unit="client").to_dict()
    if kind != "equal":
        tables["budgets"] = {"distribution": "uniform", "low": 0.5, "high": 4.0, "seed": 2}
    if kind == "weighted":
        tables["server"]["weights"] = "inverse-variance"
    if kind == "common noise":
        tables["privacy"]["personalization"] = "clipping"
    config, clients = parse_config(tables), len(SIZES)
    plan = task_of(config).plan
    angles = 8 // 2 if noise == "gaussian" else 8

    def known(self: AesWords, ids: Any, tile: int, raw: np.ndarray) -> None:
        layout = self.layout
        words = raw[: len(ids) * layout.width * layout.word_bytes].view(f"i{layout.word_bytes}")
        table = words.reshape(len(ids), layout.width)
        table[:, :angles], table[:, angles:] = 1 << (bits - 2), 0

    monkeypatch.setattr(AesWords, "fill", known)
    randomize = make_randomizer(config, plan)
    rows = randomize(torch.zeros(clients, 8), np.arange(clients), 1)
    variate = math.sqrt(2.0 * math.log(2.0)) if noise == "gaussian" else math.log(2.0)
    wanted = plan.weight * plan.scale * variate
    drawn = rows.double().numpy()
    # Of normal variates: the cosine half, then the sine half.
    assert (np.abs(drawn[:, angles:]) <= plan.step[:, None]).all()
    assert (np.abs(drawn[:, :angles] - wanted[:, None]) <= plan.step[:, None]).all()
    assert (plan.step < 1e-4 * wanted).all()


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("scales", [[0.3] * 8, [0.3, 0.3, 0.3, 0.5, 0.5, 0.9, 0.9, 0.2]])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_noise_of_a_whole_round_is_that_of_everybody_who_reported(
    scales: list[float], noise: str, count: int
) -> None:
    """Variance sum of s^2 (twice that for Laplace) to half a percent, on 2^20 coordinates: five
    deviations of the sample variance for Gaussian noise, three for one Laplace variate. And the
    fourth moment to five percent: another distribution, or one wide variate for many, has
    another."""
    scale, step = np.array(scales), np.full(8, 2.0**-20)
    present, generator = np.arange(8) < count, np.random.default_rng(7)
    drawn = AggregateNoise(noise, scale, step).add_to(np.zeros(1 << 20), present, generator)
    wanted = math.fsum(scale[present] ** 2) * (1.0 if noise == "gaussian" else 2.0)
    assert float(np.mean(np.square(drawn))) == pytest.approx(wanted, rel=5e-3)
    excess = 12.0 * math.fsum(scale[present] ** 4) if noise == "laplace" else 0.0
    assert float(np.mean(drawn**4)) == pytest.approx(3.0 * wanted**2 + excess, rel=0.05)
    assert not np.mod(drawn, step[0]).any()


def test_noise_of_a_whole_round_lies_on_the_finest_grid_there() -> None:
    """As the sum of the reports does: of those that are present."""
    noise = AggregateNoise("gaussian", np.array([1.0, 4.0]), np.array([2.0**-16, 2.0**-3]))
    for present, step in (([True, True], 2.0**-16), ([False, True], 2.0**-3)):
        drawn = noise.add_to(np.zeros(500), np.array(present), np.random.default_rng(3))
        assert not np.mod(drawn, step).any() and np.mod(drawn, 2.0 * step).any()
