"""Any other module: per-record gradients by its layers, from torch.func, or one at a time."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fl_shuffle.errors import FlShuffleError, InvalidValueError
from fl_shuffle.gradients.blocks import Packing, equal_pieces
from fl_shuffle.gradients.engine import GradientBatch, GradientEngine, cross_entropy
from fl_shuffle.gradients.kernels import FLUSHED, aligned, clip_factor
from fl_shuffle.gradients.layers import FAILURES, FEW, LayerGradients, NotByLayersError
from fl_shuffle.gradients.local_training import LocalTraining
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords, without_nonfinite_
from fl_shuffle.gradients.rounding import HALF_ULP_64, length_error, move_error_float64
from fl_shuffle.trials.check import POOL, made_up
from fl_shuffle.trials.models import MOVED

log = logging.getLogger(__name__)
client_log = logging.getLogger("fl_shuffle.client.gradients")

RecordGradientFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(parameters [d], inputs [R, ...], labels [R]) -> gradients [R, d]."""

AUTOGRAD_RECORDS = 512
"""Records of a client that go through autograd together, where none is clipped."""
AGREEMENT = 1e-4, 1e-5
"""A path is used if its gradients equal autograd's up to this, of each number and of the
largest."""
STRETCH = 256
"""Numbers of a gradient whose squares are added in float32; these sums are added in float64. All
in float64 took twenty times as long."""
BY_LAYERS = "layers"
UNDECIDED = "to be chosen with the first parameters"


