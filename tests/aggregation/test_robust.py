"""Analyzers that hostile reports cannot drag away."""

from __future__ import annotations

import numpy as np
import torch

from fl_shuffle.aggregation.robust import coordinate_median, trimmed_mean


def test_robust_analyzers_stay_among_the_honest() -> None:
    draw = np.random.default_rng(3)
    honest = torch.from_numpy(draw.standard_normal((21, 4)))
    hostile = torch.full((4, 4), 1e30, dtype=torch.float64)
    batch = torch.cat([honest, hostile])[torch.from_numpy(draw.permutation(25))]
    low, high = honest.min(dim=0).values, honest.max(dim=0).values
    for estimate in (coordinate_median(batch), trimmed_mean(batch, 0.2)):
        assert bool(((estimate >= low) & (estimate <= high)).all())
    np.testing.assert_allclose(coordinate_median(honest), np.median(honest.numpy(), axis=0))
    even = honest[:20]
    np.testing.assert_allclose(coordinate_median(even), np.median(even.numpy(), axis=0))
    ordered = np.sort(honest.numpy(), axis=0)
    np.testing.assert_allclose(trimmed_mean(honest, 0.1), ordered[2:-2].mean(axis=0))
    np.testing.assert_allclose(trimmed_mean(honest, 0.0), honest.mean(dim=0))
