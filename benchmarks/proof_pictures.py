"""Pictures of the proofs, computed from their definitions, and the data of each as CSV.

    python -m benchmarks.pictures

draws them with the others. No number here is a bound that the accountant prints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from benchmarks.drawing import pyplot_for, save, write_rows
from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.gram import Gram, corner, frontier
from fl_shuffle.accounting.bounds.partial_shuffle.profile import approximate
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import profile_delta

OTHERS, EPSILON0 = 100, 1.0
"""The swap's picture: client 1 and this many others, binary randomized response."""
OWN, OTHER, RATIO = 0.8, 0.8, 1.1
"""The Gram order's picture: C_1, C_2 in noise standard deviations, and a = e^epsilon."""
ANGLES = 0.5, 0.9
"""g_1 and g_2 of the configuration on the frontier."""


def swap(stem: Path) -> None:
    """Delta by epsilon of a shuffle of binary responses: exact, after the swap, and bounded.

    Client 1 reports 1 with probability e^eps0/(1 + e^eps0) under P, and 0 with that under Q. All
    others report as under Q, and omega is uniform.
    """
    kept = math.exp(EPSILON0) / (1.0 + math.exp(EPSILON0))
    known = approximate(EPSILON0)
    rows = []
    for epsilon in np.linspace(0.0, 0.6, 25).tolist():
        a = math.exp(epsilon)
        rows.append(
            (
                epsilon,
                max(kept - a * (1.0 - kept), 0.0),
                profile_delta(known, OTHERS, epsilon),
                _swapped(kept, a),
                _exact(kept, a),
            )
        )
    names = (
        "one report, not shuffled",
        "the bound from the local profile (section 13)",
        "after the swap: expression (1)",
        "shuffled, exact",
    )
    write_rows(stem, ("epsilon", *names), rows)
    _curves(stem, names, rows, "epsilon", "delta")


def _exact(kept: float, a: float) -> float:
    """Return the divergence of the number of ones among all reports."""
    ones = binom(OTHERS, 1.0 - kept).pmf(np.arange(-1, OTHERS + 2))
    # Of client 1's own report: it adds a one with probability `one`.
    with_own = [one * ones[:-1] + (1.0 - one) * ones[1:] for one in (kept, 1.0 - kept)]
    return float(np.maximum(with_own[0] - a * with_own[1], 0.0).sum())


def _swapped(kept: float, a: float) -> float:
    """Return expression (1) of section 11, without a cap: every f_k is 1."""
    own, changed = np.array([1.0 - kept, kept]), np.array([kept, 1.0 - kept])
    loss, weight = (own - a * changed) / changed, 0.5 / changed
    ones = np.arange(OTHERS + 1)
    counts = np.array([OTHERS - ones, ones])
    chance = binom(OTHERS, changed[1]).pmf(ones)
    total = weight @ counts
    expected = 0.0
    for hidden in (0, 1):
        # Others with the same t_k have the same D_k; where there is none, the count 0 removes it.
        left = [total - weight[t] + weight[hidden] for t in (0, 1)]
        inside = sum(counts[t] * loss[t] / np.where(counts[t] > 0, left[t], 1.0) for t in (0, 1))
        expected += 0.5 * float(chance @ np.maximum(inside, 0.0))
    return expected


def gram(stem: Path) -> None:
    """Stop-losses E(L - t)^+ of three Gram matrices, each above the one before it.

    The first has r at half its distance from the center, the second (Lemma 2) has it at C_2, and
    the third (Lemma 3) is the corner of a box around the second.
    """
    g1, g2 = (np.array([angle]) for angle in ANGLES)
    inner, outer = (frontier(OWN, far, g1, g2) for far in (OTHER / 2.0, OTHER))
    # A box of angles that reaches 0.15 below and above: U and W are largest at the lower ends.
    low, high = (frontier(OWN, OTHER, g1 + by, g2 + by) for by in (-0.15, 0.15))
    spread = np.maximum(low[0] - high[0], low[1] - high[1])
    chord = 2.0 * OWN**2 * (1.0 - np.cos(g1 + g2 + 0.3))
    above = corner(low[0], low[1], spread, chord, RATIO)
    at = np.linspace(-1.0, 6.0, 71)
    curves = [_stop_loss(matrix, at) for matrix in (inner, outer, above)]
    names = (
        "r at distance C_2/2",
        "on the frontier: r at distance C_2 (Lemma 2)",
        "the corner above a box around it (Lemma 3)",
    )
    rows = list(zip(at.tolist(), *(curve.tolist() for curve in curves), strict=True))
    write_rows(stem, ("t", *names), rows)
    _curves(stem, names, rows, "t", "stop-loss E(L - t)^+")


def _stop_loss(matrix: Gram, at: FloatArray) -> FloatArray:
    """Return E(L - t)^+ for L = x - a y, x and y lognormal with the log-covariance `matrix`.

    Given y, x is lognormal, so the inner expectation has the closed form of a call option's price.
    The outer one is a sum over a fine grid.
    """
    u, w, x = (float(each[0]) for each in matrix)
    z, step = np.linspace(-9.0, 9.0, 4001, retstep=True)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * step
    strike = RATIO * np.exp(math.sqrt(w) * z - 0.5 * w) + at[:, None]
    mean = np.exp(x / math.sqrt(w) * z - 0.5 * x * x / w)
    left = math.sqrt(u - x * x / w)
    safe = np.maximum(strike, 1e-300)
    d = (np.log(mean / safe) + 0.5 * left * left) / left
    call = np.where(strike > 0.0, mean * ndtr(d) - strike * ndtr(d - left), mean - strike)
    result: FloatArray = call @ density
    return result


def _curves(
    stem: Path,
    names: Sequence[str],
    rows: Sequence[Sequence[float]],
    across: str,
    up: str,
) -> None:
    figure, axes = pyplot_for(stem).subplots(figsize=(6.5, 4.0))
    for place, (name, style) in enumerate(zip(names, ("-", "--", "-.", ":"), strict=False), 1):
        axes.plot([row[0] for row in rows], [row[place] for row in rows], style, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    save(figure, axes, stem)
