"""Chains of layers that treat each record by itself, read from an `nn.Sequential`, nested or not.

A network is accepted only if every part is on the lists here, which hold nothing that lets records
meet, draws numbers, or depends on values; so each record has a gradient of its own, whatever the
data are. A module with a `forward` of its own goes another way (`general`).
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_shuffle.gradients.kernels import views_of
from fl_shuffle.gradients.networks.weighted import Product, Weighted, weighted_of
from fl_shuffle.gradients.structure import ELEMENTWISE, has_hooks

log = logging.getLogger(__name__)

PARTS = (
    *ELEMENTWISE,
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.GroupNorm, nn.LayerNorm),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)
"""Modules, where they have no parameters; dropout only at rest (`check_module`)."""


class NotANetworkError(Exception):
    """Something in the module is not on the lists."""


@dataclass(frozen=True)
class Trace:
    """One pass forth: logits [n, C], and of each weighted layer what it kept, and its result."""

    logits: Tensor
    kept: list[Tensor]
    results: list[Tensor]


@dataclass(frozen=True)
class Network:
    """A chain of operations, for records of one shape.

    `numbers`: how many one record takes on its way forth and back; `classes`: logits per record.
    """

    parts: tuple[nn.Module | Weighted, ...]
    shape: tuple[int, ...]
    numbers: int
    classes: int

    @property
    def layers(self) -> tuple[Weighted, ...]:
        """Those with parameters, in their order."""
        return tuple(part for part in self.parts if isinstance(part, Weighted))

    @property
    def linear(self) -> bool:
        """Whether it is one linear map of all of a record's numbers."""
        single = len(self.layers) == 1 and isinstance(self.layers[0], Product)
        known = (Product, nn.Flatten, nn.Identity)
        return single and all(type(part) in known for part in self.parts)

    def run(self, parameters: Tensor, x: Tensor) -> Trace:
        """Run forth, of x [n, ...] with parameters [d], such that the layers' results can be
        differentiated by."""
        all_kept, results = list[Tensor](), list[Tensor]()
        with torch.enable_grad():
            for part in self.parts:
                if not isinstance(part, Weighted):
                    x = part(x)
                    continue
                kept, x = part.forward([views_of(parameters, own) for own in part.layers], x)
                all_kept.append(kept)
                results.append(x.requires_grad_())
        return Trace(x, all_kept, results)


def network_of(module: nn.Module, shape: tuple[int, ...]) -> Network | None:
    """Return the network that `module` is for float32 records of `shape`; None if it is no such
    chain."""
    try:
        # Two and three records: a dependence on their number becomes visible.
        two, three = (_reading(module, torch.zeros(n, *shape)) for n in (2, 3))
    except NotANetworkError as found:
        log.info("no closed form for this module: %s", found)
        return None
    except Exception as error:
        # Records of that shape do not go through: nor will they by another path, which raises the
        # error.
        log.info("no closed form for this module: %s", error)
        return None
    return two if (two.numbers, two.classes) == (three.numbers, three.classes) else None


def _leaves(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a chain's parts, in their order."""
    if has_hooks(module) or "forward" in vars(module):
        raise NotANetworkError(f"{type(module).__name__} has hooks")
    if type(module) is not nn.Sequential:
        yield module
        return
    if module._parameters:
        raise NotANetworkError("parameters are in no layer")
    for part in module:
        yield from _leaves(part)


def _reading(module: nn.Module, x: Tensor) -> Network:
    """Return the network, read by running it on made-up records x; raises for what is on no
    list."""
    count = len(list(module.parameters()))
    if count != len(list(module.named_parameters(remove_duplicate=False))):
        raise NotANetworkError("parameters are shared")
    shape, parts, position, numbers = tuple(x.shape[1:]), [], 0, x[0].numel()
    parameters = nn.utils.parameters_to_vector(module.parameters()).detach().cpu().float()
    for leaf in _leaves(module):
        part = _part(leaf, position, x)
        position += sum(parameter.numel() for parameter in leaf.parameters())
        trace = Network((part,), shape, 0, 0).run(parameters, x)
        x, records = trace.logits.detach(), len(x)
        if not x.dim() or len(x) != records:
            raise NotANetworkError(f"{type(leaf).__name__} does not keep the records apart")
        parts.append(part)
        numbers += 2 * x[0].numel() + sum(kept[0].numel() for kept in trace.kept)
        numbers += part.written if isinstance(part, Weighted) else 0
    if x.dim() != 2:
        raise NotANetworkError("it gives no logits [N, C]")
    return Network(tuple(parts), shape, numbers, x.shape[1])


def _part(leaf: nn.Module, position: int, x: Tensor) -> nn.Module | Weighted:
    """Return what a leaf is for inputs like x, its parameters from `position` on."""
    if any(True for _ in leaf.parameters()):
        weighted = weighted_of(leaf, position, x)
        if weighted is None:
            raise NotANetworkError(f"{type(leaf).__name__} has no closed form here")
        return weighted
    if type(leaf) not in PARTS or getattr(leaf, "return_indices", False):
        raise NotANetworkError(f"{type(leaf).__name__} is on no list")
    # Nothing is computed in place: what a layer gave is needed as it was.
    leaf = copy.deepcopy(leaf)
    if hasattr(leaf, "inplace"):
        vars(leaf)["inplace"] = False
    return leaf
