"""The guarantee of a client's own noise, the shuffler ignored; and when nothing better exists."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from fl_shuffle.accounting.events import ClientClass
from fl_shuffle.accounting.gaussian import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.laplace import laplace_epsilon

Vector = NDArray[np.float64]


def local_epsilon(client: ClientClass, rounds: int, delta: float) -> float:
    """Epsilon at `delta` of `rounds` reports of one client, the shuffler ignored; proven.

    Gaussian noise: mu = sensitivity / scale, T-fold mu sqrt(T), exact conversion (Dong, Roth, Su
    2022). Laplace noise: the exact T-fold composition of the worst pair. A randomizer without a
    known law: basic composition of the declared (epsilon0, delta0).
    """
    if rounds == 0:
        return 0.0
    if client.noise == "gaussian":
        return gaussian_epsilon(delta, client.exposure * math.sqrt(rounds))
    if client.noise == "laplace":
        return laplace_epsilon(delta, client.exposure, rounds)
    return client.epsilon0 * rounds if client.delta0 * rounds <= delta else math.inf


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
        values[gaussian] = _gaussian_epsilons(delta, exposure * np.sqrt(pairs[gaussian, 1]))
    for position in np.flatnonzero(~gaussian):
        index, times = pairs[position]
        values[position] = local_epsilon(classes[int(index)], int(times), delta)
    return np.asarray(values[inverse.reshape(-1)], dtype=np.float64)


def _gaussian_epsilons(delta: float, mu: Vector) -> Vector:
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


def recognised_epsilon(
    client: ClientClass, reports: int, rounds: int, delta: float
) -> float | None:
    """A certain lower bound on epsilon at `delta` over `rounds`: the attack that knows the others.

    Gaussian noise. The other means lie at -C u, the client's at +C u or `sensitivity` below it.
    The report furthest along u is the client's, except with probability at most
    eta = (n - 1) Phi(-(2C - sensitivity) / (sqrt(2) sigma)) a round. On the rest the client's own
    Gaussian pair is observed, so the divergence at eps is at least
    delta_G(eps; mu sqrt(T)) - (1 + e^eps) T eta. Returns None where eta is not negligible.
    """
    if client.noise != "gaussian" or client.exposure == 0.0:
        return None
    gap = (2.0 * client.radius - client.sensitivity) / (math.sqrt(2.0) * client.scale)
    log_error = math.log(max(reports - 1, 1) * rounds) + float(log_ndtr(-gap))
    slack = 1e-3 * delta
    upper = gaussian_epsilon(delta, client.exposure * math.sqrt(rounds))
    if gap <= 0.0 or log_error + upper + math.log(2.0) > math.log(slack):
        return None
    return gaussian_epsilon(delta + slack, client.exposure * math.sqrt(rounds)) * (1.0 - 1e-9)
