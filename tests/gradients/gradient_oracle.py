"""The definition, in float64, one record at a time, by autograd; and what tests share."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, Loss


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


def offsets_of(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def record_gradient(module: nn.Module, x: Tensor, y: Tensor, loss: Loss | None) -> Tensor:
    """float64 [d] of one record, by a module that already is float64."""
    logits = module(x[None].double())
    value = (
        nn.functional.cross_entropy(logits, y[None])
        if loss is None
        else loss(logits, y[None]).sum()
    )
    pieces = torch.autograd.grad(
        value, list(module.parameters()), materialize_grads=True, allow_unused=True
    )
    return torch.cat([piece.reshape(-1) for piece in pieces])


def shortened(vector: Tensor, radius: float, norm: int) -> Tensor:
    length = float(torch.linalg.vector_norm(vector, norm))
    return vector * (radius / length) if length > radius else vector


def limits_of(engine: GradientEngine, radius: Tensor, offsets: np.ndarray) -> Tensor:
    """To what an engine clips records, hardly less than `radius` [k]."""
    limits = torch.from_numpy(engine.record_radius(radius.double().numpy(), np.diff(offsets)))
    assert bool((limits < radius).all() and (limits > radius * (1.0 - 2e-4)).all())
    return limits


def means(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    offsets: np.ndarray,
    radius: Tensor,
    *,
    clip: str,
    norm: int,
    loss: Loss | None = None,
) -> Tensor:
    module = copy.deepcopy(module).double()
    rows = []
    for client, (start, stop) in enumerate(pairwise(offsets)):
        gradients = [record_gradient(module, x[i], y[i], loss) for i in range(start, stop)]
        if clip == "record":
            gradients = [shortened(g, float(radius[client]), norm) for g in gradients]
        rows.append(torch.stack(gradients).mean(0))
    return torch.stack(rows)


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """Largest difference of a row in l2, relative to the longest expected row."""
    scale = torch.linalg.vector_norm(expected, dim=1).max()
    return float(torch.linalg.vector_norm(found.double() - expected, dim=1).max() / scale)
