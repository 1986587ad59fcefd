"""Clipped means plus discrete noise: reports on the public grid, in whole steps throughout."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.randomizers.discrete.samplers import discrete_gaussian, discrete_laplace
from fl_shuffle.randomizers.discrete.words import Words
from fl_shuffle.randomizers.noise import NoiseStream

SAMPLERS = {"discrete-gaussian": discrete_gaussian, "discrete-laplace": discrete_laplace}
NORMS = {"discrete-gaussian": 2, "discrete-laplace": 1}
"""The norm in which each noise measures sensitivity."""
LARGEST = 1 << 23
"""Reports are cut at so many steps, which is post-processing; float32 holds them exactly."""


def discrete_reports_(
    noise: str,
    means: torch.Tensor,
    clients: NDArray[np.int64],
    stream: NoiseStream,
    *,
    scale: NDArray[np.int64],
    step: NDArray[np.float64],
) -> torch.Tensor:
    """In place: means (float32 [k, d], on the processor) of these clients become their reports.

    Each coordinate is cut to a multiple of step[i] (a power of two) *towards zero*, so that no norm
    grows and what was in a ball stays there, and scale[i] is that of the noise in steps. Every
    client has a stream of its own: how clients are packed does not show.
    """
    for row, client, own, grid in zip(
        means, clients.tolist(), scale.tolist(), step.tolist(), strict=True
    ):
        whole = np.trunc(row.numpy().astype(np.float64) / grid).astype(np.int64)
        drawn = SAMPLERS[noise](Words(stream.words_key(client)), own, len(whole))
        steps = np.clip(whole + drawn, -LARGEST, LARGEST)
        row.copy_(torch.from_numpy(steps * grid))
    return means
