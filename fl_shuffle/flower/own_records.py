"""Gradients of a user's own records, each clipped by itself, as in the framework's own runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.errors import InvalidValueError, ProgramError, first_line
from fl_shuffle.federation.parts import RunParts
from fl_shuffle.flower.messages import ArrayLayout
from fl_shuffle.gradients.clipper import Clipper, make_clipper
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.structure import check_module, of_the_machine
from fl_shuffle.trials import (
    CannotTryError,
    Subject,
    takes_whole_numbers_alone,
    try_loss,
    try_model,
)

log = logging.getLogger("fl_shuffle.client")

RecordsOf = Callable[[Context], tuple[Any, Any]]
"""(context of a client) -> its (x [n, ...], y [n] or [n, k]): tensors or arrays."""


MODEL, LOSS = "ShuffleClientApp(model=...)", "ShuffleClientApp(loss=...)"
"""What an error is about."""


class NodeFault(ProgramError):
    """What fails on this node depends on no record: a device, a package, memory, the app's model or
    loss. It may be told, and no report is sent."""


@dataclass(frozen=True)
class OwnRecords:
    """What an app gives instead of a training loop; `loss` as `gradients.Loss`, None for cross
    entropy. Several threads may ask; an engine is made once for each shape of a record."""

    records: RecordsOf
    model: Callable[[], nn.Module]
    loss: Loss | None = None
    _engines: dict[Any, GradientEngine] = field(default_factory=dict)
    _whole: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)
    tried_engines: set[GradientEngine] = field(default_factory=set)
    """Engines that have computed gradients of made-up records in this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return it as it was given: Ray hands the app to its actors, and nobody can hand a lock
        on."""
        return OwnRecords, (self.records, self.model, self.loss)

    def engine(self, parts: RunParts, x: Tensor, y: Tensor) -> GradientEngine:
        """Return the engine of records of this shape, with the run's clipping. Raises `NodeFault`
        where the model cannot be made, and where the trial on made-up records refuses model or
        loss."""
        config, count = parts.config, parts.config.data.clients * parts.records_each
        shape, labels = tuple(x.shape[1:]), (y.is_floating_point(), tuple(y.shape[1:]))
        whole = not x.is_floating_point()
        key = config.clipping, parts.randomizers.norm, config.run.device, shape, labels, whole
        loss = _of_classes(self.loss) if whole and self.loss is not None else self.loss
        with self._making:
            if key not in self._engines:
                try:
                    model = self.model()
                    engine = parts.gradient_engine(model, count, shape, loss)
                except Exception as error:
                    raise _fault(MODEL, error) from error
                self._try_loss(model, shape, y)
                self._engines[key] = engine
            return self._engines[key]

    def takes_whole_numbers_alone(self, shape: tuple[int, ...]) -> bool:
        """Return whether the model computes records of this shape as int64 only."""
        with self._making:
            if shape not in self._whole:
                self._whole[shape] = takes_whole_numbers_alone(self.model(), shape)
            return self._whole[shape]

    def _try_loss(self, model: nn.Module, shape: tuple[int, ...], y: Tensor) -> None:
        """Try the loss on labels as these: classes [n] or numbers [n, k]; others are reported
        later, and what the model makes of its records."""
        numbers = y.shape[1] if y.is_floating_point() and y.dim() == 2 else 0
        if self.loss is None or (not numbers and (y.is_floating_point() or y.dim() != 1)):
            return
        subject = Subject(LOSS, getattr(self.loss, "__name__", type(self.loss).__name__))
        try:
            try_loss(self.loss, try_model(model, shape), subject, numbers=numbers)
        except CannotTryError:
            return
        except InvalidValueError as error:
            raise NodeFault(str(error)) from None

    def require_model(self, layout: ArrayLayout, device: str) -> None:
        """Raise `NodeFault` where the model cannot be made on this node's device, is not that of
        the arrays in a request, or has no gradient of a single record: before any is read."""
        try:
            model = self.model()
            check_module(model)
            torch.zeros(1, device=device)
        except Exception as error:
            raise _fault(MODEL, error, f" with run.device = {device!r}") from error
        own = {name: tuple(each.shape) for name, each in model.named_parameters()}
        sent = dict(zip(layout.names, layout.shapes, strict=True))
        if list(own.items()) != list(sent.items()):
            raise NodeFault(
                f"{MODEL}: its parameters are {_shown(own)}, and initial_arrays of the server "
                f"{_shown(sent)}"
            )


def _fault(what: str, error: Exception, where: str = "") -> NodeFault:
    if isinstance(error, InvalidValueError):
        return NodeFault(f"{what}: {error}")
    said = f"{type(error).__name__}: {first_line(error)}"
    return NodeFault(f"{what} fails on this node{where}: {said}")


class RecordGradients:
    """A clipper of one request's clients: each is asked for its records when it is its turn.

    Where each record is clipped by itself as many of a client count as `data.records_per_client`
    says, in public: of more the first ones, and in the place of missing ones zeros, so that the
    mean is always over that number. Else all that it has.
    """

    def __init__(self, own: OwnRecords, parts: RunParts) -> None:
        self._own = own
        self._parts = parts
        self._clippers: dict[GradientEngine, Clipper] = {}
        # As `gradients.clipper.ClientRecords`, of whose turn it is.
        self.sizes = np.full(parts.config.data.clients, parts.records_each)
        self._turn: tuple[Tensor, Tensor] | None = None
        self._turn_of = 0, 0
        """The client whose turn it is, and the round."""
        self.own: int | None = None

    def of(self, clients: Ids) -> tuple[Tensor, Tensor, Ids]:
        """See `gradients.clipper.ClientRecords`."""
        assert self._turn is not None and len(clients) == 1
        x, y = self._turn
        return x, y, np.array([0, len(x)])

    def row(self, parameters: Tensor, client: int, round_number: int, context: Context) -> Tensor:
        """Return the client's clipped mean, float32 [d]; raises what its records make go wrong, and
        `NodeFault` for what goes wrong without them."""
        x, y = _read(self._own.records(context))
        whole = not x.is_floating_point() and self._own.takes_whole_numbers_alone(
            tuple(x.shape[1:])
        )
        x = x.to(torch.int64 if whole else torch.float32)
        if self._parts.config.clipping == "record":
            # A record that is no number counts as zero, whatever the loss does with labels; where
            # records are whole numbers it is a label that is none.
            count, numbers = self._parts.records_each, y.is_floating_point()
            self.own = min(len(x), count)
            if len(x) < count:
                log.warning(
                    "client %d has %d records, and data.records_per_client = %d: the missing ones "
                    "count as zero, and the report is sent",
                    client,
                    len(x),
                    count,
                )
            x = _cut(x, count, 0 if whole else torch.nan)
            y = _cut(y, count, (torch.nan if numbers else -1) if whole else 0)
        engine = self._own.engine(self._parts, x, y)
        if engine not in self._clippers:
            config, plan = self._parts.config, self._parts.randomizers
            self._clippers[engine] = make_clipper(config, self, plan, engine, self._parts.seeds)
        self._turn_of = client, round_number
        self._require_without_records(engine, parameters, x, y)
        return self._clipped(engine, parameters, x, y)

    def _clipped(self, engine: GradientEngine, parameters: Tensor, x: Tensor, y: Tensor) -> Tensor:
        client, round_number = self._turn_of
        device = self._parts.config.run.device
        self._turn = x.to(device), y.to(device)
        return self._clippers[engine](parameters, np.array([client]), round_number)[0]

    def _require_without_records(
        self, engine: GradientEngine, parameters: Tensor, x: Tensor, y: Tensor
    ) -> None:
        """Raise `NodeFault` if made-up records meet a fault of the machine; once for an engine.

        This is asked before the records take part, so that no record decides between an error and
        a report. The number of made-up records is public: `data.records_per_client`, or one where
        all records of a client are averaged.
        """
        if engine in self._own.tried_engines:
            return
        count = len(x) if self._parts.config.clipping == "record" else min(1, len(x))
        try:
            self._clipped(
                engine, parameters, torch.zeros_like(x[:count]), torch.zeros_like(y[:count])
            )
        except Exception as error:
            if of_the_machine(error):
                raise _fault(MODEL, error) from error
        self._own.tried_engines.add(engine)


def _of_classes(own: Loss) -> Loss:
    """Return the same, zero where a label is below zero."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if labels.is_floating_point():
            return own(outputs, labels)
        losses = own(outputs, labels.clamp(min=0))
        return torch.where(labels >= 0, losses, torch.zeros_like(losses))

    return loss


def _read(given: object) -> tuple[Tensor, Tensor]:
    """Return x [n, ...], y int64 [n] or float32 [n, k]."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InvalidValueError(
            "records(context)", type(given).__name__, "must return a pair (x, y) of arrays"
        )
    x, y = (torch.as_tensor(each) for each in given)
    if x.dim() < 1 or y.dim() < 1 or len(x) != len(y):
        shapes = f"shapes {tuple(x.shape)}, {tuple(y.shape)}"
        raise InvalidValueError("records(context)", shapes, "must be as many labels as records")
    whole = not y.dtype.is_floating_point
    return x, y.to(torch.int64 if whole else torch.float32)


def _cut(values: Tensor, count: int, missing: float) -> Tensor:
    """Return the first `count` rows; where there are fewer, rows of what counts for nothing
    behind."""
    if len(values) >= count:
        return values[:count]
    rest = values.new_full((count - len(values), *values.shape[1:]), missing)
    return torch.cat([values, rest])


def _shown(parameters: dict[str, tuple[int, ...]]) -> str:
    listed: Sequence[str] = [f"{name} {list(shape)}" for name, shape in parameters.items()]
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
