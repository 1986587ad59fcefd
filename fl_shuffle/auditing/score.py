"""The adversary's statistic: how much a shuffled batch speaks for one dataset against the other.

The adversary knows every input but the target's, and every client's randomizer, but not which
report is whose. Its score of a batch y_1 .. y_n is

    sum_i (p_t1(y_i) - p_t0(y_i)) / (p_t0(y_i) + sum_{j other} p_j(y_i))

with p the density of a client's report. 1 + score is exactly the likelihood ratio of the two
datasets if the others follow p_t0, and also if no other report can be taken for the target's; in
between it is the first-order likelihood ratio. Any statistic gives a valid attack.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fl_shuffle.auditing.source import CanarySource

Vector = NDArray[np.float64]

MOST_GROUPS = 32
"""More distinct kinds of clients than this are lumped together by noise scale in the score."""
CERTAIN = 1e-8
"""Reports are called recognised if the chance of any mistake in a round is below this."""


@dataclass(frozen=True)
class Group:
    """`count` clients whose reports have this noise scale and this mean on the first axis."""

    scale: float
    mean: float
    count: int


@dataclass(frozen=True)
class View:
    """What the adversary looks at in a report: its first coordinate, and, off that axis, its length
    (l2 for Gaussian, l1 for Laplace noise), which depends on the noise alone."""

    axis: Vector
    length: Vector

    @classmethod
    def of(cls, reports: Tensor, noise: str) -> View:
        """Of a batch float32 [n, d]."""
        values = reports.numpy()
        rest = values[:, 1:]
        if noise == "laplace":
            length = np.abs(rest).sum(axis=1)
        else:
            length = np.sqrt(np.einsum("ij,ij->i", rest, rest))
        return cls(values[:, 0].astype(np.float64), length.astype(np.float64))


def report_scales(source: CanarySource) -> Vector:
    """Every client's noise scale as it shows in its reports [n]."""
    return source.plan.weight * source.plan.scale


def groups_of(source: CanarySource) -> list[Group]:
    """The other clients by kind, at most `MOST_GROUPS` of them."""
    scene, scales = source.scene, report_scales(source)
    others = np.arange(len(scales)) != scene.target
    table = np.stack([scales[others], scene.others[others]], axis=1)
    kinds, counts = np.unique(table, axis=0, return_counts=True)
    if len(kinds) > MOST_GROUPS:
        pieces = np.array_split(np.arange(len(kinds)), MOST_GROUPS)
        weights = [counts[piece] for piece in pieces]
        kinds = np.stack(
            [np.average(kinds[p], axis=0, weights=w) for p, w in zip(pieces, weights, strict=True)]
        )
        counts = np.array([weight.sum() for weight in weights])
    return [
        Group(float(scale), float(mean), int(count))
        for (scale, mean), count in zip(kinds, counts, strict=True)
    ]


class BatchScore:
    """The score of whole batches; with `use_length` it sorts reports by the size of their noise."""

    def __init__(self, source: CanarySource, *, use_length: bool) -> None:
        scene = source.scene
        self._noise = source.plan.noise
        self._dimension = source.dimension
        self._use_length = use_length and source.dimension > 1
        self._scale = float(report_scales(source)[scene.target])
        self._means = scene.zero, scene.one
        self._groups = groups_of(source)

    def __call__(self, view: View) -> Vector:
        """Each report's share of the score, float64 [n]: their sum is the batch's score."""
        zero = self._log_density(view, self._scale, self._means[0])
        one = self._log_density(view, self._scale, self._means[1])
        crowd = [
            np.log(group.count) + self._log_density(view, group.scale, group.mean)
            for group in self._groups
        ]
        largest = np.maximum.reduce([zero, one, *crowd])
        below = sum((np.exp(part - largest) for part in crowd), np.exp(zero - largest))
        # A report that only dataset one can explain has no finite ratio; any large score will do.
        below = np.maximum(below, 1e-200)
        return np.asarray((np.exp(one - largest) - np.exp(zero - largest)) / below)

    def _log_density(self, view: View, scale: float, mean: float) -> Vector:
        """Log density of a report, up to a constant shared by all kinds."""
        shift = np.abs(view.axis - mean) / scale
        used = self._dimension if self._use_length else 1
        length = view.length / scale if self._use_length else 0.0
        if self._noise == "laplace":
            return np.asarray(-shift - length - used * np.log(scale))
        return np.asarray(-0.5 * (shift**2 + length**2) - used * np.log(scale))


@dataclass(frozen=True)
class LengthRule:
    """Reports whose off-axis length lies in (low, high) are taken for the target's kind.

    `error` bounds the chance that, in one round, any report at all is taken for the wrong kind: the
    exact chi and gamma laws of the lengths, added over all clients.
    """

    low: float
    high: float
    count: int
    error: float

    def chosen(self, view: View) -> NDArray[np.bool_]:
        """Which reports of a batch are taken for the target's kind [n]."""
        return np.asarray((view.length > self.low) & (view.length < self.high))


def length_rule(source: CanarySource) -> LengthRule:
    """The rule for the target's noise scale; boundaries where neighbouring kinds are as likely."""
    scales = report_scales(source)
    own = float(scales[source.scene.target])
    levels, counts = np.unique(scales, return_counts=True)
    place = int(np.searchsorted(levels, own))
    free = source.dimension - 1
    low, high = 0.0, np.inf
    if free == 0:
        return LengthRule(-1.0, np.inf, len(scales), float(len(levels) > 1))
    if place > 0:
        low = _boundary(source.plan.noise, free, float(levels[place - 1]), own)
    if place + 1 < len(levels):
        high = _boundary(source.plan.noise, free, own, float(levels[place + 1]))
    law = _length_law(source.plan.noise, free)
    error = 0.0
    for index, (level, count) in enumerate(zip(levels.tolist(), counts.tolist(), strict=True)):
        if index < place:
            error += count * float(law.sf(low / level))
        elif index > place:
            error += count * float(law.cdf(high / level))
        else:
            error += count * float(law.cdf(low / level) + law.sf(high / level))
    return LengthRule(low if place else -1.0, high, int(counts[place]), min(1.0, error))


def _length_law(noise: str, free: int) -> stats.rv_continuous:
    return stats.gamma(free) if noise == "laplace" else stats.chi(free)


def _boundary(noise: str, free: int, small: float, large: float) -> float:
    """The length at which noise of either scale is equally likely."""
    growth = free * np.log(large / small)
    if noise == "laplace":
        return float(growth / (1.0 / small - 1.0 / large))
    return float(np.sqrt(2.0 * growth / (small**-2 - large**-2)))


def position_error(source: CanarySource) -> float:
    """The chance that the target cannot be told as the one report beyond a point on the axis.

    The exact tails of the noise on both sides of the best such point, added over all clients.
    """
    scene, scales = source.scene, report_scales(source)
    others = np.arange(len(scales)) != scene.target
    if not others.any():
        return 0.0
    tail = stats.laplace.sf if source.plan.noise == "laplace" else stats.norm.sf
    points = np.linspace(float(scene.others[others].max()), scene.zero, 33)
    wrong = [
        tail((point - scene.others[others]) / scales[others]).sum()
        + tail((scene.zero - point) / scales[scene.target])
        for point in points
    ]
    return float(min(1.0, *wrong))
