"""A local randomizer with a continuum of reports: Laplace noise, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.amplification import Case
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer, require_epsilon0
from fl_shuffle.accounting.distributions.outcome_pair import OutcomePair

WITNESS_CELLS = 600
"""Cells of the partition through which a density's lower bound looks at it."""


def laplace_cells(edges: FloatArray) -> FloatArray:
    """Return probabilities of a standard Laplace variable between `edges` and beyond both ends,
    without cancellation: J edges give J + 1 cells."""
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    # Cells right of zero are mirrored, so that both ends lie in the left tail, where P(a < X < b) =
    # e^b (1 - e^(a - b))/2.
    flip = low > 0.0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    below = 0.5 * np.exp(np.minimum(b, 0.0)) * -np.expm1(np.minimum(a - b, 0.0))
    # Where the cell holds zero nothing cancels.
    across = 1.0 - 0.5 * np.exp(np.minimum(a, 0.0)) - 0.5 * np.exp(-np.maximum(b, 0.0))
    return np.where(b <= 0.0, below, across)


@dataclass(frozen=True)
class LaplaceLaw:
    """L for the inputs +-C of Laplace noise of scale b against the blanket Lap(0, b), c = C/b.

    With E ~ Exp(1): L = e^(2 min(E,c) - c) - e^(eps - c) or e^-c - e^(eps + 2 min(E,c) - c), each
    with probability 1/2. The same distribution serves the l1 ball of radius C in any dimension,
    where opposite points are the worst pair.
    """

    c: float
    epsilon: float

    @property
    def lower(self) -> float:
        return math.exp(-self.c) - math.exp(self.epsilon + self.c)

    @property
    def upper(self) -> float:
        return math.exp(self.epsilon - self.c) * math.expm1(2.0 * self.c - self.epsilon)

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """Return E[(L - t)_+], with u = (upper - t) e^-c in the upper branch: 1 - sqrt(1 - u)."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        c, eps = self.c, self.epsilon
        # Both branches start here, at E = 0: above only the first one counts, below only the second
        # in E(L - t)_+ = E L - t + E(t - L)_+.
        turn = -math.exp(-c) * math.expm1(eps)
        gap = np.clip((self.upper - t) * math.exp(-c), 0.0, 1.0)
        # 1 - sqrt(1 - gap), without cancellation.
        above = gap / (1.0 + np.sqrt(1.0 - gap))
        # In the second branch t - L = e^(eps - c) (e^(2 min(E, c)) - r^2) with r^2 = (e^-c - t)
        # e^(c - eps). The integral of its positive part over E, times 1/2, is e^eps (1 - r e^-c);
        # `root` is r e^-c.
        root = np.sqrt(np.maximum(math.exp(-c) - t, 0.0)) * math.exp(-0.5 * (eps + c))
        below = self.mean - t + math.exp(eps) * np.maximum(0.0, 1.0 - root)
        return np.where(t >= turn, above, below)


@dataclass(frozen=True)
class LaplaceRandomizer(AccountedRandomizer):
    """Laplace noise on an interval, or coordinatewise on an l1 ball of any dimension.

    `epsilon0` = 2 C / b for inputs of l1 norm at most C and noise scale b. The blanket is Laplace
    noise around the center with mass e^(-eps0/2), so clients with other radii but the same b share
    its shape. The pair is symmetric.
    """

    epsilon0: float
    name = "Laplace"
    source = "Su, Cheng, Wang 2025, Theorem 4 and Appendix C"
    assumptions = (
        "all clients add Laplace noise of one scale to inputs in the l1 ball of radius C",
    )

    def __post_init__(self) -> None:
        require_epsilon0(self.epsilon0)

    def cases(self) -> tuple[Case, ...]:
        half = 0.5 * self.epsilon0
        return (
            Case(math.exp(-half), lambda epsilon: LaplaceLaw(half, epsilon), lambda epsilon: 0.0),
        )

    def witness_cases(self) -> tuple[Case, ...]:
        """Return the cases with all others at the center; reports binned, which can only lower the
        divergence.

        Both directions are equal by symmetry.
        """
        return (self.binned_witness(WITNESS_CELLS).case(),)

    def binned_witness(self, cells: int) -> OutcomePair:
        """Return bins of [-C, C] plus the two tails, on each of which all ratios are constant."""
        c = 0.5 * self.epsilon0
        edges = np.linspace(-c, c, cells + 1)
        p, q, others = (laplace_cells(edges - centre) for centre in (-c, c, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.log(p) - np.log(q)
        # Beyond both inputs the ratio of densities is constant.
        loss[0], loss[-1] = self.epsilon0, -self.epsilon0
        return OutcomePair.of(p, q, others, loss, blanket_mass=1.0)
