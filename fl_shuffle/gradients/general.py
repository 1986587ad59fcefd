"""Any other module: per-record gradients from torch.func, Opacus, or one record at a time."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients.blocks import blocks
from fl_shuffle.gradients.engine import (
    NORM_INFLATION,
    GradientEngine,
    Loss,
    check_labels,
    clip_factor,
    cross_entropy,
)

log = logging.getLogger(__name__)

RecordGradients = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(parameters [d], inputs [R, ...], labels [R]) -> gradients [R, d]."""

# Per-record gradients held at once: at most so many numbers, and so many records.
CHUNK_NUMBERS = 1 << 23
CHUNK_RECORDS = 32
UNDECIDED = "to be chosen on the first records"


class GeneralEngine(GradientEngine):
    """Materialises per-record gradients, `CHUNK_RECORDS` at a time, always in the same shape.

    The path is the first of torch.func (vmap), Opacus and a loop over records that runs on the
    first records it is given and agrees there with autograd, one record at a time. Every thread
    works on its own copy of the module.
    """

    def __init__(
        self, module: nn.Module, *, clip: str, norm: int, device: torch.device, loss: Loss | None
    ) -> None:
        super().__init__(module, clip=clip, norm=norm, device=device, loss=loss)
        self._module = copy.deepcopy(module).to(device).float()
        self._shapes = {name: value.shape for name, value in self._module.named_parameters()}
        self._chunk = max(1, min(CHUNK_RECORDS, CHUNK_NUMBERS // self.dimension))
        self._classes = 0
        self._path = UNDECIDED if clip == "record" else "autograd per client"
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def path(self) -> str:
        return self._path

    def _means(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        radius: Tensor,
        rows: Tensor,
    ) -> None:
        self._prepare(parameters, inputs, labels)
        if self.clip != "record":
            for client, (start, stop) in enumerate(pairwise(bounds)):
                # A copy, because kernels may round by the alignment of what they read.
                rows[client] = self._mean(
                    parameters, inputs[start:stop].clone(), labels[start:stop]
                )
            return
        limits_of = (radius / NORM_INFLATION).expand(len(rows))
        gradients_of = self._record_gradients()
        for block in blocks(bounds, self._chunk):
            members = slice(block.start, block.stop)
            x = _padded(inputs[members], self._chunk)
            y = _padded(labels[members], self._chunk)
            gradients = gradients_of(parameters, x, y).detach()
            lengths = torch.linalg.vector_norm(gradients, self.norm, dim=1)
            for part in block.segments:
                records = slice(part.row, part.row + part.count * part.size)
                limits = limits_of[part.client : part.client + part.count]
                factor = clip_factor(lengths[records], limits.repeat_interleave(part.size)) / float(
                    part.total
                )
                scaled = gradients[records].mul_(factor[:, None])
                for k in range(part.count):
                    total = scaled[k * part.size : (k + 1) * part.size].sum(0)
                    if part.add:
                        rows[part.client + k] += total
                    else:
                        rows[part.client + k] = total

    def _update(
        self,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
        bounds: NDArray[np.int64],
        steps: int,
        learning_rate: float,
        rows: Tensor,
    ) -> None:
        self._prepare(parameters, inputs, labels)
        for client, (start, stop) in enumerate(pairwise(bounds)):
            x, y = inputs[start:stop].clone(), labels[start:stop]
            moved = self._mean(parameters, x, y) * -learning_rate
            for _ in range(steps - 1):
                moved -= learning_rate * self._mean(parameters + moved, x, y)
            rows[client] = moved

    def _prepare(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> None:
        """Check labels against the module's classes; choose the path once."""
        with self._lock:
            if not self._classes:
                logits = self._logits(parameters, inputs[:1])
                if logits.dim() != 2 or len(logits) != 1:
                    raise InvalidValueError(
                        "module output",
                        list(logits.shape),
                        "must be logits [N, C] for N records",
                    )
                self._classes = logits.shape[1]
            if self.loss is None:
                check_labels(labels, self._classes)
            if self._path == UNDECIDED:
                self._path = self._choose(parameters, inputs[:2], labels[:2])
                log.info("per-record gradients by %s", self._path)

    def _choose(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> str:
        expected = self._by_loop(parameters, inputs, labels)
        for name, gradients_of in (("torch.func", self._by_vmap), ("opacus", self._by_opacus)):
            try:
                found = gradients_of(parameters, inputs, labels)
            except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as e:
                log.info("%s cannot differentiate this module per record: %s", name, e)
                continue
            if _agree(found, expected):
                return name
            log.info("%s disagrees with autograd on this module", name)
        return "functional loop"

    def _record_gradients(self) -> RecordGradients:
        if self._path == "torch.func":
            return self._by_vmap
        return self._by_opacus if self._path == "opacus" else self._by_loop

    def _own_module(self) -> nn.Module:
        """This thread's copy: functional calls lend it other parameters for their duration."""
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module)
        module: nn.Module = self._local.module
        return module

    def _named(self, parameters: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(parameters, [shape.numel() for shape in self._shapes.values()])
        return {
            name: piece.view(shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }

    def _logits(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        result: Tensor = functional_call(self._own_module(), self._named(parameters), (inputs,))
        return result

    def _losses(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        loss = self.loss or cross_entropy
        return loss(self._logits(parameters, inputs), labels)

    def _mean(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Gradient [d] of the records' mean loss."""
        with torch.enable_grad():
            leaf = parameters.detach().clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self._losses(leaf, inputs, labels).mean(), leaf)
        return gradient

    def _by_loop(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.stack(
            [
                self._mean(parameters, inputs[i : i + 1], labels[i : i + 1])
                for i in range(len(inputs))
            ]
        )

    def _by_vmap(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        def of_record(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._losses(flat, x[None], y[None]).sum()

        gradients: Tensor = vmap(grad(of_record), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return gradients

    def _by_opacus(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        from opacus.grad_sample import GradSampleModule

        if not hasattr(self._local, "sampled"):
            self._local.sampled = GradSampleModule(
                copy.deepcopy(self._module), loss_reduction="sum"
            )
        sampled = self._local.sampled
        trained = list(sampled._module.parameters())
        nn.utils.vector_to_parameters(parameters, trained)
        loss = self.loss or cross_entropy
        with torch.enable_grad():
            torch.autograd.backward(loss(sampled(inputs), labels).sum())
        # A parameter that no record reached has no sample.
        gradients = torch.cat(
            [
                parameters.new_zeros(len(inputs), p.numel())
                if p.grad_sample is None
                else p.grad_sample.reshape(len(inputs), -1)
                for p in trained
            ],
            dim=1,
        )
        sampled.zero_grad()
        return gradients


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Whether gradients [R, d] agree: to rounding where finite, and on which are not finite.

    NaN in one and infinity in the other is agreement: such a record is the same to all that
    follows, and must not choose the path, hence the rounding, of everybody else's gradients.
    """
    if found.shape != expected.shape:
        return False
    finite = torch.isfinite(expected).all(1)
    if not torch.equal(torch.isfinite(found).all(1), finite):
        return False
    if not bool(finite.any()):
        return True
    truth = expected[finite]
    return torch.allclose(found[finite], truth, rtol=1e-4, atol=1e-5 * float(truth.abs().max()))


def _padded(values: Tensor, count: int) -> Tensor:
    """Zeros behind `values` up to `count` records."""
    if len(values) == count:
        return values
    result = values.new_zeros(count, *values.shape[1:])
    result[: len(values)] = values
    return result
