"""The bound for any randomizer of a known local profile (docs/research/proofs, sections 11 and 13).

    delta <= (N/m) E[X_1 1{X_1 + ... + X_N > 0}] + costs,   X = (1 - eta) L* + (eta^+ + eta) (L*)^+,

L* the distribution of `convex_order_law`, eta^+ = eta = zeta/m (see `weights`), with omega any
member of the family and w = min(Z, zeta). The costs are H E(1 - S/m)_+, (N/m)(H + a - 1) h(zeta),
and (N/m)(1 + eta^+) S(K) for what L* is cut at: it includes h(infinity), once and not n times. E(S
- m)_- is bounded with w in the distribution whose E(t - w)_+ is t h(1/t) up to zeta.
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    PARTIAL_SHUFFLE_MAX_EXPONENT,
    law_of_profile,
)
from fl_shuffle.accounting.bounds.partial_shuffle.profile import LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum, spread_atoms
from fl_shuffle.accounting.distributions.amplification import (
    AmplificationDistribution,
    AtomicDistribution,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_mu
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.numerics.convex_rounding import atoms_on, round_up_convex
from fl_shuffle.accounting.numerics.stop_loss import amplified_delta
from fl_shuffle.accounting.numerics.tilted_moments import TiltedMoments, tilt_at_saddle_point
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_UP, UNIT
from fl_shuffle.errors import require_integer

NODES_APART = 1e-12
"""Nodes of a distribution nearer to one another than this share of its range are one."""
CONVEX_ORDER_COST_SHARE = 0.005
"""Share of the predicted result that undoing the swap may cost."""
CONVEX_ORDER_ERROR = 2e-3
"""Asked of the engine for the main term."""
CONVEX_ORDER_ROUNDING = 6e-4
"""Asked of the rounding of a smooth distribution to atoms, a third of that."""
CONVEX_ORDER_BENDS = 300
"""Nodes of the weight's distribution; a piecewise linear profile with fewer bends is taken as it
is."""
CONVEX_ORDER_CAPS = 60
"""Candidates for the cap of a weight."""
CONVEX_ORDER_MIN_OTHERS = 5
"""With fewer other reports the costs exceed what is gained."""
PARTIAL_SHUFFLE_MAX_SHARE = 0.98
"""A predicted mu above this share of the local one is no gain."""
PROFILE_PREDICTED_DELTAS = 1e-12, 0.99
"""delta(0) is taken into this range for the predicted mu, a scale only."""


def profile_delta(profile: LocalProfile, count: int, epsilon: float) -> float:
    """Return an upper bound on delta(epsilon) of a shuffle, from a local profile alone.

    Parameters
    ----------
    profile : LocalProfile
        Holds for any two reports, both orders.
    count : int
        Number of other reports.
    epsilon : float
        In nats, at least 0.

    Returns
    -------
    float
        Infinite where no bound is found.

    Notes
    -----
    Statement: see the module. Source: docs/research/proofs, sections 11 and 13. Neighbors:
    replace-one. Direction of error: all errors are added.
    """
    # The curve does not rise, and where the profile ends it has fallen as far as it will: beyond,
    # values of L would only overflow.
    epsilon = min(epsilon, math.log(profile.top))
    local = profile.local_delta(epsilon) * ROUND_UP
    law = law_of_profile(epsilon, profile, profile.top)
    return convex_order_delta(law, profile.kinks, local, profile, count)


def convex_order_delta(
    law: AmplificationDistribution,
    kinks: FloatArray | None,
    local: float,
    hiding: LocalProfile,
    count: int,
) -> float:
    """Return the bound for a distribution L* that dominates every L_k in convex order.

    Parameters
    ----------
    law : AmplificationDistribution
        L*.
    `kinks` : ndarray or None
        The ratios at which the profile behind `law` bends, if it is piecewise linear.
    local : float
        H_a(P, Q), the local delta.
    hiding : LocalProfile
        A profile of omega against any other client's report.
    count : int
        Number of other reports.

    Returns
    -------
    float
        Infinite where no bound is found.

    Notes
    -----
    Statement, source, neighbors, and direction of error: as for `profile_delta`.
    """
    if count < CONVEX_ORDER_MIN_OTHERS or not local > 0.0:
        return math.inf
    # E L^- = H + a - 1, and a - 1 = -E L.
    drift = -law.mean
    atoms, tail = _atoms(law, kinks, count)
    goal = CONVEX_ORDER_COST_SHARE * _predicted(atoms, count)
    # (B) = (N/m) (H + a - 1) h(zeta).
    zeta, over = _cap(hiding, goal / (local + drift))
    steps = np.concatenate([[0.0], _grid(hiding, zeta), [zeta]])
    # E(t - Z)_+ = int (t R - omega)_+ <= t h(1/t).
    transform = np.append(0.0, steps[1:] * hiding(1.0 / steps[1:]))
    weights = (*spread_atoms(steps, transform), count)
    found = floor_of_sum([weights], math.log(goal / local))
    if found is None:
        return math.inf
    m, below = found
    eta = zeta / m
    # phi(l) = l + eta |l| increases in l for eta <= 1 (section 11). Larger shares are not tried.
    if eta >= 0.5:
        return math.inf
    law = lifted(atoms, eta, eta)
    main = amplified_delta(law, [(1.0, count - 1)], relative_error=CONVEX_ORDER_ERROR).delta
    # E(sum of phi(L*))_+ = N E[X_1 1{sum > 0}] by symmetry: `main` is that expectation. Then the
    # cut (N/m)(1 + eta) S(K), (B), and (A).
    total = count / m * (main + (1.0 + eta) * tail + (local + drift) * over) + local * below
    return total * ROUND_UP


def _atoms(
    law: AmplificationDistribution, kinks: FloatArray | None, count: int
) -> tuple[AtomicDistribution, float]:
    """Return atoms that dominate min(L*, K), and E(L* - K)_+."""
    if kinks is None:
        atoms, _, extra = round_up_convex(law, [(1.0, count - 1)], CONVEX_ORDER_ROUNDING)
        return atoms, extra
    a = 1.0 - law.mean
    nodes = np.concatenate([(kinks - a)[kinks > a], (1.0 - a * kinks)[a * kinks > 1.0]])
    nodes = np.unique(np.concatenate([nodes, [law.lower, 0.0, law.upper]]))
    # Two nodes that are one but for round-off would have a slope of noise between them.
    apart = np.diff(nodes) > NODES_APART * (law.upper - law.lower)
    return atoms_on(law, nodes[np.append(apart, True)])


def _predicted(atoms: AtomicDistribution, count: int) -> float:
    """Return a saddle-point estimate of the main term, to share out the costs."""
    theta = tilt_at_saddle_point(atoms, [(1.0, count - 1)])
    moment = TiltedMoments.of(atoms, theta)
    tilted = atoms.probabilities * np.exp(theta * atoms.values) / moment.value
    mean = float(tilted @ atoms.values)
    # In units of 1/theta: squares of e^400 would overflow.
    spread = count * float(tilted @ (theta * (atoms.values - mean)) ** 2) + 2.0
    log = count * moment.log - math.log(theta) - 0.5 * math.log(2.0 * math.pi * spread)
    return math.exp(max(min(log - math.log(count), 0.0), -PARTIAL_SHUFFLE_MAX_EXPONENT))


def _cap(hiding: LocalProfile, allowed: float) -> tuple[float, float]:
    """Return zeta and h(zeta), at most `allowed` above what no zeta takes away."""
    caps = np.geomspace(1.0, hiding.top, CONVEX_ORDER_CAPS)[1:]
    over = hiding(caps)
    first = int(np.argmax(over - hiding.beyond <= allowed))
    return float(caps[first]), float(over[first])


def _grid(hiding: LocalProfile, zeta: float) -> FloatArray:
    """Return where to bend the distribution of w between 0 and zeta."""
    most = CONVEX_ORDER_BENDS
    if hiding.kinks is not None and hiding.kinks.size < most:
        return hiding.kinks[hiding.kinks < zeta * ROUND_DOWN]
    return np.geomspace(1.0 / hiding.top, zeta, most)[:-1]


def lifted(atoms: AtomicDistribution, gain: float, loss: float) -> AtomicDistribution:
    """Return the distribution of L + gain L^+ + loss L^-, rounded up.

    The function is convex and increasing in L.
    """
    values = np.where(atoms.values > 0.0, (1.0 + gain) * atoms.values, (1.0 - loss) * atoms.values)
    return AtomicDistribution(values + 16.0 * UNIT * np.abs(values), atoms.probabilities)


class ProfileCurve(OneRoundCurve):
    """The privacy curve of one client among `clients` whose reports share a local profile; proven.

    Any randomizers, of any dimension, may be mixed, as long as *any two* report distributions that
    occur are within `profile` of each other, both orders.
    """

    def __init__(self, profile: LocalProfile, clients: int) -> None:
        super().__init__()
        self.profile = profile
        self._others = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS) - 1

    def local_delta(self, epsilon: float) -> float:
        """Return the profile at `epsilon`."""
        return self.profile.local_delta(epsilon)

    def local_epsilon(self, delta: float) -> float:
        """Return the profile's epsilon at `delta`."""
        return self.profile.local_epsilon(delta)

    def _shuffled(self, epsilon: float, local: float) -> float:
        return profile_delta(self.profile, self._others, epsilon)

    @property
    def improves(self) -> bool:
        """Whether there are enough others to look for a bound."""
        return self._others >= CONVEX_ORDER_MIN_OTHERS

    @property
    def credit(self) -> bool:
        """Whether the shuffler contributes: delta(0) is clearly below the local one."""
        return self.improves and self.certified(0.0) < PARTIAL_SHUFFLE_MAX_SHARE * self.local_delta(
            0.0
        )

    @property
    def predicted_mu(self) -> float:
        """The Gaussian-DP parameter with the same delta(0): not a bound, only a scale."""
        low, high = PROFILE_PREDICTED_DELTAS
        return gaussian_mu(0.0, min(max(self.certified(0.0), low), high))
