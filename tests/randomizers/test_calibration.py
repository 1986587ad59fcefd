"""The scale that is drawn is the scale of the plan, exactly: noise from words that are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.noise_words import AesWords
from fl_shuffle.randomizers.personal import make_randomizer
from tests.federation.small_tasks import SIZES, configured, task_of

DIMENSION = 8
BUDGETS = {"distribution": "uniform", "low": 0.5, "high": 4.0, "seed": 2}


@pytest.mark.parametrize(("entropy", "bits"), [("seeded", 32), ("system", 64)])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"budgets": BUDGETS, "server": {"weights": "inverse-variance"}},
        {"budgets": BUDGETS, "privacy": {"personalization": "clipping"}},
    ],
    ids=["equal", "weighted", "common noise"],
)
def test_noise_of_known_words_is_the_plans_scale_times_a_constant(
    more: dict[str, Any], noise: str, entropy: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of U = 1/2 and of the angle 0 make the normal variate sqrt(2 ln 2) and the Laplace
    variate ln 2. Nothing but one rounding to the grid is left between report and scale."""
    tables = configured(entropy, randomizer=noise, unit="client").to_dict()
    for section, values in more.items():
        tables[section] |= values
    config, clients = parse_config(tables), len(SIZES)
    plan = task_of(config).plan
    angles = DIMENSION // 2 if noise == "gaussian" else DIMENSION

    def known(self: AesWords, ids: Any, tile: int, raw: np.ndarray) -> None:
        layout = self.layout
        words = raw[: len(ids) * layout.width * layout.word_bytes].view(f"i{layout.word_bytes}")
        table = words.reshape(len(ids), layout.width)
        table[:, :angles], table[:, angles:] = 1 << (bits - 2), 0

    monkeypatch.setattr(AesWords, "fill", known)
    randomize = make_randomizer(config, plan)
    rows = randomize(torch.zeros(clients, DIMENSION), np.arange(clients), 1)
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
    fourth moment to five percent: another law, or one wide variate for many, has another."""
    scale = np.array(scales)
    present = np.zeros(8, dtype=bool)
    present[:count] = True
    step = np.full(8, 2.0**-20)
    generator = np.random.default_rng(7)
    drawn = AggregateNoise(noise, scale, step).add_to(np.zeros(1 << 20), present, generator)
    wanted = math.fsum(scale[present] ** 2) * (1.0 if noise == "gaussian" else 2.0)
    assert float(np.mean(np.square(drawn))) == pytest.approx(wanted, rel=5e-3)
    fourth = 3.0 * wanted**2 + (0.0 if noise == "gaussian" else 12.0) * math.fsum(
        scale[present] ** 4
    )
    assert float(np.mean(drawn**4)) == pytest.approx(fourth, rel=0.05)
    assert not np.mod(drawn, step[0]).any()
