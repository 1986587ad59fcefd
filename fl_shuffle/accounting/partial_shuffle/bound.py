"""The sharper bound at one epsilon: every free parameter chosen, every cost added."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fl_shuffle.accounting.convex_rounding import round_up_convex
from fl_shuffle.accounting.gaussian import gaussian_profile
from fl_shuffle.accounting.partial_shuffle import lognormal
from fl_shuffle.accounting.partial_shuffle.dominating_law import choose_law
from fl_shuffle.accounting.partial_shuffle.second_order import squared_excess_of_sum
from fl_shuffle.accounting.partial_shuffle.swap import Swap, choose_swap
from fl_shuffle.accounting.privacy_loss import AtomicLaw, FloatArray
from fl_shuffle.accounting.saddle import saddle_point
from fl_shuffle.errors import PrecisionError

OFFSETS = np.geomspace(0.5, 1.6, 9)
BENDS = np.geomspace(0.3, 3.0, 16)
COST_SHARE = 0.006
TAIL_SHARE = 1e-4
ROUNDING = 1e-3


@dataclass(frozen=True)
class Setting:
    """What the theorem needs of a batch, in noise widths.

    `move`: client 1's two means lie at most this apart; `spread`: each of them lies at most this far
    from any other client's mean; `reach`: others' means to omega's; `own`: client 1's to omega's.
    """

    count: int
    move: float
    spread: float
    reach: float
    own: float

    @property
    def predicted_mu(self) -> float:
        return math.sqrt(lognormal.variance(self.spread) / self.count)


def third_order_delta(setting: Setting, epsilon: float, guess: float) -> float:
    """The bound through the third-order comparison; infinite where no parameters are found."""
    mu, n = setting.spread, setting.count
    local = float(gaussian_profile(epsilon, setting.move)) * (1.0 + 1e-12)
    if not local > 0.0:
        return math.inf
    drift = math.expm1(epsilon)
    rate = drift / lognormal.variance(mu)
    swap = choose_swap(
        count=n,
        reach=setting.reach,
        own=setting.own,
        epsilon=epsilon,
        local=local,
        goal=COST_SHARE * guess,
        sensitivity=rate * n * (local + drift),
    )
    if swap is None:
        return math.inf
    cut, cut_cost = _cut(mu, epsilon, TAIL_SHARE * guess)
    law = choose_law(epsilon, mu, cut)
    if law is None:
        return math.inf
    try:
        atoms, _, top = round_up_convex(law, [(1.0, n - 1)], ROUNDING)
    except PrecisionError:
        return math.inf
    total = 0.0
    for loss, weight in zip(swap.losses, swap.weights, strict=True):
        total += weight * _main_term(atoms, n, swap.gain, float(loss))
    if not math.isfinite(total):
        return math.inf
    # The rounding's own remainder is a stop-loss at its top atom; it enters like the cut.
    cut_cost += top
    gain = swap.gain + float(swap.losses[-1])
    total = total / swap.smallest + n / swap.smallest * (1.0 + gain) * cut_cost + swap.cost
    return total * (1.0 + 1e-12)


def _cut(mu: float, epsilon: float, share: float) -> tuple[float, float]:
    """K with E(L_k - K)_+ <= h(a + K) near `share`, and that value."""
    reach = mu - float(ndtri(max(share, 1e-300)))
    a = math.exp(epsilon)
    cut = max(math.exp(mu * reach - 0.5 * mu * mu) - a, 0.1 * mu)
    return cut, float(lognormal.excess(np.array([a + cut]), mu)[0]) * (1.0 + 1e-9)


def _main_term(atoms: AtomicLaw, count: int, gain: float, loss: float) -> float:
    """An upper bound on F(gain, loss): min over q of E(q + sum phi(L'))_+^2 / (4q).

    L + gain L^+ + loss L^- = (1 - loss) L + (gain + loss) L^+ <= phi(L) with
    phi(x) = (1 - loss) x + (gain + loss) (x + b)_+^2 / (4b); (phi - t)_+^2 has a nonnegative
    nondecreasing second derivative.
    """
    values = atoms.values
    scale = math.sqrt(float(atoms.probabilities @ values**2))
    bends = BENDS * scale
    squares = np.maximum(values[None, :] + bends[:, None], 0.0) ** 2 / (4.0 * bends[:, None])
    bend = int(np.argmin(squares @ atoms.probabilities))
    shifted = ((1.0 - loss) * values + (gain + loss) * squares[bend]) * 1.0
    shifted = shifted + 8.0 * np.finfo(np.float64).eps * np.abs(shifted)
    law = AtomicLaw(shifted, atoms.probabilities)
    if law.mean >= 0.0:
        return math.inf
    theta = saddle_point(law, [(1.0, count - 1)])
    offsets = OFFSETS / theta
    found = squared_excess_of_sum(law, count, theta, offsets)
    if found is None:
        return math.inf
    best = float(np.min(found.values / (4.0 * offsets)))
    return math.exp(found.log_scale) * best if found.log_scale < 600.0 else math.inf
