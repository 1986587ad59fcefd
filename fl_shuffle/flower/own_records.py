"""Gradients of a user's own records, each clipped by itself, as in the framework's own runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError, ProgramError
from fl_shuffle.federation import RunParts
from fl_shuffle.flower.messages import Layout
from fl_shuffle.gradients.clipper import Clipper, make_clipper
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.structure import check_module
from fl_shuffle.randomizers.base import Ids

RecordsOf = Callable[[Context], tuple[Any, Any]]
"""(context of a client) -> its (x [n, ...], y [n] or [n, k]): tensors or arrays."""


@dataclass(frozen=True)
class OwnRecords:
    """What an app gives instead of a training loop; `loss` as `gradients.Loss`, None for cross
    entropy. Several threads may ask; an engine is made once for each shape of a record."""

    records: RecordsOf
    model: Callable[[], nn.Module]
    loss: Loss | None = None
    _engines: dict[Any, GradientEngine] = field(default_factory=dict)
    _making: Lock = field(default_factory=Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was given: Ray hands the app to its actors, and nobody can hand a lock on."""
        return OwnRecords, (self.records, self.model, self.loss)

    def engine(self, parts: RunParts, shape: tuple[int, ...]) -> GradientEngine:
        """Of records of this shape, with the run's clipping."""
        config, count = parts.config, parts.config.data.clients * parts.records_each
        key = config.clip, parts.randomizers.norm, config.run.device, shape
        with self._making:
            if key not in self._engines:
                self._engines[key] = parts.gradient_engine(self.model(), count, shape, self.loss)
            return self._engines[key]

    def require_model(self, layout: Layout) -> None:
        """Raise `ProgramError` where the model is not that of the arrays in a request, or has no
        gradient of a single record."""
        try:
            model = self.model()
            check_module(model)
        except InvalidValueError as error:
            raise ProgramError(f"ShuffleClientApp(model=...): {error}") from None
        own = {name: tuple(each.shape) for name, each in model.named_parameters()}
        sent = dict(zip(layout.names, layout.shapes, strict=True))
        if list(own.items()) != list(sent.items()):
            raise ProgramError(
                "ShuffleClientApp(model=...): its parameters are "
                f"{_shown(own)}, and initial_arrays of the server {_shown(sent)}"
            )


class RecordGradients:
    """A clipper of one request's clients: each is asked for its records when it is its turn.

    Where each record is clipped by itself as many of a client count as `data.records` says, in
    public: of more the first ones, and in the place of missing ones zeros, so that the mean is
    always over that number. Else all that it has.
    """

    def __init__(self, own: OwnRecords, parts: RunParts) -> None:
        self._own = own
        self._parts = parts
        self._clippers: dict[GradientEngine, Clipper] = {}
        # As `gradients.clipper.Records`, of whose turn it is.
        self.sizes = np.full(parts.config.data.clients, parts.records_each)
        self._turn: tuple[Tensor, Tensor] | None = None

    def of(self, clients: Ids) -> tuple[Tensor, Tensor, Ids]:
        """See `gradients.clipper.Records`."""
        assert self._turn is not None and len(clients) == 1
        x, y = self._turn
        return x, y, np.array([0, len(x)])

    def row(self, parameters: Tensor, client: int, context: Context) -> Tensor:
        """The client's clipped mean, float32 [d]; raises what its records make go wrong."""
        device = self._parts.config.run.device
        x, y = (each.to(device) for each in _read(self._own.records(context)))
        if self._parts.config.clip == "record":
            # A record that is no number counts as zero, whatever the loss does with labels.
            count = self._parts.records_each
            x, y = _cut(x, count, torch.nan), _cut(y, count, 0)
        self._turn = x, y
        engine = self._own.engine(self._parts, tuple(x.shape[1:]))
        if engine not in self._clippers:
            config, plan = self._parts.config, self._parts.randomizers
            self._clippers[engine] = make_clipper(config, self, plan, engine)
        return self._clippers[engine](parameters, np.array([client]))[0]


def _read(given: object) -> tuple[Tensor, Tensor]:
    """x float32 [n, ...], y int64 [n] or float32 [n, k]."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise InvalidValueError(
            "records(context)", type(given).__name__, "must return a pair (x, y) of arrays"
        )
    x, y = (torch.as_tensor(each) for each in given)
    if x.dim() < 1 or y.dim() < 1 or len(x) != len(y):
        shapes = f"shapes {tuple(x.shape)}, {tuple(y.shape)}"
        raise InvalidValueError("records(context)", shapes, "must be as many labels as records")
    whole = not y.dtype.is_floating_point
    return x.to(torch.float32), y.to(torch.int64 if whole else torch.float32)


def _cut(values: Tensor, count: int, missing: float) -> Tensor:
    """The first `count` rows; where there are fewer, rows of what counts for nothing behind."""
    if len(values) >= count:
        return values[:count]
    rest = values.new_full((count - len(values), *values.shape[1:]), missing)
    return torch.cat([values, rest])


def _shown(parameters: dict[str, tuple[int, ...]]) -> str:
    listed: Sequence[str] = [f"{name} {list(shape)}" for name, shape in parameters.items()]
    return ", ".join(listed[:4]) + (", ..." if len(listed) > 4 else "")
