"""Scattering coefficients against kymatio's, and the exactness of the mirror."""

from __future__ import annotations

import numpy as np
import torch

from fl_shuffle.data.features.scattering import _MIRRORED, Filters

REFERENCE = {
    (0, 0, 0): 0.4887737,
    (0, 3, 5): 0.4131696,
    (1, 0, 0): 0.0462000,
    (1, 3, 5): 0.0435187,
    (4, 0, 0): 0.0691193,
    (4, 3, 5): 0.0505264,
    (8, 0, 0): 0.0389961,
    (8, 3, 5): 0.0750960,
    (9, 0, 0): 0.0276635,
    (9, 3, 5): 0.0232163,
    (13, 0, 0): 0.0358614,
    (13, 3, 5): 0.0293982,
    (16, 0, 0): 0.0306199,
    (16, 3, 5): 0.0350559,
    (17, 0, 0): 0.0034840,
    (17, 3, 5): 0.0070385,
    (20, 0, 0): 0.0070313,
    (20, 3, 5): 0.0041201,
    (35, 0, 0): 0.0062116,
    (35, 3, 5): 0.0040243,
    (52, 0, 0): 0.0033181,
    (52, 3, 5): 0.0059182,
    (66, 0, 0): 0.0062416,
    (66, 3, 5): 0.0073112,
    (80, 0, 0): 0.0098437,
    (80, 3, 5): 0.0065946,
}
"""(channel, row, column) -> coefficient of kymatio 0.3.0, Scattering2D(J=2, shape=(32, 32), L=8),
of the noise below."""


def noise() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).random((2, 32, 32)).astype(np.float32))


def test_coefficients_are_those_of_kymatio():
    """White noise is the hardest signal: kymatio cuts its low pass off at half of the largest
    frequency where signals are at every second position, which is the difference here."""
    found = Filters(32, 8, shift=0.0).coefficients(noise())[0]
    assert found.shape == (81, 8, 8)
    for (channel, row, column), value in REFERENCE.items():
        fine = channel <= 8
        assert abs(float(found[channel, row, column]) - value) < (2e-5 if fine else 3e-4)


def test_coefficients_of_a_mirror_image_are_mirrored():
    filters = Filters(32, 8, shift=0.5)
    there, back = (filters.coefficients(each)[:, 1:] for each in (noise(), noise().flip(2)))
    torch.testing.assert_close(back, there[:, _MIRRORED].flip(3), atol=2e-6, rtol=0.0)
    assert float((back - there).abs().max()) > 0.01


def test_coefficients_of_a_constant_are_zero():
    found = Filters(32, 8, shift=0.5).coefficients(torch.full((1, 32, 32), 0.7))
    assert float(found[:, 1:].abs().max()) < 1e-5
    torch.testing.assert_close(found[:, 0], torch.full((1, 8, 8), 0.7), atol=1e-4, rtol=0.0)
