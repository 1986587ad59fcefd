"""Values of each client's own [clients], and the rows of some of them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]
Ids = NDArray[np.int64]
PerClient = float | FloatArray
"""One number for all clients, or one for each [clients]."""


def equal_or_each(values: PerClient) -> PerClient:
    """One number where all are equal: kernels are then a little faster."""
    if isinstance(values, float):
        return values
    return float(values[0]) if bool((values == values[0]).all()) else values


def of_clients(values: PerClient, clients: Ids) -> PerClient:
    """These clients' values, one number where they are equal."""
    return values if isinstance(values, float) else equal_or_each(values[clients])


def consecutive(clients: Ids) -> bool:
    """Whether these ascending ids leave none out."""
    return int(clients[-1] - clients[0]) + 1 == len(clients)


def weigh_(rows: Tensor, weight: PerClient) -> None:
    """In place: rows [k, d] times their clients' weights."""
    if isinstance(weight, float):
        if weight != 1.0:
            rows *= weight
    else:
        rows *= torch.from_numpy(weight.astype(np.float32))[:, None].to(rows.device)
