"""Clipping: what a client sends before noise, one row of bounded norm a client.

A clipper is put together once, from the clients' records, the model and the settings, and then
called with a model's parameters and some clients. Which clipping is in force, how many local steps
are taken, whether the mean is clipped again, and whether rows are needed at all is decided in
`make_clipper` and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fl_shuffle.configuration.sections import Config
from fl_shuffle.gradients.engine import GradientEngine
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import move_error_behind, on_grid, sum_grid
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.gradients.softmax_regression import PreparedSum, SoftmaxRegression, SumPlan
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.randomizers.additive import weigh_
from fl_shuffle.randomizers.base import FloatArray, Ids

log = logging.getLogger("fl_shuffle.client")

Rows = Callable[[Tensor, Ids, NonfiniteRecords], Tensor]
"""(parameters [d], clients, tally) -> a row for each client, float32 [k, d]."""

HELD_NUMBERS = 1 << 22
"""So many numbers of rows (16 MiB), or one block, are computed at a time where only their sum is
wanted, and leave in one message where they are: smaller pieces cost more than they save."""
MOST_PREPARED = 64
"""Sums of the requests of a round in which every client takes part: the same in each round."""


class Clipper(Protocol):
    """What the clients would send without noise.

    Called with parameters float32 [d] and ascending client ids [k]. Returns their clipped means,
    float32 [k, d], all finite, each at most its client's radius long; or, in a simulation that
    makes no reports, the one weighted sum of them, float64 [d].
    """

    def __call__(self, parameters: Tensor, clients: Ids) -> Tensor:
        """See the class."""


def consecutive(clients: Ids) -> bool:
    """Whether these ascending ids leave none out."""
    return int(clients[-1] - clients[0]) + 1 == len(clients)


@dataclass(frozen=True)
class Records:
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
        """These ascending clients' inputs and labels, stacked, and where each one's begin: a view
        where the clients are consecutive."""
        if consecutive(clients):
            bounds = self.offsets[clients[0] : clients[-1] + 2]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            return self.inputs[rows], self.labels[rows], bounds - bounds[0]
        starts, ends = self.offsets[clients], self.offsets[clients + 1]
        bounds = np.concatenate([[0], np.cumsum(ends - starts)])
        index = np.repeat(starts - bounds[:-1], ends - starts) + np.arange(bounds[-1])
        taken = torch.from_numpy(index).to(self.inputs.device)
        return self.inputs[taken], self.labels[taken], bounds


class Asked(Protocol):
    """`Records`, or whoever is asked for them when a client's turn comes."""

    @property
    def sizes(self) -> Ids:
        """How many records each client holds [clients]."""

    @property
    def own(self) -> int | None:
        """See `NonfiniteRecords`; None where no record stands for a missing one."""

    def of(self, clients: Ids) -> tuple[Tensor, Tensor, Ids]:
        """See `Records`."""


class ClippedRows:
    """Rows from `rows`, each clipped in norm `norm` (1 or 2) to its client's of the `radii`
    [clients]; where they are None, `rows` are clipped already.

    What is not finite counts as zero, whoever made it: a missing report would tell of it.
    """

    def __init__(self, rows: Rows, radii: FloatArray | None, norm: int) -> None:
        self._rows = rows
        self._radii = radii
        self._norm = norm

    def __call__(self, parameters: Tensor, clients: Ids) -> Tensor:
        """See `Clipper`."""
        tally = NonfiniteRecords()
        rows = self.rows(parameters, clients, tally)
        warn_of(tally, len(clients))
        return rows

    def rows(self, parameters: Tensor, clients: Ids, tally: NonfiniteRecords) -> Tensor:
        """The same, counting in `tally` what is not finite."""
        rows = self._rows(parameters, clients, tally)
        if self._radii is not None:
            valid = clip_rows(rows, self._radii[clients], self._norm)
            tally.add_clients(int((~valid).sum()))
        return rows


