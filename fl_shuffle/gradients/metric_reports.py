"""Metrics from clients with privacy: rounds whose reports hold numbers instead of gradients.

In an evaluation round a client's mean is made of m numbers about its records, each in a public
range [low, high]. With v the number, clipped to its range,

    u = 2 (v - low) / (high - low) - 1        in [-1, 1],

and the first m coordinates of the mean are u times a share of the client's radius: radius / sqrt(m)
where means are bounded in l2, radius / m in l1. The other coordinates are zero. So the mean is as
long as any other that the client may report, and replacing one unit of privacy moves it no further:

- Unit client: two such means are in one ball of that radius, at most two radii apart.
- Unit record: v is the average over B records of a number in the range, so one record moves every u
  by at most 2 / B, and the mean by 2 radius / B. Where the radius is that of the records' own
  clipping, this is the move of a mean of B clipped gradients. Other clippings allow more.

Therefore such a round costs what every other round costs. A mean is computed in float64 and rounded
to float32 once, and a weight is rounded and multiplied: each errs by 2^-24 of a coordinate, in both
neighbors. Shares are shortened by 1 + 3 (B + 2) 2^-24, so that moves stay within the bound.

The server divides the mean report by the mean share of the clients that reported. With n reports,
and noise of variance s_i^2 a coordinate (2 b^2 for Laplace), the estimate of u has the standard
error sqrt(mean s_i^2 / n) over the mean share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids, Mask
from fl_shuffle.configuration.sections import ERROR, ESTIMATED, Config
from fl_shuffle.gradients.clipper import Clipper
from fl_shuffle.gradients.rounding import HALF_ULP
from fl_shuffle.randomizers.calibration import Calibration

Values = Callable[[Tensor, Ids], FloatArray]
"""(parameters [d], clients [k]) -> their numbers [k, m], NaN where there is none."""


@dataclass(frozen=True)
class MetricReports:
    """What evaluation rounds report, and what they tell.

    `low` and `high` [m] are the public ranges of the metrics `names`; `share` [clients] is what a
    client's 1 is in a coordinate of its mean. Every `every`-th round is an evaluation round.
    """

    names: tuple[str, ...]
    low: FloatArray
    high: FloatArray
    every: int
    share: FloatArray
    weight: FloatArray
    deviation: FloatArray
    """Standard deviation of a coordinate of a client's weighted report [clients]."""

    @classmethod
    def of(cls, config: Config, plan: Calibration) -> MetricReports | None:
        """Return those of a run; None where it has no evaluation rounds."""
        metrics = config.privacy.metrics
        if not metrics:
            return None
        low, high = (np.array([float(each[end]) for each in metrics.values()]) for end in (0, 1))
        sizes = plan.classes.records[plan.class_of].astype(np.float64)
        parts = len(metrics) if plan.norm == 1 else math.sqrt(len(metrics))
        share = plan.radius / parts / (1.0 + 3.0 * (sizes + 2.0) * HALF_ULP)
        variance = (2.0 if plan.norm == 1 else 1.0) * (plan.weight * plan.scale) ** 2
        if plan.few_bits is not None:
            variance = variance * (1.0 + max(0.0, plan.few_bits.cost.added_variance))
        return cls(
            tuple(metrics), low, high, config.privacy.metrics_every, share, plan.weight,
            np.sqrt(variance),
        )  # fmt: skip

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        return tuple(f"{ESTIMATED}{name}{end}" for name in self.names for end in ("", ERROR))

    def is_due(self, round_number: int) -> bool:
        """Return whether this round is an evaluation round."""
        return round_number % self.every == 0

    def means(self, values: FloatArray, clients: Ids, dimension: int) -> Tensor:
        """Return clients' means float32 [k, dimension] from their numbers [k, m].

        What is not finite counts as the lower end of its range.
        """
        inside = np.clip(np.where(np.isfinite(values), values, self.low), self.low, self.high)
        units = 2.0 * (inside - self.low) / (self.high - self.low) - 1.0
        rows = torch.zeros((len(clients), dimension))
        rows[:, : len(self.names)] = torch.from_numpy(
            (self.share[clients, None] * units).astype(np.float32)
        )
        return rows

    def estimates(self, mean: NDArray[np.float32], present: Mask, count: int) -> dict[str, float]:
        """Return each metric's estimate and its standard error, from the mean [d] of `count`
        reports of the clients that are `present`.

        Unbiased for the average of the clients' numbers, weighted by their shares: clients with
        larger radii count more. It may lie outside of the range, by chance.
        """
        units = mean[: len(self.names)].astype(np.float64) / self._unit(present)
        found = self.low + (units + 1.0) / 2.0 * (self.high - self.low)
        numbers = [found.tolist(), self.errors(present, count).tolist()]
        return dict(zip(self.columns, [x for pair in zip(*numbers, strict=True) for x in pair],
                        strict=True))  # fmt: skip

    def errors(self, present: Mask, count: int) -> FloatArray:
        """Return the standard errors [m] of the estimates from `count` reports of these clients."""
        variance = np.mean(self.deviation[present] ** 2) / count
        errors = math.sqrt(variance) / self._unit(present) * (self.high - self.low) / 2.0
        return np.asarray(errors, dtype=np.float64)

    def _unit(self, present: Mask) -> float:
        """Return what 1 is in a coordinate of the mean report of these clients."""
        return float(np.mean((self.weight * self.share)[present]))


@dataclass(frozen=True)
class EvaluatingClipper:
    """The clipper of a run with evaluation rounds: `clip` in the others, and in these the means of
    `reports`, from the clients' `values`."""

    clip: Clipper
    reports: MetricReports
    values: Values

    def __call__(self, parameters: Tensor, clients: Ids, round_number: int) -> Tensor:
        """See `Clipper`."""
        if not self.reports.is_due(round_number):
            return self.clip(parameters, clients, round_number)
        return self.reports.means(self.values(parameters, clients), clients, len(parameters))
