"""Clipping: what a client sends before noise, one row of bounded norm a client.

A clipper is put together once, from the clients' records, the model and the settings, and then
called with a model's parameters and some clients. Which clipping is in force, how many local steps
are taken, and whether the mean is clipped again is decided in `make_clipper` and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.configuration.sections import Config
from fl_shuffle.gradients.engine import GradientEngine
from fl_shuffle.gradients.local_training import LocalTraining
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import move_error_behind
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.seeds import SeedTree

log = logging.getLogger("fl_shuffle.client")

Rows = Callable[[Tensor, Ids, int, NonfiniteRecords], Tensor]
"""(parameters [d], clients, round, tally) -> a row for each client, float32 [k, d]."""
BATCHES = "batches"
"""Purpose of the generator that draws the order of a client's records in a round."""

HELD_NUMBERS = 1 << 22
"""Numbers of rows (16 MiB), or one block, that are computed at a time where only their sum is
wanted, and leave in one message where they are: smaller pieces cost more than they save."""


class Clipper(Protocol):
    """What the clients would send without noise.

    Called with parameters float32 [d], ascending client ids [k], and the round's number. Returns
    their clipped means, float32 [k, d], all finite, each at most its client's radius long.
    """

    def __call__(self, parameters: Tensor, clients: Ids, round_number: int) -> Tensor:
        """See the class."""


def consecutive(clients: Ids) -> bool:
    """Return whether these ascending ids leave none out."""
    return int(clients[-1] - clients[0]) + 1 == len(clients)


@dataclass(frozen=True)
class ClientRecords:
    """Client i holds the rows `offsets[i]:offsets[i + 1]` of `inputs` [N, ...] and `labels` [N]."""

    inputs: Tensor
    labels: Tensor
    offsets: Ids

    @property
    def own(self) -> None:
        """None of them stands for a missing one."""

    @property
    def sizes(self) -> Ids:
        """How many records each client holds [clients]."""
        return np.diff(self.offsets)

    def of(self, clients: Ids) -> tuple[Tensor, Tensor, Ids]:
        """Return these ascending clients' inputs and labels, stacked, and where each one's begin: a
        view where the clients are consecutive."""
        if consecutive(clients):
            bounds = self.offsets[clients[0] : clients[-1] + 2]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            return self.inputs[rows], self.labels[rows], bounds - bounds[0]
        starts, ends = self.offsets[clients], self.offsets[clients + 1]
        bounds = np.concatenate([[0], np.cumsum(ends - starts)])
        index = np.repeat(starts - bounds[:-1], ends - starts) + np.arange(bounds[-1])
        taken = torch.from_numpy(index).to(self.inputs.device)
        return self.inputs[taken], self.labels[taken], bounds


class RecordHolder(Protocol):
    """`ClientRecords`, or an object that is asked for a client's records at its turn."""

    @property
    def sizes(self) -> Ids:
        """How many records each client holds [clients]."""

    @property
    def own(self) -> int | None:
        """See `NonfiniteRecords`; None where no record stands for a missing one."""

    def of(self, clients: Ids) -> tuple[Tensor, Tensor, Ids]:
        """See `ClientRecords`."""


class ClippedRows:
    """Rows from `rows`, each clipped in norm `norm` (1 or 2) to its client's of the `radii`
    [clients]; where they are None, `rows` are clipped already.

    Values that are not finite count as zero, because a missing report would reveal them.
    """

    def __init__(self, rows: Rows, radii: FloatArray | None, norm: int) -> None:
        self._rows = rows
        self._radii = radii
        self._norm = norm

    def __call__(self, parameters: Tensor, clients: Ids, round_number: int) -> Tensor:
        """See `Clipper`."""
        tally = NonfiniteRecords()
        rows = self.rows(parameters, clients, round_number, tally)
        warn_of(tally, len(clients))
        return rows

    def rows(
        self, parameters: Tensor, clients: Ids, round_number: int, tally: NonfiniteRecords
    ) -> Tensor:
        """Return the same, counting in `tally` what is not finite."""
        rows = self._rows(parameters, clients, round_number, tally)
        if self._radii is not None:
            valid = clip_rows(rows, self._radii[clients], self._norm)
            tally.add_clients(int((~valid).sum()))
        return rows


def make_clipper(
    config: Config,
    records: RecordHolder,
    plan: Calibration,
    engine: GradientEngine,
    seeds: SeedTree,
) -> ClippedRows:
    """Return the clipper that the settings ask for, of gradients or of local training.

    `seeds` draw the order of a client's records in each round, where it takes them in batches.
    """
    log.info("gradients: %s", engine.path)
    clip, training = engine_clip(config, records, plan), LocalTraining.of(config.training)
    in_batches = config.training.batch_size > 0

    def means(
        parameters: Tensor, clients: Ids, round_number: int, tally: NonfiniteRecords
    ) -> Tensor:
        inputs, labels, bounds = records.of(clients)
        tally.own = records.own
        return engine.client_means(
            parameters, inputs, labels, bounds, clip[clients], tally, mean_clips(plan, clients)
        )

    def updates(
        parameters: Tensor, clients: Ids, round_number: int, _tally: NonfiniteRecords
    ) -> Tensor:
        inputs, labels, bounds = records.of(clients)
        orders = [
            seeds.numpy_generator(round_number, client, BATCHES) if in_batches else None
            for client in clients.tolist()
        ]
        return engine.local_update(parameters, inputs, labels, bounds, training, orders).neg_()

    several = not config.training.single_step
    make, radii = (updates, plan.mean_clip) if several else (means, None)
    return ClippedRows(make, radii, plan.norm)


def mean_clips(plan: Calibration, clients: Ids) -> FloatArray | None:
    """Return the radii [k] that these clients' means are clipped to; None where they are not."""
    return None if plan.mean_clip is None else plan.mean_clip[clients]


def engine_clip(config: Config, records: RecordHolder, plan: Calibration) -> FloatArray:
    """Return the clips that the engine is asked for: the plan's, lowered by what float32 steps
    behind its means add to the move of a record, so that in all it is what the plan says."""
    sizes = records.sizes
    stretch = move_error_behind(
        sizes if config.clipping == "record" else np.zeros_like(sizes),
        plan.norm,
        clipped=config.privacy.client_clip_norm is not None,
        weighted=bool((plan.weight != 1.0).any()),
    )
    return plan.clip / stretch


def starts_of_pieces(blocks: Ids, dimension: int) -> Ids:
    """Return those of the blocks' starts, and their end, between which at most `HELD_NUMBERS`
    numbers of rows lie, or one block's: pieces of whole blocks."""
    held = max(1, HELD_NUMBERS // dimension)
    starts = blocks[np.unique(np.searchsorted(blocks, np.arange(0, blocks[-1], held)))]
    return np.unique(np.append(starts, blocks[-1]))


def warn_of(tally: NonfiniteRecords, clients: int) -> None:
    """Log what counted as zero, for the owner of the records; the reply must not reveal it."""
    if tally.clients:
        log.warning(
            "%d of %d clients have gradients or updates that are not finite, labels that are no "
            "class, or records on which the model raises%s; they count as zero, and the reports "
            "are sent",
            tally.clients,
            clients,
            f", in {tally.records} records" if tally.records else "",
        )
