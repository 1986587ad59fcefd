"""What a module computes, read from its code: operations that treat each record by itself.

`torch.fx` follows a module's `forward` without running it. A network is accepted only if every
operation is on the lists below, which hold nothing that lets records meet, draws numbers, or hangs
on values; so each record has a gradient of its own, whatever the data are.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn

from fl_shuffle.gradients.kernels import Views, views_of
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
class Step:
    """One operation: `function` of arguments, among which nodes stand for what they computed."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    weighted: Weighted | None = None


@dataclass(frozen=True)
class Trace:
    """One pass forth: logits [n, C], and of each weighted layer what it kept, and its result."""

    logits: Tensor
    kept: list[Tensor]
    results: list[Tensor]


@dataclass(frozen=True)
class Network:
    """A module's operations, for records of one shape.

    `numbers`: how many one record takes on its way forth and back; `classes`: logits per record.
    """

    steps: tuple[Step, ...]
    shape: tuple[int, ...]
    given: str
    answer: str
    layers: tuple[Weighted, ...]
    numbers: int
    classes: int

    @property
    def linear(self) -> bool:
        """Whether it is one linear map of all of a record's numbers."""
        others = [step.function for step in self.steps if step.weighted is None]
        single = len(self.layers) == 1 and isinstance(self.layers[0], Product)
        return single and all(type(each) in (nn.Flatten, nn.Identity) for each in others)

    def run(self, views: Sequence[Views], x: Tensor) -> Trace:
        """Forth, of x [n, ...], such that the layers' results can be differentiated by.

        views: of each weighted layer's `layers`, one after the other, in the parameters.
        """
        values: dict[str, Any] = {self.given: x}
        kept, results = list[Tensor](), list[Tensor]()
        left = iter(views)
        with torch.enable_grad():
            for step in self.steps:
                arguments, options = _resolved(step, values)
                if step.weighted is None:
                    values[step.name] = step.function(*arguments, **options)
                    continue
                own = [next(left) for _ in step.weighted.layers]
                before, result = step.weighted.forward(own, *arguments)
                if not result.requires_grad:
                    result.requires_grad_()
                kept.append(before)
                results.append(result)
                values[step.name] = result
        return Trace(values[self.answer], kept, results)


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
    # A layer by itself is a part of something, too, to whoever follows its code.
    module = nn.Sequential(module)
    for part in module.modules():
        if has_hooks(part) or "forward" in vars(part):
            raise NotANetworkError(f"{type(part).__name__} has hooks")
    owners = dict(module.named_parameters())
    if len(owners) != len(list(module.named_parameters(remove_duplicate=False))):
        raise NotANetworkError("parameters are shared")
    positions, position = {}, 0
    for name, parameter in owners.items():
        positions[name] = position
        position += parameter.numel()
    reading = _Reading(module, positions)
    # Two and three records: what hangs on their number shows.
    parameters = torch.cat([p.detach().reshape(-1).cpu().float() for p in owners.values()])
    two, three = (reading.network(parameters, torch.zeros(count, *shape)) for count in (2, 3))
    if (two.numbers, two.classes) != (three.numbers, three.classes):
        raise NotANetworkError("what it computes hangs on how many records there are")
    if reading.used != set(owners):
        raise NotANetworkError("some parameters are in no known layer")
    return two


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


class _Reading:
    """Turns a module's traced nodes into steps, by running them on made-up records."""

    def __init__(self, module: nn.Module, positions: dict[str, int]) -> None:
        self._module = module
        self._positions = positions
        with _tracing:
            self._graph = _OwnTracer().trace(module)
        self.used: set[str] = set()

    def network(self, parameters: Tensor, x: Tensor) -> Network:
        values: dict[str, Any] = {}
        steps: list[Step] = []
        self.used = set()
        given, answer, numbers = "", "", 0
        for node in self._graph.nodes:
            if node.op == "placeholder":
                if given:
                    raise NotANetworkError("forward takes more than the records")
                given, values[node.name] = node.name, x
                numbers += x[0].numel()
                continue
            if node.op == "output":
                if not isinstance(node.args[0], fx.Node):
                    raise NotANetworkError("forward returns more than logits")
                answer = node.args[0].name
                continue
            step = self._step(node, values)
            arguments, options = _resolved(step, values)
            if step.weighted is None:
                value = step.function(*arguments, **options)
                if isinstance(value, Tensor):
                    numbers += 2 * value[0].numel()
            else:
                own = [views_of(parameters, layer) for layer in step.weighted.layers]
                kept, value = step.weighted.forward(own, *arguments)
                numbers += kept[0].numel() + 2 * value[0].numel() + step.weighted.written
            if isinstance(value, Tensor) and (not value.dim() or len(value) != len(x)):
                raise NotANetworkError(f"{node.name} does not keep the records apart")
            if not isinstance(value, Tensor | torch.Size | int):
                raise NotANetworkError(f"{node.name} is no array")
            values[node.name] = value
            steps.append(step)
        logits = values[answer]
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            raise NotANetworkError("it gives no logits [N, C]")
        layers = tuple(step.weighted for step in steps if step.weighted is not None)
        return Network(
            tuple(steps), tuple(x.shape[1:]), given, answer, layers, numbers, logits.shape[1]
        )

    def _step(self, node: fx.Node, values: dict[str, Any]) -> Step:
        given = [values[n.name] for n in node.all_input_nodes]
        arrays = [value for value in given if isinstance(value, Tensor)]
        if node.op == "call_module":
            return self._part(node, arrays)
        target, options = node.target, dict(node.kwargs)
        if node.op == "call_method" and _allowed_method(str(target), len(given), len(arrays)):
            return Step(node.name, _method(str(target)), node.args, options)
        if callable(target) and _allowed_function(target, node, given):
            if "inplace" in options:
                # What a layer gave is needed as it was.
                options["inplace"] = False
            return Step(node.name, target, node.args, options)
        raise NotANetworkError(f"{node.op} {target} is on no list")

    def _part(self, node: fx.Node, arrays: list[Tensor]) -> Step:
        name = str(node.target)
        part = self._module.get_submodule(name)
        if len(arrays) != 1 or len(node.args) != 1 or node.kwargs:
            raise NotANetworkError(f"{name} takes more than one array")
        own = {f"{name}.{key}" for key, _ in part.named_parameters()}
        if not own:
            if type(part) not in PARTS or getattr(part, "return_indices", False):
                raise NotANetworkError(f"{type(part).__name__} is on no list")
            part = copy.deepcopy(part)
            if hasattr(part, "inplace"):
                vars(part)["inplace"] = False
            return Step(node.name, part, node.args, {})
        if own & self.used:
            raise NotANetworkError(f"{name} is used twice")
        self.used |= own
        weighted = weighted_of(part, min(self._positions[key] for key in own), arrays[0])
        if weighted is None:
            raise NotANetworkError(f"{type(part).__name__} has no closed form here")
        return Step(node.name, part, node.args, {}, weighted)


def _allowed_method(name: str, given: int, arrays: int) -> bool:
    if name in SHAPING:
        return arrays == 1
    return name in (*METHODS, *SHAPES) and given == arrays == 1


def _method(name: str) -> Callable[..., Any]:
    def call(x: Tensor, *arguments: Any, **options: Any) -> Any:
        return getattr(x, name)(*arguments, **options)

    return call


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


def _resolved(step: Step, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The step's arguments, with what the nodes among them computed."""
    arguments = fx.node.map_arg(step.arguments, lambda n: values[n.name])
    options = fx.node.map_arg(step.options, lambda n: values[n.name])
    return arguments, options
