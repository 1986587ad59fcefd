"""Independent oracles: exact divergences of small shuffles, with no code of the package.

Reports are binned; by data processing the divergence of the binned shuffle is at most that of the
real one, so it must stay below every valid upper bound. A shuffle of n reports is a multiset of
bins; its probability is a sum over all assignments of reports to positions.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement, permutations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]


def gaussian_cdf(x: Array) -> Array:
    return ndtr(x)


def laplace_cdf(x: Array) -> Array:
    return np.where(x < 0, 0.5 * np.exp(np.minimum(x, 0)), 1 - 0.5 * np.exp(-np.maximum(x, 0)))


CDF = {"gaussian": gaussian_cdf, "laplace": laplace_cdf}


def binned(noise: str, means: Array, edges: Array) -> Array:
    """Bin probabilities of unit-scale noise around `means` [...]: shape [..., len(edges) + 1]."""
    inner = CDF[noise](edges - np.asarray(means)[..., None])
    padded = np.concatenate(
        [np.zeros((*inner.shape[:-1], 1)), inner, np.ones((*inner.shape[:-1], 1))], axis=-1
    )
    return np.diff(padded, axis=-1)


def binned_plane(noise: str, means: Array, edges: Array) -> Array:
    """The same for two coordinates with independent noise: means [..., 2]."""
    first = binned(noise, means[..., 0], edges)
    second = binned(noise, means[..., 1], edges)
    product = first[..., :, None] * second[..., None, :]
    return product.reshape(*product.shape[:-2], -1)


@lru_cache(maxsize=32)
def multisets(bins: int, n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All sorted n-tuples of bins, and for each the number of orderings that give it, over n!."""
    table = np.array(list(combinations_with_replacement(range(bins), n)), dtype=np.int64)
    repeats = np.ones(len(table))
    for row, values in enumerate(table):
        _, counts = np.unique(values, return_counts=True)
        for count in counts:
            repeats[row] *= np.prod(np.arange(1, count + 1))
    return table, 1.0 / repeats


def shuffled_law(laws: Array) -> Array:
    """Probability of every multiset of bins, for report laws [cases, n, bins]: [cases, sets]."""
    _, n, bins = laws.shape
    table, share = multisets(bins, n)
    total = np.zeros((laws.shape[0], len(table)))
    for order in permutations(range(n)):
        product = np.ones_like(total)
        for position, client in enumerate(order):
            product *= laws[:, client, :][:, table[:, position]]
        total += product
    return total * share


def divergences(user0: Array, user1: Array, others: Array, epsilons: Array) -> Array:
    """max over both directions of the hockey-stick divergence: [cases, epsilons].

    user0, user1 [cases, bins]; others [cases, n - 1, bins].
    """
    p = shuffled_law(np.concatenate([user0[:, None], others], axis=1))
    q = shuffled_law(np.concatenate([user1[:, None], others], axis=1))
    assert np.allclose(p.sum(axis=1), 1.0, atol=1e-9)
    result = []
    for epsilon in epsilons:
        forward = np.maximum(p - np.exp(epsilon) * q, 0.0).sum(axis=1)
        backward = np.maximum(q - np.exp(epsilon) * p, 0.0).sum(axis=1)
        result.append(np.maximum(forward, backward))
    return np.stack(result, axis=1)
