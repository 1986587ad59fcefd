"""What a module computes, read from its code: operations that treat each record by itself.

`torch.fx` follows a module's `forward` without running it. A network is accepted only if every
operation is on the lists below, which hold nothing that lets records meet, draws numbers, or hangs
on values; so each record has a gradient of its own, whatever the data are.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn

from fl_shuffle.gradients.kernels import views_of
from fl_shuffle.gradients.networks.weighted import Product, Weighted, weighted_of
from fl_shuffle.gradients.structure import ELEMENTWISE, has_hooks

log = logging.getLogger(__name__)

PARTS = (
    *ELEMENTWISE,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d,
    nn.AdaptiveMaxPool2d,
    nn.ZeroPad1d,
    nn.ZeroPad2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
)
"""Modules, where they have no parameters; dropout only at rest (`check_module`)."""

functional = nn.functional
OF_ONE: tuple[Callable[..., Any], ...] = (
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.flatten,
    functional.relu,
    functional.gelu,
    functional.silu,
    functional.elu,
    functional.leaky_relu,
    functional.softplus,
    functional.max_pool1d,
    functional.max_pool2d,
    functional.avg_pool1d,
    functional.avg_pool2d,
    functional.adaptive_avg_pool1d,
    functional.adaptive_avg_pool2d,
)
"""Functions of one array."""

OF_TWO: tuple[Callable[..., Any], ...] = (operator.add, operator.sub, operator.mul, torch.add)
"""Functions of two arrays of one shape, or of one and a number."""

METHODS = (
    *("relu", "tanh", "sigmoid", "mean"),
    *("flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute"),
)
"""An array's own, with numbers beside it."""

SHAPING = ("view", "reshape")
"""An array's own, which may also be given what SHAPES found."""

SHAPES = ("size",)
"""An array's own, which give whole numbers."""


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
    """A module's operations, for records of one shape.

    `weighted`: the layers with parameters, by their nodes in the graph. `numbers`: how many one
    record takes on its way forth and back; `classes`: logits per record.
    """

    module: nn.Module
    graph: fx.Graph
    weighted: dict[str, Weighted]
    shape: tuple[int, ...]
    numbers: int
    classes: int

    @property
    def layers(self) -> tuple[Weighted, ...]:
        """Those with parameters, in their order."""
        return tuple(self.weighted.values())

    @property
    def linear(self) -> bool:
        """Whether it is one linear map of all of a record's numbers."""
        others = [
            type(self.module.get_submodule(str(node.target))) if node.op == "call_module" else None
            for node in self.graph.nodes
            if node.op not in ("placeholder", "output") and node.name not in self.weighted
        ]
        single = len(self.layers) == 1 and isinstance(self.layers[0], Product)
        return single and all(each in (nn.Flatten, nn.Identity) for each in others)

    def run(self, parameters: Tensor, x: Tensor) -> Trace:
        """Forth, of x [n, ...] with parameters [d], such that the layers' results can be
        differentiated by."""
        own = _Pass(self.module, self.graph, self.weighted, parameters)
        with torch.enable_grad():
            logits = own.run(x)
        return Trace(logits, own.kept, own.results)


