"""Clients with a record whose gradient is not finite: that record counts as zero.

Nobody is left out for it. Which reports are missing is public, so a record that could make its
client's report go missing would show itself with certainty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.gradients.engine import GradientEngine, steady_arithmetic

# Clipped gradients of single records held at once: at most so many numbers.
HELD_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Spoilt:
    """So many clients had a gradient that is not finite, in so many records where that is known.

    For the client's own log only: it depends on the data.
    """

    clients: int = 0
    records: int = 0


def mend_(
    engine: GradientEngine,
    rows: Tensor,
    parameters: Tensor,
    inputs: Tensor,
    labels: Tensor,
    offsets: Tensor | NDArray[np.int64],
    clip_radius: NDArray[np.float64],
) -> Spoilt:
    """In place: the rows [K, d] of `engine.client_means` that are NaN become finite.

    Clip "average": such a row becomes zero. Clip "record": it becomes the mean of the client's
    clipped records with zero for each that is not finite, divided by the number of all its records,
    so that replacing one record moves it by at most 2 radius / records, as it moves any other. It
    depends on the client's own records only, whoever is computed beside it, and is no longer than
    the client's clip_radius [K]. Clip "none" marks no rows in a way that is seen here: use
    `clip_rows`.
    """
    if engine.clip == "none":
        return Spoilt()
    # A row is NaN in all its entries or in none, so one column tells: no pass over the rows.
    column = rows[:, 0]
    if math.isfinite(float(column.sum())):
        return Spoilt()
    clients = torch.nonzero(~torch.isfinite(column)).flatten().tolist()
    if engine.clip == "average":
        rows[clients] = 0.0
        return Spoilt(len(clients))
    records = 0
    for client in clients:
        own = slice(int(offsets[client]), int(offsets[client + 1]))
        mean, zeros = _mean_of_finite(
            engine, parameters, inputs[own], labels[own], float(clip_radius[client])
        )
        rows[client] = mean
        records += zeros
    return Spoilt(len(clients), records)


def _mean_of_finite(
    engine: GradientEngine, parameters: Tensor, inputs: Tensor, labels: Tensor, radius: float
) -> tuple[Tensor, int]:
    """Mean [d] of one client's clipped records, and how many of them count as zero."""
    size = len(labels)
    block = max(1, HELD_NUMBERS // engine.dimension)
    total = torch.zeros(engine.dimension, dtype=torch.float64, device=engine.device)
    zeros = 0
    for start in range(0, size, block):
        part = slice(start, min(start + block, size))
        alone = np.arange(part.stop - part.start + 1)
        clipped = engine.client_means(parameters, inputs[part], labels[part], alone, radius)
        bad = ~torch.isfinite(clipped).all(dim=1)
        clipped[bad] = 0.0
        zeros += int(bad.sum())
        with steady_arithmetic(engine.device):
            total += clipped.sum(dim=0, dtype=torch.float64)
    return (total / size).to(torch.float32), zeros
