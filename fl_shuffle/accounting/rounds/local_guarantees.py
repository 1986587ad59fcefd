"""The guarantee of a client's own noise, the shuffler ignored; and when nothing better exists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, log_expit

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds.laplace_mechanism import (
    laplace_delta,
    laplace_epsilon,
    local_pair,
)
from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.client_classes import AS_GAUSSIAN, ClientClass, LocalMechanism
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_epsilons,
    gaussian_profile,
)
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.round_off import ROUND_OFF
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows

DECLARED_INFLATION = 1.0 + 100.0 * ROUND_OFF
"""Of the sum over a declared report's losses: logarithms of factorials have many digits."""
MAX_LOCAL_PAIR_EXPOSURE = 12.0
"""Larger exposures get no dominating pair: their losses overflow."""
LOCAL_LAWS = 256
"""With more distinct Laplace exposures, or declared epsilons, than this they are rounded up ..."""
LOCAL_LADDER = 0.01
"""... by this share at most ..."""
LOCAL_RUNGS = 1000
"""... or to what lies this many rungs below the largest."""


@lru_cache(maxsize=1 << 16)
def local_epsilon(law: LocalMechanism, rounds: int, delta: float) -> float:
    """Return epsilon at `delta` of `rounds` reports of one client, the shuffler ignored; proven.

    Gaussian noise: mu sqrt(T), exact conversion (Dong, Roth, Su 2022). Laplace noise: the exact
    T-fold composition of the worst pair. A randomizer without a known distribution: the same for
    the worst pair within the declared (epsilon0, delta0), infinite where the probability that some
    report gives its input away, 1 - (1 - delta0)^rounds, exceeds `delta`.
    """
    noise, exposure, delta0 = law
    if rounds == 0:
        return 0.0
    if noise == "gaussian":
        # Losses N(mu^2/2, mu^2) of independent reports add up to one with T mu^2 (section 1).
        return gaussian_epsilon(delta, exposure * math.sqrt(rounds))
    if noise == "laplace":
        return laplace_epsilon(delta, exposure, rounds)
    # Loss is at most epsilon0 a report, but for the reports that give their input away.
    pure = exposure * rounds
    # At epsilon = `pure` only certain loss is left, 1 - (1 - delta0)^T. If that alone exceeds
    # delta, no epsilon is enough. T delta0, which is no smaller, decides. One report costs what
    # it declares.
    if rounds == 1 or pure == 0.0 or declared_delta(exposure, delta0, rounds, pure) > delta:
        return pure if delta0 * rounds <= delta else math.inf
    return bisected(
        lambda e: declared_delta(exposure, delta0, rounds, e) <= delta, pure, 0.0, 1e-9
    )[0]


def local_delta(law: LocalMechanism, rounds: int, epsilon: ArrayLike) -> Vector:
    """Return the same the other way round: delta at `epsilon`, elementwise."""
    if law.noise == "gaussian":
        return gaussian_profile(epsilon, law.exposure * math.sqrt(rounds))
    if law.noise == "laplace":
        return laplace_delta(epsilon, law.exposure, rounds)
    at = np.asarray(epsilon, dtype=np.float64)
    # One epsilon at a time: the sum over T + 1 losses is an array already.
    found = [declared_delta(law.exposure, law.delta0, rounds, each) for each in at.ravel().tolist()]
    return np.reshape(np.array(found), at.shape)


def own_pair(law: LocalMechanism) -> DominatingPair | None:
    """Return the dominating pair of one report, the shuffler ignored; None if its losses are too
    large."""
    noise, exposure, delta0 = law
    if exposure > MAX_LOCAL_PAIR_EXPOSURE:
        return None
    if noise == "laplace":
        return local_pair(exposure)
    if noise == "gaussian":
        # Chords between these points lie above the curve, and what is left at the last one counts
        # as certain loss.
        grid = np.linspace(0.0, exposure * (9.0 + 0.5 * exposure), 400 if exposure > 0.0 else 1)
        return DominatingPair.from_curve(grid, gaussian_profile(grid, exposure))
    if exposure == 0.0:
        return DominatingPair.from_curve([0.0], [delta0])
    # Two points decide: the worst pair's curve is linear in e^epsilon between 0 and epsilon0.
    at_zero = profiles.approximate(exposure, delta0).local_delta(0.0)
    return DominatingPair.from_curve([0.0, exposure], [at_zero, delta0])


def declared_delta(epsilon0: float, delta0: float, rounds: int, epsilon: float) -> float:
    """Return delta at `epsilon` of `rounds` reports that declare (epsilon0, delta0), without a
    shuffler.

    Exact for the worst such reports (Kairouz, Oh, Viswanath 2015, Theorem 3.3), rounded up.
    """
    # The worst report gives its input away with probability delta0, and is randomized response
    # else: of `rounds` of the latter the loss is (2 ups - rounds) epsilon0.
    # 1 - (1 - delta0)^T: the probability that some report gives its input away.
    certain = -math.expm1(rounds * math.log1p(-delta0)) if delta0 < 1.0 else 1.0
    ups = np.arange(rounds + 1)
    # log of binom(T, ups) p^ups (1 - p)^(T - ups) with p = e^eps0/(1 + e^eps0).
    logs = gammaln(rounds + 1.0) - gammaln(ups + 1.0) - gammaln(rounds - ups + 1.0)
    logs += ups * log_expit(epsilon0) + (rounds - ups) * log_expit(-epsilon0)
    above = epsilon - (2.0 * ups - rounds) * epsilon0
    # E(1 - e^(eps - loss))_+, section 6, step 6.
    gains = float(np.sum(np.exp(logs) * -np.expm1(np.minimum(above, 0.0))))
    return min(1.0, (certain + (1.0 - certain) * gains) * DECLARED_INFLATION)


