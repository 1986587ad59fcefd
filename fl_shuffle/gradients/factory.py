"""The choice of a path."""

from __future__ import annotations

import torch
from torch import nn

from fl_shuffle.errors import require_choice, require_integer
from fl_shuffle.gradients.blocks import packing_of
from fl_shuffle.gradients.chain import ChainEngine
from fl_shuffle.gradients.compiled_linear.engine import CompiledLinear, compiles, load_loops
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.general import GeneralEngine
from fl_shuffle.gradients.networks.engine import NetworkEngine
from fl_shuffle.gradients.networks.graph import network_of
from fl_shuffle.gradients.structure import chain_of

CLIPS = ("record", "average", "none")


def make_gradient_engine(
    module: nn.Module,
    *,
    clip: str,
    norm: int = 2,
    device: torch.device | str = "cpu",
    loss: Loss | None = None,
    records: int = 0,
    shape: tuple[int, ...] | None = None,
) -> GradientEngine:
    """The fastest engine for `module`, with results equal to rounding whichever it is.

    clip: "record", "average" (of the mean, as published protocols do) or "none"; norm: 1 or 2;
    loss: None for cross entropy, or a callable (logits [N, C], labels [N]) -> losses [N].
    records: how many a round of all clients has, which decides whether compiling pays; 0 if that
    is not known. shape: of one record; without it there are no closed forms of networks, and blocks
    are smaller. Results have the same bits only where both are the same.
    Raises `InvalidValueError` for modules whose records have no gradients of their own, see
    `check_module`.
    """
    require_choice("clip", clip, CLIPS)
    require_integer("norm", norm, minimum=1, maximum=2)
    place = torch.device(device)
    layers = chain_of(module)
    if layers is None:
        network = None if shape is None else network_of(module, shape)
        if network is not None:
            return NetworkEngine(module, network, clip=clip, norm=norm, device=place, loss=loss)
        general = GeneralEngine(module, clip=clip, norm=norm, device=place, loss=loss)
        general.packing = general.sum_packing = packing_of(module, shape)
        return general
    engine = CompiledLinear if compiles(layers, place, loss, records) else ChainEngine
    return engine(module, layers, clip=clip, norm=norm, device=place, loss=loss)


def load_ahead(
    module: nn.Module, *, device: torch.device | str = "cpu", loss: Loss | None, records: int
) -> None:
    """Load, where it pays, what the first call of this module's engine would wait for.

    A second's work for a thread that has nothing else to do. Looks at the layers, runs nothing of
    the module's. Arguments as in `make_gradient_engine`.
    """
    layers = chain_of(module)
    if layers is not None and compiles(layers, torch.device(device), loss, records):
        load_loops()
