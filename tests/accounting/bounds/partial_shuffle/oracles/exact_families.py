"""Exact oracles for the partial-shuffle theorem on finite outcome sets, in plain numpy.

Nothing here imports the product (whole shuffles: tests/oracles.py). A family is a set of
probability vectors over k outcomes; client 1 reports from P or Q, the N others from the rows of R.
Every expectation is an enumeration.
"""

from __future__ import annotations

import numpy as np


def enumerate_outcomes(k: int, count: int) -> np.ndarray:
    """All k^count tuples, shape (k^count, count)."""
    return np.indices((k,) * count).reshape(count, -1).T


def hockey(p: np.ndarray, q: np.ndarray, s: float) -> float:
    """H_s(P, Q)."""
    return float(np.maximum(p - s * q, 0.0).sum())


class PartialShuffle:
    """Every stage of the swap argument for one data set, omega and cap zeta."""

    def __init__(self, p, q, r, omega, a: float, zeta: float) -> None:
        self.p, self.q, self.r, self.omega, self.a, self.zeta = p, q, r, omega, a, zeta
        self.others, self.k = r.shape
        self.z = omega / r
        self.g = np.minimum(self.z, zeta)
        self.keep = self.g / self.z
        self.loss = (p - a * q) / r
        self.t = enumerate_outcomes(self.k, self.others)
        rows = np.arange(self.others)
        self.weight = self.r[rows, self.t].prod(axis=1)
        self.loss_at = self.loss[rows, self.t]
        self.g_at = self.g[rows, self.t]
        self.total = self.g_at.sum(axis=1)
        self.local = hockey(p, q, a)

    def swapped(self) -> float:
        """Stage 1: the divergence of the swap's own output."""
        answer = 0.0
        for h in range(self.k):
            denominator = self.total[:, None] - self.g_at + self.g[:, h]
            terms = self.keep[:, h] * self.loss_at / denominator
            answer += self.omega[h] * self.weight @ np.maximum(terms.sum(axis=1), 0.0)
        return float(answer)

    def floor_cost(self, m: float) -> float:
        """Stage 2, added: H E(1 - S/m)_+, S over the original reports."""
        return float(self.local * (self.weight @ np.maximum(1.0 - self.total / m, 0.0)))

    def floored(self, m: float) -> float:
        """Stage 2, kept: the divergence with 1/max(D_k, m)."""
        answer = 0.0
        for h in range(self.k):
            denominator = np.maximum(self.total[:, None] - self.g_at + self.g[:, h], m)
            terms = self.keep[:, h] * self.loss_at / denominator
            answer += self.omega[h] * self.weight @ np.maximum(terms.sum(axis=1), 0.0)
        return float(answer)

    def cap_cost(self, m: float) -> float:
        """Stage 3, added: dropping the factors f_k."""
        missing = ((1.0 - self.keep) * self.omega).sum()
        return float((self.local + self.a - 1.0) * missing / m)

    def one_denominator(self, m: float) -> float:
        """Stage 4: (1/m) E(sum of L_k + ((w_k(t_k) - w_k(h)) L_k)_+ / m)_+."""
        answer = 0.0
        for h in range(self.k):
            change = np.maximum((self.g_at - self.g[:, h]) * self.loss_at, 0.0) / m
            terms = (self.loss_at + change).sum(axis=1)
            answer += self.omega[h] * self.weight @ np.maximum(terms, 0.0)
        return float(answer / m)

    def young(self, m: float, alpha: float, beta: float) -> float:
        """Stage 5, docs/proofs.md, Theorem 2 with lambda = 1: independent terms phi, and (C)."""
        s = np.clip(self.loss_at / alpha, -1.0, self.zeta - 1.0)
        huber = (s * self.loss_at - 0.5 * alpha * s * s) / m
        square = alpha / (2.0 * m) * ((self.g_at - 1.0) ** 2).sum(axis=1)
        answer = float(self.weight @ np.maximum(square - beta, 0.0))
        for h in range(self.k):
            lift = np.maximum((1.0 - self.g[:, h]) * self.loss_at, 0.0) / m
            terms = (self.loss_at + lift + huber).sum(axis=1) + beta
            answer += float(self.omega[h] * self.weight @ np.maximum(terms, 0.0))
        return answer / m

    def crude(self, m: float) -> float:
        """Stage 4, coarser: both weights only known to lie between 0 and the cap."""
        terms = (self.loss_at + self.zeta / m * np.abs(self.loss_at)).sum(axis=1)
        return float(self.weight @ np.maximum(terms, 0.0) / m)

    def costs(self, m: float) -> float:
        """(A) and (B)."""
        return self.floor_cost(m) + self.cap_cost(m)
