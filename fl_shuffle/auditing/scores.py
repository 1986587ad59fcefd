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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

Vector = NDArray[np.float64]

MOST_GROUPS = 32
"""More distinct kinds of clients than this are lumped together by noise scale in the score."""


@dataclass(frozen=True)
class Scene:
    """Two neighbouring datasets, known to the adversary but for which of the two it is.

    All means lie on the first axis (a canary's gradient is one coordinate), in units of reports,
    that is after a client's weight. `others` [n] holds everybody's mean, the target's entry unused;
    the target's is `zero` in one dataset and `one` > zero in the other. `scales` [n] are the
    clients' noise scales as they show in reports, `noise` is its law, `dimension` the length of
    a report.
    """

    target: int
    others: Vector
    zero: float
    one: float
    scales: Vector
    noise: str
    dimension: int

    @property
    def own_scale(self) -> float:
        """The target's noise scale."""
        return float(self.scales[self.target])

    @property
    def hiding(self) -> NDArray[np.bool_]:
        """The other clients [n]."""
        return np.asarray(np.arange(len(self.scales)) != self.target)


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
        length = np.linalg.norm(values[:, 1:], ord=1 if noise == "laplace" else 2, axis=1)
        return cls(values[:, 0].astype(np.float64), length.astype(np.float64))


class BatchScore:
    """The score of whole batches; with `use_length` it sorts reports by the size of their noise."""

    def __init__(self, scene: Scene, *, use_length: bool) -> None:
        self._scene = scene
        self._use_length = use_length and scene.dimension > 1
        table = np.stack([scene.scales, scene.others], axis=1)[scene.hiding]
        self._groups, self._counts = np.unique(table, axis=0, return_counts=True)
        if len(self._groups) > MOST_GROUPS:
            pieces = np.array_split(np.arange(len(self._groups)), MOST_GROUPS)
            weights = [self._counts[piece] for piece in pieces]
            means = [
                np.average(self._groups[piece], axis=0, weights=weight)
                for piece, weight in zip(pieces, weights, strict=True)
            ]
            self._groups, self._counts = np.stack(means), np.array([w.sum() for w in weights])

    def __call__(self, view: View) -> Vector:
        """Each report's share of the score, float64 [n]: their sum is the batch's score."""
        scene = self._scene
        zero, one = (
            self._log_density(view, scene.own_scale, mean) for mean in (scene.zero, scene.one)
        )
        crowd = [
            np.log(count) + self._log_density(view, scale, mean)
            for (scale, mean), count in zip(self._groups, self._counts, strict=True)
        ]
        largest = np.maximum.reduce([zero, one, *crowd])
        below = sum((np.exp(part - largest) for part in crowd), np.exp(zero - largest))
        # A report that only dataset one can explain has no finite ratio; any large score will do.
        below = np.maximum(below, 1e-200)
        return np.asarray((np.exp(one - largest) - np.exp(zero - largest)) / below)

    def _log_density(self, view: View, scale: float, mean: float) -> Vector:
        """Log density of a report, up to a constant shared by all kinds."""
        shift = np.abs(view.axis - mean) / scale
        used = self._scene.dimension if self._use_length else 1
        length = view.length / scale if self._use_length else 0.0
        if self._scene.noise == "laplace":
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

    @classmethod
    def of(cls, scene: Scene) -> LengthRule:
        """For the target's noise scale; boundaries where neighbouring kinds are as likely."""
        own, free = scene.own_scale, scene.dimension - 1
        levels, counts = np.unique(scene.scales, return_counts=True)
        place = int(np.searchsorted(levels, own))
        if free == 0:
            return cls(-1.0, np.inf, len(scene.scales), float(len(levels) > 1))
        edges = [
            _boundary(scene.noise, free, small, large) for small, large in pairwise(levels.tolist())
        ]
        low, high = [-1.0, *edges, np.inf][place : place + 2]
        law = stats.gamma(free) if scene.noise == "laplace" else stats.chi(free)
        wrong = np.empty(len(levels))
        wrong[:place] = law.sf(low / levels[:place])
        wrong[place] = law.cdf(low / own) + law.sf(high / own)
        wrong[place + 1 :] = law.cdf(high / levels[place + 1 :])
        return cls(low, high, int(counts[place]), min(1.0, float((counts * wrong).sum())))

    def chosen(self, view: View) -> NDArray[np.bool_]:
        """Which reports of a batch are taken for the target's kind [n]."""
        return np.asarray((view.length > self.low) & (view.length < self.high))


def _boundary(noise: str, free: int, small: float, large: float) -> float:
    """The length at which noise of either scale is equally likely."""
    growth = free * np.log(large / small)
    if noise == "laplace":
        return float(growth / (1.0 / small - 1.0 / large))
    return float(np.sqrt(2.0 * growth / (small**-2 - large**-2)))


def position_error(scene: Scene) -> float:
    """The chance that the target cannot be told as the one report beyond a point on the axis.

    The exact tails of the noise on both sides of the best such point, added over all clients.
    """
    others, scales = scene.others[scene.hiding], scene.scales[scene.hiding]
    if not len(others):
        return 0.0
    tail = stats.laplace.sf if scene.noise == "laplace" else stats.norm.sf
    wrong = [
        tail((point - others) / scales).sum() + tail((scene.zero - point) / scene.own_scale)
        for point in np.linspace(float(others.max()), scene.zero, 33)
    ]
    return float(min(1.0, *wrong))
