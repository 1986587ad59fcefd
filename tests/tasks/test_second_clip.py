"""A second clip of the clients' means: how far one record can still move the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.randomizer_plan import make_plan
from fl_shuffle.randomizers.vector import clip_rows

RECORDS, SECOND = 20, 0.35


def accounted(randomizer: str, second: float) -> float:
    config = parse_config(
        {
            "data": {"clients": 2},
            "privacy": {
                "unit": "record", "randomizer": randomizer, "clip_norm": 1.0, "client_clip": second,
            },
        }
    )  # fmt: skip
    budgets = Budgets(np.full(2, 1.0), np.full(2, 1e-5))
    return float(make_plan(config, budgets, np.full(2, RECORDS)).sensitivity[0])


@pytest.mark.parametrize(("randomizer", "norm"), [("laplace", 1), ("gaussian", 2)])
def test_no_record_moves_the_clipped_mean_further_than_accounted(
    randomizer: str, norm: int
) -> None:
    """Neighbouring clients, at random and the worst kind: a long mean turned by one record."""
    rng = np.random.default_rng(7)
    worst = 0.0
    for trial in range(400):
        dimension = int(rng.integers(2, 6))
        records = rng.normal(size=(RECORDS, dimension)) * rng.random(dimension) ** 4
        other = records.copy()
        other[0] = rng.normal(size=dimension)
        if trial % 2:
            # The mean lies along one axis, on the sphere; the record adds across it.
            records[:] = 0.0
            records[2:, 0] = SECOND * RECORDS / (RECORDS - 2) * rng.uniform(0.9, 1.1)
            records[1, 1], records[0, 1] = 1.0, -1.0
            other = records.copy()
            other[0, 1] = 1.0
        means = []
        for group in (records, other):
            rows = torch.tensor(group, dtype=torch.float32)
            clip_rows(rows, 1.0, norm)
            mean = rows.mean(dim=0, keepdim=True)
            clip_rows(mean, SECOND, norm)
            means.append(mean[0].double().numpy())
        worst = max(worst, float(np.linalg.norm(means[0] - means[1], ord=norm)))
    assert worst <= accounted(randomizer, SECOND) * (1 + 1e-5)
    if norm == 1:
        # One record's own reach, 2C/B, is exceeded: scaling in l1 is not a contraction.
        assert worst > 1.2 * 2.0 / RECORDS


def test_a_second_clip_that_never_acts_costs_nothing() -> None:
    for randomizer in ("laplace", "gaussian"):
        assert accounted(randomizer, 1.0) == pytest.approx(2.0 / RECORDS)
    assert accounted("laplace", 0.99) == pytest.approx(4.0 / RECORDS)
    assert accounted("laplace", 0.01) == accounted("gaussian", 0.01) == pytest.approx(0.02)
