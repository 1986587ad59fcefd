"""Secret check-in: every client sends its report with probability q only, and who did is not seen.

Absence is one more outcome of a client's report, which every input produces with probability 1 - q:
R'_j = (1 - q) absent + q R_j. What is released (the reports that came, hence their number) says as
much as the shuffle of n such outcomes. If R_j >= gamma_j omega and gamma is the largest gamma_j,

    R'_j >= (gamma_j / gamma) gamma' omega',   gamma' = 1 - q + q gamma,
    gamma' omega' = (1 - q) absent + q gamma omega,

and the amplification variable under omega' is gamma' (1 - e^eps) where the client is absent
(probability (1 - q)/gamma'), else L gamma'/gamma. Every other ratio of absences to omega would do;
this one keeps the most blanket reports. docs/research/proofs, sections 2 and 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.distributions.amplification import (
    AmplificationDistribution,
    AtomicDistribution,
    MixtureLaw,
)
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound, amplified_delta
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.errors import require_real

ASSUMPTION = (
    "secret check-in: each client takes part by its own coin with the stated probability, "
    "independently of data and of others, and nobody who sees the reports learns who did"
)
EACH_ROUND = "the coins are drawn anew in every round, independently of all earlier rounds"
ONCE = "the coins are drawn once: the same clients take part in all rounds"
CELL_SHARE = 0.01
"""Cells of the number of reports are at least this share of its mean wide: half of it, about, is
what they add to epsilon ..."""
CELL_SDS = 1.5
"""... and this many of its standard deviations."""
CELLS_REACH_SDS = 8.5
"""Beyond this, the number is rarer than any delta of a query."""


def with_absence(
    law: AmplificationDistribution,
    blanket: Sequence[tuple[float, int]],
    rate: float,
    epsilon: float,
) -> tuple[AmplificationDistribution, list[tuple[float, int]]]:
    """Return the client's distribution of L and the others' masses when each takes part secretly.

    Parameters
    ----------
    law : AmplificationDistribution
        The client's distribution of L at `epsilon` when it does take part.
    blanket : sequence of (float, int)
        (mass, count) of the others when they do.
    rate : float
        Probability to take part, in (0, 1].
    epsilon : float
        In nats, at least 0.

    Returns
    -------
    tuple
        The distribution, and (mass, count) of the others.

    Notes
    -----
    Statement: see the module. Source: docs/research/proofs, sections 2 and 16. Direction of error:
    rounded so that delta can only grow.
    """
    if rate == 1.0:
        return law, list(blanket)
    # gamma, gamma' = 1 - q + q gamma (`whole`), and the shares of omega' where the client is absent
    # and present. Values of L are rounded up, masses down.
    largest = max((mass for mass, count in blanket if count > 0 and mass > 0.0), default=1.0)
    whole = 1.0 - rate + rate * largest
    absent, present = (1.0 - rate) / whole, rate * largest / whole
    up, down = 1.0 + 8.0 * UNIT, 1.0 - 8.0 * UNIT
    alone = -whole * math.expm1(epsilon) * down
    scale = whole / largest
    masses = [(min(1.0, whole * min(1.0, mass / largest)) * down, count) for mass, count in blanket]
    if isinstance(law, AtomicDistribution):
        values = law.values * scale
        values *= np.where(values > 0.0, up, down)
        return AtomicDistribution.of(
            np.append(values, alone), np.append(law.probabilities * present, absent)
        ), masses
    constant = AtomicDistribution(np.array([alone]), np.array([1.0]))
    parts = ((present, scale * up, law), (absent, 1.0, constant))
    return MixtureLaw(parts), masses


def cells_of(clients: int, rate: float) -> list[tuple[float, int, int]]:
    """Gather the numbers of reports K ~ Bin(clients, rate), K >= 1, in cells.

    Returns (probability, smallest K, largest K) of every cell, the most probable cell first. The
    probability of K = 0 belongs to no cell: nothing is released then.
    """
    from scipy.stats import binom  # slow to load, and needed where participation is drawn

    n, q = clients, rate
    mean, sd = n * q, math.sqrt(n * q * (1.0 - q))
    width = max(1.0, min(max(CELL_SHARE * mean, CELL_SDS * sd), 2.0 * CELLS_REACH_SDS * sd))
    count = math.ceil(max(CELLS_REACH_SDS * sd / width - 0.5, 0.0))
    edges = np.ceil(mean + width * (np.arange(-count, count + 2) - 0.5))
    ends = np.unique(np.concatenate([[1], np.clip(edges, 1, n + 1), [n + 1]])).astype(np.int64)
    if q == 1.0:
        ends = np.array([n, n + 1])
    below, above = binom.cdf(ends - 1, n, q), binom.sf(ends - 1, n, q)
    # Of the two differences the one of smaller terms loses no digits.
    inside = np.where(below[:-1] < above[:-1], np.diff(below), -np.diff(above))
    found = zip(inside.tolist(), ends[:-1].tolist(), (ends[1:] - 1).tolist(), strict=True)
    return sorted((cell for cell in found if cell[0] > 0.0), key=lambda cell: -cell[0])


def mixture_weights(low: float, high: float, epsilon: float) -> tuple[float, float, float]:
    """Return (epsilon', of_replaced, of_moved) for shares r = K / n of a cell in [low, high].

    With a = e^epsilon and alpha = 1 + (a - 1)/r, the divergence of the mixtures
    (1 - r) A + r P and (1 - r) A + r Q at a is at most

        (r a/alpha) H_alpha(P, Q) + (1 - r) ((a - 1)/alpha) H_alpha(P, A)

    (docs/research/proofs, section 16). The first term grows with r for fixed P and Q: it is
    a r int (r/(r + a - 1) P - Q)_+. In the second, 1 - r falls and (a - 1)/alpha H_alpha grows. So
    r is `high` but for the factor 1 - r, which is 1 - `low`. epsilon' = log(alpha).
    """
    grown = math.expm1(epsilon)
    alpha = 1.0 + grown / high
    of_replaced, of_moved = high * (1.0 + grown) / alpha, (1.0 - low) * grown / alpha
    return math.log1p(grown / high), of_replaced, of_moved


def hidden_delta(
    law: AmplificationDistribution,
    blanket: Sequence[tuple[float, int]],
    rate: float,
    epsilon: float,
    relative_error: float | None = None,
) -> DeltaBound:
    """Return delta(epsilon) of a client of this distribution of L among others.

    Parameters
    ----------
    law : AmplificationDistribution
        The client's distribution of L at `epsilon`.
    blanket : sequence of (float, int)
        (mass, count) of the others.
    rate : float
        Probability with which each takes part, in (0, 1].
    epsilon : float
        In nats, at least 0.
    relative_error : float, optional
        As for `amplified_delta`.

    Returns
    -------
    DeltaBound
        The best that is certified where `relative_error` is out of reach.
    """
    law, blanket = with_absence(law, blanket, rate, epsilon)
    return amplified_delta(law, blanket, relative_error=relative_error)


def require_participation(rate: float) -> float:
    """Return `rate` as a float in (0, 1], or `InvalidValueError`."""
    return require_real("participation", rate, minimum=0.0, maximum=1.0, exclusive_minimum=True)
