"""A second clip of the clients' means: how far one record can still move the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.clipper import Records, make_clipper
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.randomizer_plan import make_plan
from fl_shuffle.randomizers.per_client import weigh_

RECORDS, SECOND = 20, 0.35


def configured(weights: str = "uniform", **privacy: Any) -> Config:
    """Two clients, in the record unit."""
    return parse_config(
        {
            "data": {"clients": 2},
            "privacy": {"unit": "record", "clip_norm": 1.0, **privacy},
            "server": {"weights": weights},
        }
    )


@pytest.mark.parametrize(("randomizer", "norm"), [("laplace", 1), ("gaussian", 2)])
def test_no_record_moves_the_clipped_mean_further_than_accounted(
    randomizer: str, norm: int
) -> None:
    """The worst kind of neighbours: a mean along one axis, about as long as the clip, and a record
    across it that turns around."""
    worst, draw = 0.0, np.random.default_rng(7)
    for _ in range(200):
        records = torch.zeros(2, RECORDS, 3)
        records[:, 2:, 0] = SECOND * RECORDS / (RECORDS - 2) * draw.uniform(0.9, 1.1)
        records[:, 1, 1], records[0, 0, 1], records[1, 0, 1] = 1.0, -1.0, 1.0
        means = records.mean(dim=1)
        clip_rows(means, SECOND, norm)
        worst = max(worst, float(torch.linalg.vector_norm((means[0] - means[1]).double(), norm)))
    config = configured(randomizer=randomizer, client_clip=SECOND)
    plan = make_plan(config, Budgets(np.ones(2), np.full(2, 1e-5)), np.full(2, RECORDS))
    assert worst <= plan.sensitivity[0] * (1 + 1e-5)
    # In l2 that is one record's own reach, 2C/B; in l1 scaling is not a contraction.
    assert worst > (1.2 if norm == 1 else 0.9) * 2.0 / RECORDS


def all_alike(radius: float, many: int, draw: np.random.Generator) -> list[np.ndarray]:
    """All coordinates equal, and all a record's share lower: products with a weight round each
    of them alike."""
    before = np.full(DIMENSION, draw.uniform(0.5, 1.0) * radius / DIMENSION**0.5, np.float32)
    spacing = np.spacing(before[0])
    share = np.floor(2.0 * radius / many / DIMENSION**0.5 / spacing) * spacing
    return [before, before - share.astype(np.float32)]


def at_the_sphere(
    radius: float, many: int, second: float, draw: np.random.Generator
) -> list[np.ndarray]:
    """Of many pairs of means a little longer than the second clip (or as long as they may be), and
    as far apart as a record's share across them, that which this clip carries farthest apart."""
    trials = 20_000
    before = draw.standard_normal((trials, DIMENSION))
    longest = np.minimum(second * draw.uniform(1.0, 1.00001, (trials, 1)), 0.999 * radius)
    before *= longest / lengths(before)
    across = draw.standard_normal((trials, DIMENSION))
    across -= before * np.sum(before * across, axis=1, keepdims=True) / lengths(before) ** 2
    after = before + across * (0.97 * 2.0 * radius / many) / lengths(across)
    both = [rows.astype(np.float32) for rows in (before, after)]
    clipped = [torch.from_numpy(rows.copy()) for rows in both]
    for rows in clipped:
        clip_rows(rows, second, 2)
    given, left = (
        lengths(a.astype(np.float64) - b) for a, b in (both, [c.numpy() for c in clipped])
    )
    allowed = (given > 0.9 * 2.0 * radius / many) & (given <= 2.0 * radius / many)
    best = int(np.argmax(np.where(allowed, left, 0.0)))
    return [rows[best] for rows in both]


def lengths(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1, keepdims=True)


DIMENSION = 27
"""Of a linear model of 8 features and 3 classes."""


def stretched(
    config: Config,
    many: int,
    pair: Callable[[float, int], list[np.ndarray]],
    monkeypatch: pytest.MonkeyPatch,
) -> float:
    """How far the weighted mean of a client of so many records moves if the engine returns the
    `pair`'s rows, as far apart as its clip allows: a share of what the plan says."""
    budgets = Budgets(np.array([1.0, 2.5]), np.full(2, 1e-5))
    plan = make_plan(config, budgets, np.full(2, many))
    inputs, labels = torch.zeros(1, 8), torch.zeros(1, dtype=torch.int64)
    records = Records(inputs.expand(2 * many, 8), labels.expand(2 * many), many * np.arange(3))
    engine = make_gradient_engine(nn.Linear(8, 3), shape=(8,), clip="record")
    rows: list[np.ndarray] = []

    def returned(*given: Any, nonfinite: object) -> torch.Tensor:
        radius = float(np.broadcast_to(given[4], 2)[0])
        if not rows:
            rows.extend(pair(radius, many))
            assert 0.9 < many * apart(rows) / (2.0 * radius) <= 1.0
            assert all(np.linalg.norm(row.astype(np.float64)) <= radius for row in rows)
        return torch.from_numpy(np.stack([rows[len(means)]] * 2))

    monkeypatch.setattr(engine, "client_means", returned)
    clip = make_clipper(config, records, plan, engine)
    means: list[np.ndarray] = []
    for _ in range(2):
        made = clip(torch.zeros(DIMENSION), np.arange(2))
        weigh_(made, plan.weight)
        means.append(made.numpy()[0])
    return apart(means) / float((plan.weight * plan.sensitivity)[0])


def apart(rows: list[np.ndarray]) -> float:
    return float(np.linalg.norm(np.subtract(*rows, dtype=np.float64)))


def test_a_rounded_weight_keeps_the_move_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = partial(all_alike, draw=np.random.default_rng(1))
    config = configured("inverse-variance")
    ratios = [stretched(config, 65_536, pair, monkeypatch) for _ in range(60)]
    assert 0.99 < max(ratios) <= 1.0


def test_a_rounded_second_clip_keeps_the_move_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(clip_norm=1.01, client_clip=1.0)
    pair = partial(at_the_sphere, second=1.0, draw=np.random.default_rng(1))
    assert 0.3 < stretched(config, 1 << 22, pair, monkeypatch) <= 1.0
