"""The choice of a path."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from fl_shuffle.errors import require_choice, require_integer
from fl_shuffle.gradients.blocks import packing_of_network
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.general import GeneralEngine
from fl_shuffle.gradients.networks.chain import network_of
from fl_shuffle.gradients.networks.engine import NetworkEngine
from fl_shuffle.gradients.softmax_regression import SoftmaxRegression, compiles
from fl_shuffle.gradients.structure import check_module
from fl_shuffle.trials import CannotTryError, try_model

CLIPS = ("record", "none")


def make_gradient_engine(
    module: nn.Module,
    *,
    shape: tuple[int, ...],
    clip: str,
    norm: int = 2,
    device: torch.device | str = "cpu",
    loss: Loss | None = None,
    records: int = 0,
) -> GradientEngine:
    """Return the fastest engine for `module` and records of `shape`, with results equal to rounding
    whichever it is.

    clip: of every "record", or "none"; norm: 1 or 2; loss: None for cross entropy, or a callable
    (logits [N, C], labels [N]) -> losses [N]. records: how many a round of all clients has, which
    decides whether compiling pays; 0 if that is not known. Results have the same bits only where
    both are the same.
    Raises `InvalidValueError` for modules whose records have no gradients of their own, see
    `check_module`; a module with code of its own is tried on made-up records first (`try_model`).
    """
    require_choice("clip", clip, CLIPS)
    require_integer("norm", norm, minimum=1, maximum=2)
    check_module(module)
    place = torch.device(device)
    network = network_of(module, shape)
    if network is None:
        # A network holds known layers only. Where other code raises on all made-up records of this
        # shape, the engine learns it at its first call.
        with suppress(CannotTryError):
            try_model(module, shape)
        packing = packing_of_network(module, shape, network)
        return GeneralEngine(module, packing, clip=clip, norm=norm, device=place, loss=loss)
    engine = SoftmaxRegression if compiles(network, place, loss, records) else NetworkEngine
    return engine(module, network, clip=clip, norm=norm, device=place, loss=loss)