class _Pass(fx.Interpreter):
    """Runs a graph whose weighted layers have their parameters from a flat vector."""

    def __init__(
        self,
        module: nn.Module,
        graph: fx.Graph,
        weighted: dict[str, Weighted],
        parameters: Tensor,
    ) -> None:
        super().__init__(module, garbage_collect_values=False, graph=graph)
        self._parameters = parameters
        self.weighted = weighted
        self.kept: list[Tensor] = []
        self.results: list[Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        layer = self.weighted.get(n.name)
        if layer is None:
            return super().run_node(n)
        (x,), _ = self.fetch_args_kwargs_from_env(n)
        kept, result = layer.forward([views_of(self._parameters, own) for own in layer.layers], x)
        if not result.requires_grad:
            result.requires_grad_()
        self.kept.append(kept)
        self.results.append(result)
        return result


def network_of(module: nn.Module, shape: tuple[int, ...]) -> Network | None:
    """`module` for float32 records of `shape`; None if it is anything but a feed-forward network of
    known layers, each used once. Why not is in the log."""
    try:
        return _network(module, shape)
    except NotANetworkError as found:
        log.info("no closed form for this module: %s", found)
    except Exception as e:
        # Whatever a module's own code does when it meets a stand-in for its input. Where it does so
        # with records, too, whoever plays the clients is told.
        log.info("no closed form for this module: it cannot be traced (%s)", e)
    return None


def _network(module: nn.Module, shape: tuple[int, ...]) -> Network:
    for part in module.modules():
        if has_hooks(part) or "forward" in vars(part):
            raise NotANetworkError(f"{type(part).__name__} has hooks")
    # A layer by itself is a part of something, too, to whoever follows its code.
    module = nn.Sequential(module)
    owners = dict(module.named_parameters())
    if len(owners) != len(list(module.named_parameters(remove_duplicate=False))):
        raise NotANetworkError("parameters are shared")
    positions, position = {}, 0
    for name, parameter in owners.items():
        positions[name] = position
        position += parameter.numel()
    parameters = torch.cat([p.detach().reshape(-1).cpu().float() for p in owners.values()])
    # Of its own parameters only the shapes are asked for.
    module = copy.deepcopy(module).to("meta")
    with _tracing:
        graph = _OwnTracer().trace(module)
    _keep_results(module, graph)
    # Two and three records: what hangs on their number shows.
    two, three = (_Reading(module, graph, parameters, positions) for _ in range(2))
    classes = [each.classes(torch.zeros(n, *shape)) for n, each in ((2, two), (3, three))]
    if (two.numbers, classes[0]) != (three.numbers, classes[1]):
        raise NotANetworkError("what it computes hangs on how many records there are")
    if two.used != set(owners):
        raise NotANetworkError("some parameters are in no known layer")
    return Network(module, graph, two.weighted, shape, two.numbers, classes[0])


def _keep_results(module: nn.Module, graph: fx.Graph) -> None:
    """Nothing is computed in place: what a layer gave is needed as it was."""
    for part in module.modules():
        if hasattr(part, "inplace"):
            vars(part)["inplace"] = False
    for node in graph.nodes:
        if "inplace" in node.kwargs:
            node.update_kwarg("inplace", False)


_tracing = Lock()
"""While a module is followed, `torch.fx` has changed `nn.Module` for the whole process; two at a
time would not change it back."""


class _OwnTracer(fx.Tracer):
    """Follows this thread alone: modules that others call meanwhile are called as ever."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


class _Reading(_Pass):
    """Finds a graph's weighted layers, by running it on made-up records; raises for what is on no
    list."""

    def __init__(
        self,
        module: nn.Module,
        graph: fx.Graph,
        parameters: Tensor,
        positions: dict[str, int],
    ) -> None:
        super().__init__(module, graph, {}, parameters)
        self._positions = positions
        self._records = 0
        self.used: set[str] = set()
        self.numbers = 0

    def classes(self, x: Tensor) -> int:
        """Run it; logits per record."""
        self._records = len(x)
        logits = self.run(x)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            raise NotANetworkError("it gives no logits [N, C]")
        self.numbers += x[0].numel() + sum(kept[0].numel() for kept in self.kept)
        self.numbers += sum(layer.written for layer in self.weighted.values())
        return logits.shape[1]

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        self._require_known(n)
        value = super().run_node(n)
        if not isinstance(value, Tensor | torch.Size | int):
            raise NotANetworkError(f"{n.name} is no array")
        if isinstance(value, Tensor):
            if not value.dim() or len(value) != self._records:
                raise NotANetworkError(f"{n.name} does not keep the records apart")
            self.numbers += 2 * value[0].numel()
        return value

    def _require_known(self, n: fx.Node) -> None:
        given = [self.env[each] for each in n.all_input_nodes]
        arrays = [value for value in given if isinstance(value, Tensor)]
        if n.op == "call_module":
            self._part(n, arrays)
        elif n.op == "call_method":
            if not _allowed_method(str(n.target), len(given), len(arrays)):
                raise NotANetworkError(f"{n.op} {n.target} is on no list")
        elif not callable(n.target) or not _allowed_function(n.target, n, given):
            raise NotANetworkError(f"{n.op} {n.target} is on no list")

    def _part(self, n: fx.Node, arrays: list[Tensor]) -> None:
        name = str(n.target)
        part = self.module.get_submodule(name)
        if len(arrays) != 1 or len(n.args) != 1 or n.kwargs:
            raise NotANetworkError(f"{name} takes more than one array")
        own = {f"{name}.{key}" for key, _ in part.named_parameters()}
        if not own:
            if type(part) not in PARTS or getattr(part, "return_indices", False):
                raise NotANetworkError(f"{type(part).__name__} is on no list")
            return
        if own & self.used:
            raise NotANetworkError(f"{name} is used twice")
        self.used |= own
        weighted = weighted_of(part, min(self._positions[key] for key in own), arrays[0])
        if weighted is None:
            raise NotANetworkError(f"{type(part).__name__} has no closed form here")
        self.weighted[n.name] = weighted


def _allowed_method(name: str, given: int, arrays: int) -> bool:
    if name in SHAPING:
        return arrays == 1
    return name in (*METHODS, *SHAPES) and given == arrays == 1


def _allowed_function(function: Callable[..., Any], node: fx.Node, given: list[Any]) -> bool:
    arrays = [value for value in given if isinstance(value, Tensor)]
    if function is operator.getitem:
        # A number out of a shape, or a view of all records.
        if not arrays:
            return len(given) == 1
        place = node.args[1]
        every = slice(None)
        return len(given) == 1 and isinstance(place, tuple) and place[0] == every
    if function is getattr:
        return len(given) == 1 and node.args[1] == "shape"
    if len(arrays) != len(given):
        return False
    if function in OF_TWO:
        return not node.kwargs and (len(given) == 1 or given[0].shape == given[1].shape)
    if function is torch.cat:
        return bool(given)
    return function in OF_ONE and len(given) == 1 and not node.kwargs.get("return_indices")