def accounted_locally(classes: ClassTable) -> ClassTable:
    """Return the classes with at most some hundred distinct local distributions, none of them
    better.

    Where Laplace exposures, or declared epsilons, are many, they are rounded up to a ladder that
    depends on the largest of them, by 1% at most: over many rounds each costs a convolution.
    Gaussian noise needs none: its rounds are a closed formula.
    """
    laplace, user = classes.is_noise("laplace"), classes.is_noise("user")
    # A ladder for each kind: their largest values have nothing to do with each other.
    exposure, epsilon0 = _ladder(classes.exposure[laplace]), _ladder(classes.epsilon0[user])
    if exposure is None and epsilon0 is None:
        return classes
    changed = replace(classes, sensitivity=classes.sensitivity.copy(), radius=classes.radius.copy(),
                      epsilon0=classes.epsilon0.copy())  # fmt: skip
    if exposure is not None:
        move = np.minimum(classes.sensitivity, 2.0 * classes.radius)[laplace]
        # `exposure` is min(sensitivity, 2 radius)/scale: both have to be raised for it to grow.
        # The product with the scale is rounded, so the move itself is the least.
        changed.sensitivity[laplace] = np.maximum(exposure * classes.scale[laplace], move)
        # A move counts as at most twice the radius.
        np.maximum(changed.radius, 0.5 * changed.sensitivity, out=changed.radius, where=laplace)
    if epsilon0 is not None:
        changed.epsilon0[user] = epsilon0
    return changed


def _ladder(values: Vector) -> Vector | None:
    """Return the values rounded up to a ladder below their largest; None where they are few."""
    if np.unique(values).size <= LOCAL_LAWS:
        return None
    largest, step = float(values.max()), math.log1p(LOCAL_LADDER)
    # What is almost nothing beside the largest may be raised by more.
    at_least = np.maximum(values, largest * math.exp(-step * LOCAL_RUNGS))
    # Down to a whole number of steps below the largest: a value is raised by at most one step.
    rungs = np.floor(np.log(largest / at_least) / step)
    # Round-off of a logarithm must not lower anybody.
    return np.maximum(largest * np.exp(-step * rungs), at_least)


def local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    delta: float,
) -> Vector:
    """Return `local_epsilon` of every client [n], each with its own number of rounds [n]."""
    table = ClassTable.of(classes)
    values = np.zeros(len(class_of))
    gaussian = _gaussian(table)[class_of]
    mu = table.exposure[class_of[gaussian]] * np.sqrt(rounds[gaussian])
    values[gaussian] = gaussian_epsilons(delta, mu)
    rest = np.flatnonzero(~gaussian)
    if rest.size:
        # Each distinct pair of a distribution and a number of rounds costs a convolution once.
        alike = distinct_rows(_local_laws(table)[class_of[rest]], rounds[rest])
        found = [
            local_epsilon(table[int(class_of[client])].law, int(rounds[client]), delta)
            for client in rest[alike.first].tolist()
        ]
        values[rest] = np.array(found)[alike.inverse]
    return values


def _gaussian(table: ClassTable) -> NDArray[np.bool_]:
    """Return which classes [classes] compose as Gaussian mechanisms do."""
    return np.asarray(
        np.any([table.is_noise(noise) for noise in ("gaussian", *AS_GAUSSIAN)], axis=0)
    )


def _local_laws(table: ClassTable) -> NDArray[np.int64]:
    """Return a number [classes] for each class, the same where `local_epsilon` is."""
    delta0 = np.where(table.is_noise("user"), table.delta0, 0.0)
    return distinct_rows(table.noise, table.exposure, delta0).inverse


def worst_local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    group_of: NDArray[np.int64],
    groups: int,
    delta: float,
) -> Vector:
    """Return the largest `local_epsilon` of the clients of each group [groups]; 0 for an empty
    group."""
    table = ClassTable.of(classes)
    gaussian = _gaussian(table)[class_of]
    mu = np.zeros(groups)
    exposure = table.exposure[class_of[gaussian]]
    # Epsilon grows with mu: the largest mu of a group is converted, and nobody else's.
    np.maximum.at(mu, group_of[gaussian], exposure * np.sqrt(rounds[gaussian]))
    worst = gaussian_epsilons(delta, mu)
    rest = np.flatnonzero(~gaussian)
    if rest.size:
        # Of clients of one group and distribution the one with the most rounds is the worst.
        alike = distinct_rows(group_of[rest], _local_laws(table)[class_of[rest]])
        most = np.zeros(alike.first.size, dtype=np.int64)
        np.maximum.at(most, alike.inverse, rounds[rest])
        clients = rest[alike.first]
        found = local_epsilons(table, class_of[clients], most, delta)
        np.maximum.at(worst, group_of[clients], found)
    return worst