@dataclass(frozen=True, eq=False)
class SumOfMeans:
    """The weighted sum of the clients' clipped means, for simulations with aggregate noise.

    A multiple of a public grid so fine that it does not show: sums of such sums are exact. Where
    the engine can add up without making rows, `prepare` makes the sum of certain clients; that of
    a run of consecutive ones is kept for the next round.
    """

    rows: ClippedRows
    weight: FloatArray
    grid: float
    blocks: Callable[[Ids], Ids]
    prepare: Callable[[Ids], PreparedSum] | None
    _kept: dict[tuple[int, int], PreparedSum] = field(default_factory=dict, init=False)

    def __call__(self, parameters: Tensor, clients: Ids) -> Tensor:
        """See `Clipper`."""
        tally = NonfiniteRecords()
        if self.prepare is None:
            total = self._by_rows(parameters, clients, tally)
        else:
            total = self._prepared(self.prepare, clients)(parameters, tally)
        warn_of(tally, len(clients))
        return total

    def _prepared(self, prepare: Callable[[Ids], PreparedSum], clients: Ids) -> PreparedSum:
        if not consecutive(clients):
            return prepare(clients)
        key = int(clients[0]), int(clients[-1])
        total_at = self._kept.get(key) or prepare(clients)
        if len(self._kept) < MOST_PREPARED:
            self._kept[key] = total_at
        return total_at

    def _by_rows(self, parameters: Tensor, clients: Ids, tally: NonfiniteRecords) -> Tensor:
        total = torch.zeros(len(parameters), dtype=torch.float64)
        blocks = self.blocks(clients)
        for a, b in pairwise(starts_of_pieces(blocks, len(parameters)).tolist()):
            rows = self.rows.rows(parameters, clients[a:b], tally)
            weigh_(rows, self.weight[clients[a:b]])
            values = rows.cpu().numpy()
            inside = blocks[(blocks >= a) & (blocks <= b)] - a
            for first, last in pairwise(inside.tolist()):
                own = np.add.reduce(values[first:last], axis=0, dtype=np.float64)
                total += on_grid(torch.from_numpy(own), self.grid)
        return total


def make_clipper(
    config: Config, records: Asked, plan: RandomizerPlan, engine: GradientEngine
) -> Clipper:
    """The clipper that the settings ask for, of gradients or of several local steps."""
    log.info("gradients: %s", engine.path)
    clip, training = engine_clip(config, records, plan), config.training

    def means(parameters: Tensor, clients: Ids, tally: NonfiniteRecords) -> Tensor:
        inputs, labels, bounds = records.of(clients)
        tally.own = records.own
        return engine.client_means(
            parameters, inputs, labels, bounds, clip[clients], tally, mean_clips(clients)
        )

    def mean_clips(clients: Ids) -> FloatArray | None:
        return None if plan.mean_clip is None else plan.mean_clip[clients]

    def updates(parameters: Tensor, clients: Ids, _tally: NonfiniteRecords) -> Tensor:
        inputs, labels, bounds = records.of(clients)
        steps, rate = training.local_steps, training.local_learning_rate
        moved = engine.local_update(
            parameters, inputs, labels, bounds, steps=steps, learning_rate=rate
        )
        return moved.neg_()

    several = training.local_steps > 1
    make, radii = (updates, plan.mean_clip) if several else (means, None)
    rows = ClippedRows(make, radii, plan.norm)
    if config.run.noise == "per-report":
        return rows
    sizes, grid = records.sizes, sum_grid(float(np.sum(plan.weight * plan.radius)))

    def prepare(clients: Ids) -> PreparedSum:
        assert isinstance(engine, SoftmaxRegression)
        inputs, labels, bounds = records.of(clients)
        wanted = SumPlan(bounds, clip[clients], plan.weight[clients], grid, mean_clips(clients))
        return engine.prepared_sum(inputs, labels, wanted)

    return SumOfMeans(
        rows,
        plan.weight,
        grid,
        lambda clients: engine.packing.starts(sizes[clients]),
        prepare if isinstance(engine, SoftmaxRegression) and not several else None,
    )


def engine_clip(config: Config, records: Asked, plan: RandomizerPlan) -> FloatArray:
    """The clips that the engine is asked for: the plan's, lowered by what float32 steps behind its
    means add to the move of a record, so that in all it is what the plan says."""
    sizes = records.sizes
    stretch = move_error_behind(
        sizes if config.clip == "record" else np.zeros_like(sizes),
        plan.norm,
        clipped=config.privacy.client_clip is not None,
        weighted=bool((plan.weight != 1.0).any()),
    )
    return plan.clip / stretch


def starts_of_pieces(blocks: Ids, dimension: int) -> Ids:
    """Those of the blocks' starts, and their end, between which at most `HELD_NUMBERS` numbers of
    rows lie, or one block's: pieces of whole blocks."""
    held = max(1, HELD_NUMBERS // dimension)
    starts = blocks[np.unique(np.searchsorted(blocks, np.arange(0, blocks[-1], held)))]
    return np.unique(np.append(starts, blocks[-1]))


def warn_of(tally: NonfiniteRecords, clients: int) -> None:
    """Log what counted as zero, for whoever keeps the records; the reply must not tell."""
    if tally.clients:
        log.warning(
            "%d of %d clients have gradients or updates that are not finite, labels that are no "
            "class, or records on which the model raises%s; they count as zero, and the reports "
            "are sent",
            tally.clients,
            clients,
            f", in {tally.records} records" if tally.records else "",
        )
