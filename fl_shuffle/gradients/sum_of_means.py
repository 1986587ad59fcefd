"""The weighted sum of the clients' clipped means, where all of them get one vector of noise.

For simulations that make no reports (`run.noise`): what is added up is what each client would clip
and then randomize, so rows are needed only where the engine cannot add up without making them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.configuration.sections import Config
from fl_shuffle.gradients.clipper import (
    ClippedRows,
    RecordHolder,
    consecutive,
    engine_clip,
    make_clipper,
    mean_clips,
    starts_of_pieces,
    warn_of,
)
from fl_shuffle.gradients.engine import GradientEngine
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.rounding import on_grid, sum_grid
from fl_shuffle.gradients.softmax_regression import PreparedSum, SoftmaxRegression, SumPlan
from fl_shuffle.randomizers.additive import weigh_
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.seeds import SeedTree

MOST_PREPARED = 64
"""Sums of the requests of a round in which every client takes part: the same in each round."""


@dataclass(frozen=True, eq=False)
class SumOfMeans:
    """The weighted sum of the clients' clipped means, float64 [d].

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

    def __call__(self, parameters: Tensor, clients: Ids, round_number: int) -> Tensor:
        """Return the sum over ascending clients [k] at these parameters, float32 [d]."""
        tally = NonfiniteRecords()
        if self.prepare is None:
            total = self._by_rows(parameters, clients, round_number, tally)
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

    def _by_rows(
        self, parameters: Tensor, clients: Ids, round_number: int, tally: NonfiniteRecords
    ) -> Tensor:
        total = torch.zeros(len(parameters), dtype=torch.float64)
        blocks = self.blocks(clients)
        for a, b in pairwise(starts_of_pieces(blocks, len(parameters)).tolist()):
            rows = self.rows.rows(parameters, clients[a:b], round_number, tally)
            weigh_(rows, self.weight[clients[a:b]])
            values = rows.cpu().numpy()
            inside = blocks[(blocks >= a) & (blocks <= b)] - a
            for first, last in pairwise(inside.tolist()):
                own = np.add.reduce(values[first:last], axis=0, dtype=np.float64)
                total += on_grid(torch.from_numpy(own), self.grid)
        return total


def make_sum_of_means(
    config: Config,
    records: RecordHolder,
    plan: Calibration,
    engine: GradientEngine,
    seeds: SeedTree,
) -> SumOfMeans:
    """Return the sum of what `make_clipper` clips, with the same arguments."""
    rows = make_clipper(config, records, plan, engine, seeds)
    clip, sizes = engine_clip(config, records, plan), records.sizes
    grid = sum_grid(float(np.sum(plan.weight * plan.radius)))

    def prepare(clients: Ids) -> PreparedSum:
        assert isinstance(engine, SoftmaxRegression)
        inputs, labels, bounds = records.of(clients)
        radii = mean_clips(plan, clients)
        wanted = SumPlan(bounds, clip[clients], plan.weight[clients], grid, radii)
        return engine.prepared_sum(inputs, labels, wanted)

    return SumOfMeans(
        rows,
        plan.weight,
        grid,
        lambda clients: engine.packing.starts(sizes[clients]),
        prepare if isinstance(engine, SoftmaxRegression) and config.training.single_step else None,
    )
