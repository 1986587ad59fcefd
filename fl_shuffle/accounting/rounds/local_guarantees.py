"""The guarantee of a client's own noise, the shuffler ignored; and when nothing better exists."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, log_ndtr

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.rounds.declared_round import declared_local_epsilon
from fl_shuffle.accounting.rounds.events import ClientClass

Vector = NDArray[np.float64]


def local_epsilon(client: ClientClass, rounds: int, delta: float) -> float:
    """Epsilon at `delta` of `rounds` reports of one client, the shuffler ignored; proven.

    Gaussian noise: mu = sensitivity / scale, T-fold mu sqrt(T), exact conversion (Dong, Roth, Su
    2022). Laplace noise: the exact T-fold composition of the worst pair. A randomizer without a
    known law: the same for the worst pair within the declared (epsilon0, delta0).
    """
    if rounds == 0:
        return 0.0
    if client.noise == "gaussian":
        return gaussian_epsilon(delta, client.exposure * math.sqrt(rounds))
    if client.noise == "laplace":
        return laplace_epsilon(delta, client.exposure, rounds)
    return declared_local_epsilon(client.epsilon0, client.delta0, rounds, delta)


def local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    delta: float,
) -> Vector:
    """`local_epsilon` of every client [n], each with its own number of rounds [n]."""
    pairs, inverse = np.unique(np.stack([class_of, rounds], axis=1), axis=0, return_inverse=True)
    gaussian = np.array([classes[index].noise == "gaussian" for index in pairs[:, 0]])
    values = np.zeros(len(pairs))
    if gaussian.any():
        exposure = np.array([classes[index].exposure for index in pairs[gaussian, 0]])
        values[gaussian] = gaussian_epsilons(delta, exposure * np.sqrt(pairs[gaussian, 1]))
    for position in np.flatnonzero(~gaussian):
        index, times = pairs[position]
        values[position] = local_epsilon(classes[int(index)], int(times), delta)
    return np.asarray(values[inverse.reshape(-1)], dtype=np.float64)


def gaussian_epsilons(delta: float, mu: Vector) -> Vector:
    """`gaussian_epsilon` for many mu at once, by bisection; rounded up."""
    if mu.size <= 64:
        return np.array([gaussian_epsilon(delta, float(value)) for value in mu])
    high = np.full(mu.shape, gaussian_epsilon(delta, float(mu.max())))
    low = np.zeros_like(high)
    for _ in range(60):
        middle = 0.5 * (low + high)
        enough = gaussian_profile(middle, mu) <= delta
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return high


def worst_local_epsilons(
    classes: Sequence[ClientClass],
    class_of: NDArray[np.int64],
    rounds: NDArray[np.int64],
    group_of: NDArray[np.int64],
    groups: int,
    delta: float,
) -> Vector:
    """The largest `local_epsilon` among the clients of each group [groups]; 0 for an empty group.

    Only clients that may be the worst are evaluated: in each group those that no other client of
    the same kind of noise surpasses in both exposure and rounds.
    """
    noises = np.array([kind.noise for kind in classes])[class_of]
    exposure = np.array([kind.exposure for kind in classes])[class_of]
    worst = np.zeros(groups)
    gaussian = noises == "gaussian"
    if gaussian.any():
        mu = np.zeros(groups)
        np.maximum.at(mu, group_of[gaussian], exposure[gaussian] * np.sqrt(rounds[gaussian]))
        values, inverse = np.unique(mu, return_inverse=True)
        worst = gaussian_epsilons(delta, values)[inverse.reshape(-1)]
        worst[mu == 0.0] = 0.0
    rest = np.flatnonzero(~gaussian & (rounds > 0))
    if rest.size:
        # Clients of one class, group and number of rounds are alike.
        alike = np.stack([group_of[rest], class_of[rest], rounds[rest]], axis=1)
        candidates = np.unique(alike, axis=0)
        sizes = np.array([classes[index].exposure for index in candidates[:, 1]])
        most: dict[tuple[int, str], float] = {}
        for position in np.lexsort((-sizes, -candidates[:, 2])):
            group, index, times = (int(value) for value in candidates[position])
            own = classes[index]
            if own.noise == "laplace":
                # Fewer rounds and no more exposure than one already seen: not the worst.
                if sizes[position] <= most.get((group, own.noise), 0.0):
                    continue
                most[group, own.noise] = float(sizes[position])
            worst[group] = max(worst[group], local_epsilon(own, times, delta))
    return worst


def recognised_epsilon(
    classes: Sequence[ClientClass],
    counts: NDArray[np.int64],
    index: int,
    rounds: int,
    delta: float,
    dimension: int | None = None,
) -> float | None:
    """A certain lower bound on epsilon at `delta` over `rounds`: the attack that knows the others.

    `counts[j]` is how many clients of class j there are; at most so many reports hide one of class
    `index` in every round. Gaussian noise only. The others' means lie at -C_j u, the client's own
    at +C u or `sensitivity` Delta below it. Of the reports whose part orthogonal to u is no longer
    than tau, the attacker takes the one furthest along u. It is the client's, except with
    probability at most

      eta = P(sigma^2 chi^2 > tau^2)
            + sum_j n_j Phi(-(C + C_j - Delta) / hypot(sigma, sigma_j)) P(sigma_j^2 chi^2 <= tau^2)

    a round (chi^2 with `dimension` - 1 degrees of freedom; both parts of a report are independent;
    without a dimension tau is infinite). On the rest the client's own Gaussian pair is observed, so
    the divergence at eps is at least delta_G(eps; mu sqrt(T)) - (1 + e^eps) T eta. Returns None
    where eta is not negligible. Reports are taken as they are before rounding to the grid.
    """
    own = classes[index]
    if own.exposure == 0.0 or any(kind.noise != "gaussian" for kind in classes):
        return None
    scale = np.array([kind.scale for kind in classes])
    gap = own.radius + np.array([kind.radius for kind in classes]) - own.sensitivity
    others = counts.astype(np.float64)
    others[index] -= 1.0
    if np.any(gap[others > 0.0] <= 0.0):
        return None
    mu = own.exposure * math.sqrt(rounds)
    slack = 1e-3 * delta
    allowed = math.log(slack) - gaussian_epsilon(delta, mu) - math.log(2.0 * rounds)
    mistaken = others * np.exp(log_ndtr(-gap / np.hypot(own.scale, scale)))
    missed = 0.0
    if dimension is not None and dimension > 1:
        # Half of what is allowed for the client's own report being too long (Laurent, Massart).
        depth, freedom = math.log(2.0) - allowed, dimension - 1.0
        reach = freedom + 2.0 * math.sqrt(freedom * depth) + 2.0 * depth
        mistaken *= gammainc(0.5 * freedom, 0.5 * reach * (own.scale / scale) ** 2)
        missed = 0.5 * math.exp(allowed)
    if missed + math.fsum(mistaken.tolist()) > math.exp(allowed):
        return None
    return gaussian_epsilon(delta + slack, mu) * (1.0 - 1e-9)
