"""What the adversary knows of two neighbouring datasets, and how surely it recognises a report.

It knows every input but the target's, and every client's randomizer, but not which report is whose.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]


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
    def means(self) -> Vector:
        """Everybody's mean [n] in the first dataset."""
        return np.where(self.hiding, self.others, self.zero)

    @property
    def hiding(self) -> NDArray[np.bool_]:
        """The other clients [n]."""
        return np.asarray(np.arange(len(self.scales)) != self.target)


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


def size_error(scene: Scene) -> float:
    """The chance that, in one round, any report at all is taken for one of the target's noise scale
    that is not, or the other way round, by its length off the axis.

    That depends on the noise alone: its l2 norm for Gaussian noise, l1 for Laplace noise, whose
    exact chi and gamma laws are added over all clients. The bar to a neighbouring scale stands
    where both are as likely.
    """
    own, free = scene.own_scale, scene.dimension - 1
    levels, counts = np.unique(scene.scales, return_counts=True)
    if free == 0:
        return float(len(levels) > 1)
    place = int(np.searchsorted(levels, own))
    bars = [_boundary(scene.noise, free, *both) for both in pairwise(levels.tolist())]
    low, high = [0.0, *bars, np.inf][place : place + 2]
    law = stats.gamma(free) if scene.noise == "laplace" else stats.chi(free)
    wrong = np.empty(len(levels))
    wrong[:place] = law.sf(low / levels[:place])
    wrong[place] = law.cdf(low / own) + law.sf(high / own)
    wrong[place + 1 :] = law.cdf(high / levels[place + 1 :])
    return min(1.0, float((counts * wrong).sum()))


def _boundary(noise: str, free: int, small: float, large: float) -> float:
    """The length at which noise of either scale is equally likely."""
    growth = free * np.log(large / small)
    if noise == "laplace":
        return float(growth / (1.0 / small - 1.0 / large))
    return float(np.sqrt(2.0 * growth / (small**-2 - large**-2)))