class GeneralEngine(GradientEngine):
    """Materialises per-record gradients, one block of records at a time.

    By closed forms of the module's layers (`layers.py`), or else by torch.func (vmap), if that runs
    on made-up records and agrees there with autograd, one record at a time; else by a loop over
    records. The choice does not depend on the data. Every thread works on its own copy of the
    module.

    A record on which the module raises counts as zero, as one whose gradient is not finite: only
    after a piece has raised are its records tried one by one. A module that raises on a made-up
    record as well is broken, and its error is raised; so is a lack of memory or of a package where
    as many made-up records meet it.
    """

    def __init__(self, module: nn.Module, packing: Packing, **options: Any) -> None:
        super().__init__(module, packing, **options)
        self._module = copy.deepcopy(module).to(self.device).float()
        self._shapes = {name: value.shape for name, value in self._module.named_parameters()}
        self._outputs: int | None = None
        self._path = UNDECIDED if self.clip == "record" else "autograd per client"
        self._lock = threading.Lock()
        self._local = threading.local()
        self._sizes: dict[int, bool] = {}
        """Numbers of records that closed forms of layers were tried with, and whether they may."""
        self._trial: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    @property
    def path(self) -> str:
        return self._path

    def _length_error(self) -> float:
        # Float32 within a stretch of numbers, float64 beyond.
        return length_error(STRETCH, self.norm) + (self.dimension + 2) * HALF_ULP_64

    def _move_error(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        return move_error_float64(sizes)

    def _block_means(
        self, parameters: Tensor, batch: GradientBatch, rows: Tensor, tally: NonfiniteRecords
    ) -> None:
        ends = np.cumsum(batch.sizes).tolist()
        limits = batch.limits
        if limits is None:
            self._tried_out(parameters, batch.inputs, batch.labels)
            for client, (start, stop) in enumerate(pairwise([0, *ends])):
                rows[client] = self._mean(parameters, batch.part(client, client + 1, start, stop))
            return
        gradients_of = self._record_gradients(parameters, batch)
        total = torch.zeros(rows.shape, dtype=torch.float64, device=self.device)
        sizes = torch.from_numpy(batch.sizes).to(self.device)
        owners = torch.arange(len(rows), device=self.device).repeat_interleave(sizes)
        shares = sizes.reciprocal()
        found = torch.zeros(ends[-1], dtype=torch.bool)
        # One piece, unless the block is one long client.
        for piece in equal_pieces(ends[-1], self.packing.records):
            gradients = self._finite_or_nan(
                gradients_of, parameters, aligned(batch.inputs[piece]), aligned(batch.labels[piece])
            )
            if batch.unusable is not None:
                gradients[batch.unusable[piece]] = torch.nan
            # A length beyond float32 counts as not finite.
            lengths = _lengths(gradients, self.norm)
            factor = clip_factor(lengths.float(), limits[owners[piece]]) * shares[owners[piece]]
            marks = without_nonfinite_(factor, gradients)
            if marks is not None:
                found[piece] = marks.cpu()
            # A client's records are one product in float64. The factor is float32, so a record's
            # share is what rounded factors multiply to, exactly.
            stop = min(piece.stop, ends[-1])
            cuts = np.unique(np.clip([piece.start, *ends], piece.start, stop)) - piece.start
            for first, last in pairwise(cuts.tolist()):
                own = slice(first, last)
                total[int(owners[piece.start + first])].addmv_(
                    gradients[own].double().T, factor[own].double()
                )
        rows.copy_(total)
        if bool(found.any()):
            tally.add(found, batch.sizes)

    def _finite_or_nan(
        self,
        gradients_of: RecordGradientFunction,
        parameters: Tensor,
        inputs: Tensor,
        labels: Tensor,
    ) -> Tensor:
        """Return gradients [R, d]; NaN for the records on which the module raises.

        These are then replaced by a made-up one, so that all others are computed in the same
        shapes and keep their bits.
        """
        try:
            return gradients_of(parameters, inputs, labels).detach()
        except (FlShuffleError, KeyboardInterrupt):
            raise
        except BaseException as error:  # exiting, or a library's panic, is no better than failing
            raising = torch.zeros(len(inputs), dtype=torch.bool, device=self.device)
            for i in range(len(inputs)):
                try:
                    gradients_of(parameters, aligned(inputs[i : i + 1]), labels[i : i + 1])
                except KeyboardInterrupt:
                    raise
                except BaseException:
                    raising[i] = True
            self._tell(error)
            if not bool(raising.any()):
                # Together they need too much memory. Whether a reply is sent may not depend on
                # records: all of them count as zero.
                return torch.full((len(inputs), self.dimension), torch.nan, device=self.device)
            inputs, labels = inputs.clone(), labels.clone()
            inputs[raising], labels[raising] = _made_up(inputs)[0], 0
            gradients = gradients_of(parameters, aligned(inputs), aligned(labels)).detach()
            gradients[raising] = torch.nan
            return gradients

    def _tell(self, error: BaseException) -> None:
        """Log for the owner of the records: nothing of it may leave."""
        client_log.warning(
            "the model raises on some records, which count as zero: %s: %s",
            type(error).__name__,
            error,
        )

    def _block_update(
        self,
        parameters: Tensor,
        batch: GradientBatch,
        training: LocalTraining,
        orders: Sequence[np.random.Generator | None],
        rows: Tensor,
    ) -> None:
        self._tried_out(parameters, batch.inputs, batch.labels)
        ends = np.cumsum(batch.sizes).tolist()
        for client, (start, stop) in enumerate(pairwise([0, *ends])):
            own = batch.part(client, client + 1, start, stop)
            moved = torch.zeros_like(parameters)
            direction: Tensor | None = None
            for chosen in training.batches(stop - start, orders[client]):
                some = own if chosen is None else own.records(chosen)
                step = self._mean(parameters + moved, some)
                if training.proximal_mu:
                    step = step + training.proximal_mu * moved
                if training.momentum and direction is not None:
                    step = step + training.momentum * direction
                direction = step
                moved -= training.learning_rate * step
            rows[client] = moved

    def _classes(self, parameters: Tensor, inputs: Tensor) -> int:
        return self._tried_out(parameters, inputs, torch.zeros(2, dtype=torch.int64))

    def _tried_out(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> int:
        """Return the number of the module's outputs, once it has computed a gradient of made-up
        records.

        What it raises there depends on nobody's records. The labels serve as a pattern only.
        """
        with self._lock:
            if self._outputs is None:
                inputs = _made_up(inputs)
                logits = self._logits(parameters, inputs)
                if logits.dim() != 2 or len(logits) != len(inputs):
                    raise InvalidValueError(
                        "module output", list(logits.shape), "must be logits [N, C] for N records"
                    )
                labels = labels.new_zeros((len(inputs), *labels.shape[1:]), device=self.device)
                self._gradient(parameters, inputs, labels)
                self._outputs = logits.shape[1]
        return self._outputs

    def _choose(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> str:
        if self._fits_layers(parameters, inputs, labels):
            return BY_LAYERS
        labels = labels.new_zeros((2, *labels.shape[1:]))
        inputs = _made_up(inputs)
        expected = self._by_loop(parameters, inputs, labels)
        try:
            found = self._by_vmap(parameters, inputs, labels)
        except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            log.info("torch.func cannot differentiate this module per record: %s", error)
            return "functional loop"
        if _agree(found, expected):
            return "torch.func"
        log.info("torch.func disagrees with autograd on this module")
        return "functional loop"

    def _fits_layers(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> bool:
        """Return whether closed forms of layers keep made-up records apart, and agree with
        autograd.

        Parameters are moved a little first: zeros, as in a last layer, hide what is behind them.
        """
        moved = torch.randn(self.dimension, generator=torch.Generator().manual_seed(0))
        parameters = parameters + MOVED * moved.to(parameters.device)
        labels = labels.new_zeros((POOL, *labels.shape[1:]))
        tried = False
        for kind in ("bits", "uniform", "normal"):
            made = made_up(tuple(inputs.shape[1:]), kind).to(inputs.device, inputs.dtype)
            try:
                expected = self._by_loop(parameters, made, labels)
            except Exception as error:
                # Tokens are whole numbers, for one. Where no kind can be computed, none is tried.
                log.debug("made-up records (%s): %s", kind, error)
                continue
            self._trial = self._trial or (parameters, made, labels, expected)
            try:
                sizes = () if tried else (2, min(FEW, self.packing.records), self.packing.records)
                for size in sizes:
                    self._try_layers(size)
                found = self._own_layers().rows(self._named(parameters), made, labels)
            except (NotByLayersError, *FAILURES) as error:
                log.info("no gradients by layers: %s", error)
                return False
            if not _agree(found, expected):
                log.info("gradients by layers disagree with autograd on this module")
                return False
            tried = True
        return tried

    def _try_layers(self, size: int) -> None:
        """Try closed forms of layers on `count` made-up records, computed together; raises as they
        do, and `NotByLayersError` where rows are not autograd's."""
        assert self._trial is not None
        parameters, made, labels, expected = self._trial
        rows = self._own_layers().rows_apart(self._named(parameters), made, labels, size)
        if not _agree(rows, expected[torch.arange(size) % len(made)]):
            raise NotByLayersError(f"rows of {size} records disagree with autograd")
        self._sizes[size] = True

    def _record_gradients(self, parameters: Tensor, batch: GradientBatch) -> RecordGradientFunction:
        """Return the path's; chosen when it is first needed."""
        with self._lock:
            if self._path == UNDECIDED:
                self._path = self._choose(parameters, batch.inputs, batch.labels)
                log.info("per-record gradients by %s", self._path)
        ways = {BY_LAYERS: self._by_layers, "torch.func": self._by_vmap}
        return ways.get(self._path, self._by_loop)

    def _own_module(self) -> nn.Module:
        """Return this thread's copy: functional calls lend it other parameters for their
        duration."""
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module)
        module: nn.Module = self._local.module
        return module

    def _own_layers(self) -> LayerGradients:
        """Return this thread's copy whose layers keep what their gradients need."""
        if not hasattr(self._local, "layers"):
            self._local.layers = LayerGradients(self._module, self.loss)
        layers: LayerGradients = self._local.layers
        return layers

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

    def _mean(self, parameters: Tensor, batch: GradientBatch) -> Tensor:
        """Return the gradient [d] of the mean loss of a client's records; NaN if one of them is
        unusable, or if the module raises on them."""
        if batch.unusable is not None and bool(batch.unusable.any()):
            return torch.full_like(parameters, torch.nan)
        size = len(batch.labels)
        total = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        for piece in equal_pieces(size, AUTOGRAD_RECORDS):
            inputs, labels = aligned(batch.inputs[piece]), aligned(batch.labels[piece])
            try:
                total += self._gradient(parameters, inputs, labels, size)
            except (FlShuffleError, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._tell(error)
                return torch.full_like(parameters, torch.nan)
        return total.float()

    def _gradient(
        self, parameters: Tensor, inputs: Tensor, labels: Tensor, size: int = 1
    ) -> Tensor:
        """Return the gradient [d] of the sum of the records' losses over `size`."""
        with torch.enable_grad():
            leaf = parameters.detach().clone().requires_grad_()
            loss = self._losses(leaf, inputs, labels).sum() / size
            (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient

    def _by_loop(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        return torch.stack(
            [
                self._gradient(parameters, aligned(inputs[i : i + 1]), labels[i : i + 1])
                for i in range(len(inputs))
            ]
        )

    def _by_layers(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        if not self._layers_take(len(labels)):
            return self._by_loop(parameters, inputs, labels)
        return self._own_layers().rows(self._named(parameters), inputs, labels)

    def _layers_take(self, size: int) -> bool:
        """Return whether this number of records may be computed together: code can treat a number
        of them differently. Tried once for each number; nothing of it depends on the records."""
        with self._lock:
            if size not in self._sizes:
                try:
                    self._try_layers(size)
                except (NotByLayersError, *FAILURES) as error:
                    log.info("%d records are computed one by one: %s", size, error)
                    self._sizes[size] = False
            return self._sizes[size]

    def _by_vmap(self, parameters: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        def of_record(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return self._losses(flat, x[None], y[None]).sum()

        gradients: Tensor = vmap(grad(of_record), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return gradients


def _lengths(gradients: Tensor, norm: int) -> Tensor:
    """Return the l1 or l2 norms float64 [R] of gradients [R, d].

    With the error that `length_error(STRETCH, norm)` allows, and float64's for the sum of stretches
    (`rounding.py`). A square below float32's range counts as zero, so `FLUSHED` is added for each.
    """
    records, dimension = gradients.shape
    whole = dimension // STRETCH * STRETCH
    body = gradients[:, :whole].view(records, -1, STRETCH)
    rest = gradients[:, whole:]
    if norm == 1:
        stretches: Tensor = body.abs().sum(2).sum(1, dtype=torch.float64)
        return stretches.add_(rest.abs().sum(1))
    squares: Tensor = torch.linalg.vector_norm(body, dim=2).double().square_().sum(1)
    squares += torch.linalg.vector_norm(rest, dim=1).double().square_()
    return squares.add_(dimension * FLUSHED).sqrt_()


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Return whether gradients [R, d] agree: to rounding where finite, and on which are not finite.

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
    relative, of_largest = AGREEMENT
    atol = of_largest * float(truth.abs().max())
    return torch.allclose(found[finite], truth, rtol=relative, atol=atol)


def _made_up(like: Tensor) -> Tensor:
    """Return two records of that type and shape: uniform numbers of a fixed seed, or zeros."""
    shape = (2, *like.shape[1:])
    if not like.is_floating_point():
        return like.new_zeros(shape)
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return uniform.to(like.device, like.dtype)
