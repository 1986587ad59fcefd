"""A node that plays virtual clients: gradients, clipping, noise, and nothing else leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.records import TrainRequest
from fl_shuffle.gradients import NonfiniteRecords, PreparedSum, make_gradient_engine
from fl_shuffle.gradients.rounding import on_grid, sum_grid
from fl_shuffle.planned_noise import PlannedNoise, common, consecutive, of
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.randomizers.vector import clip_rows, row_clips
from fl_shuffle.tasks.task import Task, load_task

log = logging.getLogger("fl_shuffle.client")


# Requests of a round in which every client takes part are the same in each.
MOST_KEPT = 64


# Rows [k, d] that are held at a time, where a sum takes them: so many numbers, or one block.
HELD_NUMBERS = 1 << 20


class _Part(NamedTuple):
    """Clients whose means are added up in one call: as prepared, or by their rows."""

    clients: NDArray[np.int64]
    prepared: PreparedSum | None
    blocks: NDArray[np.int64]


class Worker:
    """Computes the reports of any range of the federation's clients.

    The report of a client depends on the seed, the round, the client, the broadcast model, and, in
    its last bits, on the block of clients that the round's packing puts it in: requests are made of
    whole blocks (`fl_shuffle.gradients.Packing`). `bits`: see `noise_bits`, which is what is used
    unless another word size is given.
    """

    def __init__(
        self, config: Config, task: Task | None = None, *, bits: int | None = None
    ) -> None:
        self._config = config
        self._task: Task = task or load_task(config)
        self._device = torch.device(config.run.device)
        clip = "none" if config.clip == "update" else config.clip
        self._engine = make_gradient_engine(
            self._task.model(config),
            clip=clip,
            norm=self._task.plan.norm,
            device=self._device,
            loss=self._task.loss,
            records=len(self._task.labels),
            shape=tuple(self._task.inputs.shape[1:]),
        )
        self._inputs = self._task.inputs.to(self._device)
        self._engine.keep(self._inputs)
        self._labels = self._task.labels.to(self._device)
        plan = self._task.plan
        self._weight = common(plan.weight)
        self._by_rows = config.sums_need_rows
        self._sum_grid = sum_grid(float(np.sum(plan.weight * plan.radius)))
        self._clip = common(plan.clip)
        self._whole_parts: dict[tuple[int, int], list[_Part]] = {}
        self._noise = PlannedNoise(config, plan, self._task.budgets, bits=bits)
        self._path_noted = False

    @property
    def plan(self) -> RandomizerPlan:
        """The public plan: how every client's reports are made."""
        return self._task.plan

    def reports(self, request: TrainRequest, parameters: Tensor) -> NDArray[np.float32]:
        """Randomized reports, float32 [k, d], of the requested clients, in ascending client order.

        Everybody sends one, whatever their data: see `means`.
        """
        rows, nonfinite = self._reports_of(request.clients, request.round_number, parameters)
        self._note(request, nonfinite)
        return rows.numpy()

    def sum_of_reports(
        self, request: TrainRequest, parameters: Tensor
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The exact sum [d] of the requested clients' reports, and which [k] of them are in it.

        For simulations, where the way to the server is dear. The same reports, a few at a time.
        """
        plan, clients = self._task.plan, request.clients
        batch = ReportBatch(self._engine.dimension, keep=False, group=plan.group)
        usable = np.zeros(len(clients), dtype=bool)
        nonfinite = NonfiniteRecords()
        blocks = self._engine.packing.starts(np.diff(self._task.offsets)[clients])
        for place, (a, b) in enumerate(pairwise(self._held_at_a_time(blocks).tolist())):
            rows, found = self._reports_of(clients[a:b], request.round_number, parameters)
            nonfinite.add_all(found)
            usable[a:b] = batch.add(rows, place, plan.largest[clients[a:b]])
        self._note(request, nonfinite)
        return batch.release_sum().numpy(), usable

    def _reports_of(
        self, clients: NDArray[np.int64], round_number: int, parameters: Tensor
    ) -> tuple[Tensor, NonfiniteRecords]:
        rows, nonfinite = self.means(clients, parameters.to(self._device))
        # Reports leave from the processor. Noise that protects somebody is drawn there, too: the
        # generator of other devices is not a cryptographic one (docs/noise.md).
        if self._config.run.entropy == "system":
            rows = rows.cpu()
        self.randomize_(rows, clients, round_number)
        return rows.cpu(), nonfinite

    def _held_at_a_time(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the blocks' starts, and the end, between which rows are few enough to hold."""
        held = max(1, HELD_NUMBERS // self._engine.dimension)
        starts = blocks[np.unique(np.searchsorted(blocks, np.arange(0, blocks[-1], held)))]
        return np.unique(np.append(starts, blocks[-1]))

    def sum_of_means(self, request: TrainRequest, parameters: Tensor) -> NDArray[np.float64]:
        """The sum [d] of the weighted means of the requested clients: what their reports are before
        noise and rounding, added up. For simulations with pooled noise.

        A multiple of a public grid so fine that it does not show: sums over requests are exact.
        """
        if parameters.device != self._device:
            parameters = parameters.to(self._device)
        total: Tensor | None = None
        nonfinite = NonfiniteRecords()
        for part in self._parts(request):
            own = self._sum_of(part, parameters, nonfinite)
            total = own if total is None else total + own
        assert total is not None
        self._note(request, nonfinite)
        return total.numpy(force=total.device.type != "cpu")

    def _parts(self, request: TrainRequest) -> Iterable[_Part]:
        """The request's clients, whole blocks in a part: all of them if their records are a view;
        else one by one, made as they are asked for. Kept for the next round, if that asks all
        clients, too."""
        place = request.first, request.span
        if not request.bitmap and place in self._whole_parts:
            return self._whole_parts[place]
        clients = request.clients
        sizes = np.diff(self._task.offsets)[clients]
        packing = self._engine.packing if self._by_rows else self._engine.sum_packing
        blocks = packing.starts(sizes)
        starts = blocks if request.bitmap else blocks[[0, -1]]
        parts = (
            self._part(clients[a:b], sizes[a:b], blocks[(blocks >= a) & (blocks <= b)] - a)
            for a, b in pairwise(starts.tolist())
        )
        if request.bitmap or len(self._whole_parts) >= MOST_KEPT:
            return parts
        return self._whole_parts.setdefault(place, list(parts))

    def _part(
        self, clients: NDArray[np.int64], sizes: NDArray[np.int64], blocks: NDArray[np.int64]
    ) -> _Part:
        radii = self._mean_radii(clients)
        able = not self._by_rows or (bool(radii) and self._engine.sums_clipped_means)
        if self._config.training.local_steps > 1 or not able:
            return _Part(clients, None, blocks)
        inputs, labels, bounds = self._records(clients)
        plan = self._engine.plan_sum(
            bounds,
            of(self._clip, clients),
            of(self._weight, clients),
            grid=self._sum_grid,
            mean_clips=row_clips(radii, len(clients), self.plan.norm) if radii else None,
        )
        return _Part(clients, self._engine.prepared_sum(inputs, labels, plan), blocks)

    def _mean_radii(self, clients: NDArray[np.int64]) -> list[float | NDArray[np.float64]]:
        """To what the clients' means are clipped, one after the other."""
        plan = self._task.plan
        radii: list[float | NDArray[np.float64]] = []
        if self._config.clip == "update":
            radii.append(plan.clip[clients])
        if plan.client_clip is not None:
            radii.append(plan.client_clip)
        return radii

    def _sum_of(self, part: _Part, parameters: Tensor, nonfinite: NonfiniteRecords) -> Tensor:
        if part.prepared is not None:
            return part.prepared(parameters, nonfinite)
        total = torch.zeros(self._engine.dimension, dtype=torch.float64)
        for a, b in pairwise(self._held_at_a_time(part.blocks).tolist()):
            rows, found = self.means(part.clients[a:b], parameters)
            nonfinite.add_all(found)
            self._noise.weigh_(rows, part.clients[a:b])
            values = rows.cpu().numpy()
            blocks = part.blocks[(part.blocks >= a) & (part.blocks <= b)] - a
            for first, last in pairwise(blocks.tolist()):
                own = np.add.reduce(values[first:last], axis=0, dtype=np.float64)
                total += on_grid(torch.from_numpy(own), self._sum_grid)
        return total.to(self._device)

    def randomize_(self, rows: Tensor, clients: NDArray[np.int64], round_number: int) -> None:
        """In place: the clipped means [k, d] of these clients become their reports."""
        self._noise.randomize_(rows, clients, round_number)

    def _note(self, request: TrainRequest, nonfinite: NonfiniteRecords) -> None:
        """Log how gradients are computed, once, and what of them counts as zero."""
        if not self._path_noted:
            # Some paths are chosen on the first records.
            self._path_noted = True
            log.info("gradients: %s", self._engine.path)
        if nonfinite.clients:
            # For whoever keeps this data. The reply must not tell.
            log.warning(
                "round %d: %d of %d clients have gradients that are not finite, labels that are no "
                "class, or records on which the model raises%s; they count as zero, and the "
                "reports are sent",
                request.round_number,
                nonfinite.clients,
                len(request.clients),
                f", in {nonfinite.records} records" if nonfinite.records else "",
            )

    def _records(self, clients: NDArray[np.int64]) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """The clients' inputs and labels, stacked (a view where the clients are consecutive)."""
        offsets = self._task.offsets
        if consecutive(clients):
            bounds = offsets[clients[0] : clients[-1] + 2]
            records = slice(int(bounds[0]), int(bounds[-1]))
            return self._inputs[records], self._labels[records], bounds - bounds[0]
        starts, ends = offsets[clients], offsets[clients + 1]
        local = np.concatenate([[0], np.cumsum(ends - starts)])
        rows = np.repeat(starts - local[:-1], ends - starts) + np.arange(local[-1])
        index = torch.from_numpy(rows).to(self._device)
        return self._inputs[index], self._labels[index], local

    def means(
        self, clients: NDArray[np.int64], parameters: Tensor
    ) -> tuple[Tensor, NonfiniteRecords]:
        """Clipped means, float32 [k, d], all finite, and how many of them had to be made so.

        What is not finite counts as zero: with clip "record" the record, so that one record moves
        its client's mean no further than any other would; else the client's mean.
        """
        plan, training = self._task.plan, self._config.training
        inputs, labels, offsets = self._records(clients)
        nonfinite = NonfiniteRecords()
        if training.local_steps > 1:
            rows = self._engine.local_update(
                parameters,
                inputs,
                labels,
                offsets,
                steps=training.local_steps,
                learning_rate=training.local_learning_rate,
            ).neg_()
        else:
            radius = of(self._clip, clients)
            rows = self._engine.client_means(
                parameters, inputs, labels, offsets, radius, nonfinite=nonfinite
            )
        for radii in self._mean_radii(clients):
            valid = clip_rows(rows, radii, plan.norm)
            nonfinite.add_clients(int((~valid).sum()))
        return rows, nonfinite
