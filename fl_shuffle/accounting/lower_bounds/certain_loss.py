"""What rounds certainly cost a client: the better of two attacks on whole batches, of which one
recognizes a Gaussian report among the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, log_ndtr

from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.lower_bounds.likelihood_ratio import population_epsilon
from fl_shuffle.accounting.round_off import ROUND_DOWN
from fl_shuffle.accounting.rounds.class_table import ClassTable

NEARLY_LOCAL = 0.95
"""Recognition that reaches this share of the local epsilon leaves nothing for another attack."""
GIVEN_UP = 1e-3
"""Share of delta that the attacker's mistakes may cost."""


MOST_GROUPS = 1024
"""The other clients are looked at in at most this many groups, so that looking at every class takes
time that grows with their number, not with its square."""


@dataclass(frozen=True)
class Crowd:
    """The clients of a round in groups: how many, their smallest radius, their noise's ends.

    Arrays [groups]; `group_of` [classes] is -1 for a class without clients.
    """

    counts: NDArray[np.float64]
    radius: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    group_of: NDArray[np.int64]
    gaussian: bool

    @classmethod
    def of(cls, classes: ClassTable, counts: NDArray[np.int64]) -> Crowd:
        """Return each class by itself where they are few; else classes that are alike together."""
        there = np.flatnonzero(counts > 0)
        order = there
        if len(there) > MOST_GROUPS:
            order = there[np.lexsort((classes.radius[there], classes.scale[there]))]
        groups = min(len(order), MOST_GROUPS)
        starts = np.linspace(0, len(order), groups, endpoint=False).astype(np.int64)
        group_of = np.full(len(classes), -1)
        group_of[order] = np.searchsorted(starts, np.arange(len(order)), side="right") - 1
        radius, scale = classes.radius[order], classes.scale[order]
        return cls(
            np.add.reduceat(counts[order].astype(np.float64), starts),
            np.minimum.reduceat(radius, starts),
            np.minimum.reduceat(scale, starts),
            np.maximum.reduceat(scale, starts),
            group_of,
            bool(classes.is_noise("gaussian").all()),
        )


def recognition_epsilon(
    classes: ClassTable,
    crowd: Crowd,
    index: int,
    rounds: int,
    delta: float,
    dimension: int | None = None,
) -> float:
    """Return a lower bound on epsilon at `delta` over `rounds` rounds; 0 where nothing is certain.

    For a client of class `index`; a round has at most the reports of the `crowd`, its own among
    them. Of each group the smallest radius and the worst end of the noise count: the sum below is
    then never too small, and what is claimed never too large. The
    attacker knows the others. Their means lie at -C_j u, the client's own at +C u or `sensitivity`
    Delta below it. Of the reports whose part orthogonal to u is no longer than tau, the attacker
    takes the one furthest along u. It is the client's, except with probability at most

      eta = P(sigma^2 chi^2 > tau^2)
            + sum_j n_j Phi(-(C + C_j - Delta) / hypot(sigma, sigma_j)) P(sigma_j^2 chi^2 <= tau^2)

    a round (chi^2 with `dimension` - 1 degrees of freedom; both parts of a report are independent;
    without a dimension tau is infinite). On the rest the client's own Gaussian pair is observed, so
    the divergence at eps is at least delta_G(eps; mu sqrt(T)) - (1 + e^eps) T eta. Nothing is
    claimed where eta is not negligible. Reports are taken as they are before rounding to the grid.
    """
    if not crowd.gaussian:
        return 0.0
    own = classes[index]
    # One of the reports of the client's group is its own.
    others = crowd.counts.copy()
    if crowd.group_of[index] >= 0:
        others[crowd.group_of[index]] -= 1.0
    there = others > 0.0
    # The client's mean at +C or `sensitivity` below it, another client's at -C_j: so far apart at
    # least. Where they may meet, no order along u tells them apart.
    gap = own.radius + crowd.radius[there] - own.sensitivity
    if own.exposure == 0.0 or bool((gap <= 0.0).any()):
        return 0.0
    # What is claimed is epsilon at delta + slack of the client's own pair: there its divergence
    # exceeds delta by the slack. The mistakes may cost (1 + e^eps) T eta <= 2 e^eps T eta <=
    # slack, and epsilon at delta is above that at delta + slack.
    mu = own.exposure * math.sqrt(rounds)
    slack = GIVEN_UP * delta
    allowed = math.log(slack) - gaussian_epsilon(delta, mu) - math.log(2.0 * rounds)
    # The difference of two reports along u is normal; the widest noise of a group makes the
    # largest tail.
    mistaken = others[there] * np.exp(log_ndtr(-gap / np.hypot(own.scale, crowd.most[there])))
    missed = 0.0
    if dimension is not None and dimension > 1:
        # Half of what is allowed for the client's own report being too long (Laurent, Massart).
        # P(chi^2 > f + 2 sqrt(f x) + 2x) <= e^-x (Laurent, Massart 2000, Lemma 1) at e^-x =
        # eta/2: tau^2 is sigma^2 times `reach`.
        depth, freedom = math.log(2.0) - allowed, dimension - 1.0
        reach = freedom + 2.0 * math.sqrt(freedom * depth) + 2.0 * depth
        # Another client's report must be short as well: P(sigma_j^2 chi^2 <= tau^2), largest for
        # the least noise of a group.
        mistaken *= gammainc(0.5 * freedom, 0.5 * reach * (own.scale / crowd.least[there]) ** 2)
        missed = 0.5 * math.exp(allowed)
    if missed + float(mistaken.sum()) > math.exp(allowed):
        return 0.0
    return gaussian_epsilon(delta + slack, mu) * ROUND_DOWN


def certain_losses(
    classes: ClassTable,
    counts: NDArray[np.int64],
    rounds: Mapping[int, int],
    local: Mapping[int, float],
    delta: float,
    dimension: int | None,
) -> dict[int, float]:
    """Return lower bounds on epsilon at `delta` of a client of each class of `rounds`, over these
    numbers; 0 where nothing is certain. Relation: replace-one.

    `counts[j]` clients of class j report in every round at most: fewer hide less. `dimension` of
    the reports sharpens the bound. Nothing is claimed for randomizers without a known distribution.
    Recognition is tried first; the likelihood ratio of the class that its own noise protects least,
    where that leaves room below `local`, its local epsilon.
    """
    # Discrete reports are attacked as the continuous ones that the attacker makes of them.
    classes = classes.attacked
    exposure = classes.exposure
    # For Gaussian noise mu sqrt(T) orders the clients; for others it is a guess at where to look.
    worst = max(rounds, key=lambda i: exposure[i] * rounds[i] ** 0.5, default=None)
    unknown = bool((classes.is_noise("user") | classes.is_noise("declared")).any())
    found, crowd = {}, Crowd.of(classes, counts)
    for index, times in rounds.items():
        best = recognition_epsilon(classes, crowd, index, times, delta, dimension)
        if index == worst and not unknown and best < NEARLY_LOCAL * local[index]:
            client = (classes, counts, index, times, delta)
            best = max(best, population_epsilon(*client, dimension or 1))
        found[index] = best
    return found
