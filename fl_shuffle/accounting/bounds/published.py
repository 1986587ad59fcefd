"""Amplification bounds as their papers print them, for comparison with the accountant's own.

No bound here is called proven: some are asymptotic, some fail (docs/research/errata.md), and the
others are reproduced without their proofs. `girgis_lower_rdp` is a lower bound. Each docstring
names the source. Neighbors: replace-one. Units: nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from fl_shuffle.accounting.bounds.clones import clone_law
from fl_shuffle.accounting.bounds.gspa import gspa_shares
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.accounting.bounds.worst_client import worst_client_curve
from fl_shuffle.accounting.distributions.amplification import (
    AmplificationDistribution,
    AtomicDistribution,
)
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer
from fl_shuffle.accounting.limits import MIN_DELTA
from fl_shuffle.accounting.numerics.monotone_search import solve
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound, DeltaCurve
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_UP
from fl_shuffle.errors import NotApplicableError

# --- Closed forms ------------------------------------------------------------------------------

ERLINGSSON_CLIENTS, ERLINGSSON_EPSILON0, ERLINGSSON_DELTA = 1000, 0.5, 0.01
"""Theorem 7 of Erlingsson et al. 2019 is stated for this many clients, and below these budgets."""


def erlingsson2019_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Return 12 eps0 sqrt(log(1/delta)/n).

    Source: Erlingsson et al. 2019, Theorem 7, its condition unchecked. Epsilons in nats;
    replace-one.
    """
    return 12.0 * epsilon0 * math.sqrt(math.log(1.0 / delta) / clients)


def chen2024_mu(epsilon0: float, clients: int) -> float:
    """Return 2 e^(eps0/2)/sqrt(n - 1): Chen, Cao and Ge 2024 (ICASSP), Theorem 2; asymptotic."""
    return 2.0 * math.exp(0.5 * epsilon0) / math.sqrt(clients - 1)


def feldman2022_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Return the standard clone's epsilon in closed form.

    Source: Feldman, McMillan and Talwar 2022, Theorem 3.1. Epsilons in nats; replace-one.
    """
    largest = math.log(clients / (16.0 * math.log(2.0 / delta)))
    if not epsilon0 <= largest:
        raise NotApplicableError(
            f"Theorem 3.1 needs epsilon0 <= ln(n / (16 ln(2/delta))) = {largest:.4g}, got "
            f"{epsilon0:g}"
        )
    high = math.exp(epsilon0)
    spread = 8.0 * math.sqrt(high * math.log(4.0 / delta) / clients) + 8.0 * high / clients
    return math.log1p(math.tanh(0.5 * epsilon0) * spread)


def closed_form_delta(epsilon_at: Callable[[float], float], epsilon: float) -> float:
    """Return the delta at which a closed form, which falls with delta, says `epsilon`."""
    low, high = math.log(MIN_DELTA), 0.0
    if epsilon_at(MIN_DELTA) <= epsilon:
        return MIN_DELTA
    # In log delta: 100 halvings of 670 leave nothing. `high` is always a delta at which the form
    # is small enough.
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if epsilon_at(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def echo_sum(budgets: Sequence[LocalBudget]) -> float:
    """Return the sum S of Echo of Neighbors.

    It is the sum over i, one client of the largest budget left out, of the average over j of
    (eps_i/eps_j) (1 - e^-eps_j)/(1 - e^-eps_i) e^-max(eps_i, eps_j). Source: Liu et al. 2023.
    """
    classes = check_budgets(budgets)
    eps = np.array([budget.epsilon0 for budget in classes])
    count = np.array([float(budget.count) for budget in classes])
    scale = eps / -np.expm1(-eps)
    # Budgets are sorted: max(eps_i, eps_j) is eps_i for j <= i and eps_j after it.
    below = np.cumsum(count / scale)
    above = np.cumsum((count * np.exp(-eps) / scale)[::-1])[::-1]
    # With s_i = eps_i/(1 - e^-eps_i) the summand is (s_i/s_j) e^-max(eps_i, eps_j): two running
    # sums over j replace n^2 terms.
    average = scale * (np.exp(-eps) * below + np.append(above[1:], 0.0)) / count.sum()
    # One client of the largest budget is the differing one.
    count[-1] -= 1.0
    return float(average @ count)


def echo_epsilon(budgets: Sequence[LocalBudget], delta: float) -> float:
    """Return Echo of Neighbors' epsilon of the client with the largest budget.

    It is an average over the differing client's inputs, not a worst case. Source: Liu et al. 2023.
    """
    total, need = echo_sum(budgets), math.log(4.0 / delta)
    top = max(budget.epsilon0 for budget in budgets)
    if total < 16.0 * need:
        return top
    return math.log1p(math.tanh(0.5 * top) * (8.0 * math.sqrt(need / total) + 8.0 / total))


def gspa_exact_curve(budgets: Sequence[LocalBudget]) -> DeltaCurve:
    """Return GSPA's reduction at finite n, for the most exposed client.

    Client j hides it with probability 2 (1 - delta_j)/(1 + e^eps_j). Proven for binary randomized
    response, not for all randomizers.
    """
    return worst_client_curve(
        budgets,
        lambda epsilon0: lambda epsilon: clone_law(epsilon0, epsilon),
        lambda own, other: 2.0 * float(gspa_shares(other.epsilon0, other.delta0)),
    )


# --- Moments of the blanket (Balle, Bell, Gascon, Nissim 2019, Lemma 5.3) -----------------------


@dataclass(frozen=True)
class BlanketMoments:
    """What these bounds know of the amplification variable L at one epsilon; `second` is E L^2."""

    gamma: float
    lower: float
    upper: float
    second: float
    exposed: float = 0.0

    @classmethod
    def generic(cls, epsilon0: float, epsilon: float) -> BlanketMoments:
        """Return the moments for any pure eps0-randomizer shared by all clients."""
        return cls(
            # The blanket is Q itself, of mass e^-eps0. Then L = P/Q - e^eps, and P/Q lies in
            # [e^-eps0, e^eps0] with mean 1: its variance is at most (e^eps0 - 1)(1 - e^-eps0).
            gamma=math.exp(-epsilon0),
            lower=math.exp(-epsilon0) - math.exp(epsilon),
            upper=math.exp(epsilon) * math.expm1(epsilon0 - epsilon),
            second=-math.expm1(epsilon0) * math.expm1(-epsilon0) + math.expm1(epsilon) ** 2,
        )

    @classmethod
    def of_law(
        cls, law: AmplificationDistribution, gamma: float, exposed: float = 0.0
    ) -> BlanketMoments:
        """Return the moments of a distribution of L.

        Without atoms, L is spread to a grid with its mean kept, which can only add to E L^2.
        """
        if isinstance(law, AtomicDistribution):
            second = float(law.probabilities @ law.values**2)
            return cls(gamma, law.lower, law.upper, second, exposed)
        grid = np.linspace(law.lower, law.upper, 4001)
        step = grid[1] - grid[0]
        # E f(L) for the chord function of t^2: value at the left end, slope, then one breakpoint a
        # node.
        second = grid[0] ** 2 + (grid[0] + grid[1]) * (law.mean - grid[0])
        second += 2.0 * step * float(law.stop_loss(grid)[1:-1].sum())
        return cls(gamma, law.lower, law.upper, second * (1.0 + 1e-9), exposed)


def hoeffding_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Return delta by Hoeffding's tail, averaged exactly over Bin(n, gamma)."""
    drift, span = math.expm1(epsilon), moments.upper - moments.lower
    if drift == 0.0 or moments.upper <= 0.0:
        return 1.0 if drift == 0.0 else min(1.0, moments.exposed)
    # Hoeffding: E(sum of M terms)_+ <= the integral of e^(-2 (t + M drift)^2/(M span^2)) over t
    # >= 0, where -drift = 1 - e^eps is a term's mean. (t + M drift)^2 >= (M drift)^2 + 2 t M
    # drift gives span^2/(4 drift) e^(-2 M (drift/span)^2).
    return _averaged(span * span / (4.0 * drift), 2.0 * (drift / span) ** 2, moments, clients)


def bennett_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Return delta by Bennett's tail."""
    drift, top, second = math.expm1(epsilon), moments.upper, moments.second
    if drift == 0.0 or top <= 0.0:
        return 1.0 if drift == 0.0 else min(1.0, moments.exposed)
    # Bennett: for terms of mean -drift, at most `top`, with second moment `second`, and at the
    # tilt s = log(1 + u)/top, P(sum > t) <= e^(-s t - M second/top^2 phi(u)), phi(u) = (1 + u)
    # log(1 + u) - u. Its integral over t >= 0 gives the front factor 1/s.
    u = drift * top / second
    log = math.log1p(u)
    # phi(u) = u^2/2 - u^3/6 + ...: below 1e-4 the difference would cancel.
    phi = (1.0 + u) * log - u if u > 1e-4 else 0.5 * u * u * (1.0 - u / 3.0)
    return _averaged(top / log, second / top**2 * phi, moments, clients)


def _averaged(front: float, rate: float, moments: BlanketMoments, n: int) -> float:
    """Return (1/(gamma n)) E[front e^(-rate M) 1{M >= 1}] plus what is exposed.

    M ~ Bin(n, gamma).
    """
    gamma = moments.gamma
    # E e^(-rate M) = (1 - gamma + gamma e^-rate)^n, less the term of M = 0.
    some = n * math.log1p(gamma * math.expm1(-rate))
    none = n * math.log1p(-gamma) if gamma < 1.0 else -math.inf
    if none > -30.0:
        # exp(some) - exp(none) would cancel when few reports come from the blanket.
        hit = math.exp(none) * math.expm1(n * math.log1p(gamma * math.exp(-rate) / (1.0 - gamma)))
    else:
        hit = math.exp(some)
    return min(1.0, front / (gamma * n) * hit * (1.0 + 1e-9) + moments.exposed)


Formula = Callable[[BlanketMoments, int, float], float]


def moments_curve(
    formula: Formula, epsilon0: float, clients: int, randomizer: AccountedRandomizer | None = None
) -> DeltaCurve:
    """Return delta(epsilon) of `hoeffding_delta` or `bennett_delta`.

    Without a randomizer it is that of any.
    """
    cases = () if randomizer is None else randomizer.cases()

    def curve(epsilon: float) -> DeltaBound:
        if epsilon >= epsilon0:
            return DeltaBound(0.0, 0.0)
        moments = [
            BlanketMoments.of_law(law, case.blanket_mass, case.exposed(epsilon))
            for case in cases
            if (law := case.law(epsilon)) is not None
        ] or [BlanketMoments.generic(epsilon0, epsilon)]
        return DeltaBound(max(formula(each, clients, epsilon) for each in moments), 0.0)

    return curve


def moments_epsilon(
    formula: Formula,
    epsilon0: float,
    clients: int,
    delta: float,
    randomizer: AccountedRandomizer | None = None,
) -> float:
    """Return epsilon at `delta` of `moments_curve`."""
    curve = moments_curve(formula, epsilon0, clients, randomizer)
    return solve(curve, epsilon0, epsilon=None, delta=delta).epsilon


# --- Renyi divergences --------------------------------------------------------------------------


def girgis_simple_rdp(epsilon0: float, clients: int, order: int) -> float:
    """Return the simpler upper bound of Girgis et al. 2021 on the Renyi divergence.

    Source: equation (8) of Chen, Cao and Ge 2024.
    """
    m, tail = _girgis_batch(epsilon0, clients, order)
    return float(np.logaddexp(order**2 * math.expm1(epsilon0) ** 2 / m, tail)) / (order - 1)


def _girgis_batch(epsilon0: float, clients: int, order: int) -> tuple[int, float]:
    """Return how many reports hide the client, and a term for fewer.

    The term is the logarithm of the chance that fewer do, with eps0's cost.
    """
    high = math.exp(epsilon0)
    tail = epsilon0 * order - (clients - 1) / (8.0 * high)
    # Chernoff: Bin(n - 1, e^-eps0) is at least half of its mean, except with probability e^(-(n -
    # 1)/(8 e^eps0)).
    return math.floor((clients - 1) / (2.0 * high)) + 1, tail


def girgis_upper_rdp(epsilon0: float, clients: int, order: int) -> float:
    """Return the smallest of the two upper bounds of Girgis et al. 2021 and eps0."""
    gain = math.expm1(epsilon0)
    m, tail = _girgis_batch(epsilon0, clients, order)
    pairs = math.log(math.comb(order, 2)) + 2.0 * math.log(gain) - epsilon0 - math.log(m)
    ratio = 2.0 * math.log(math.expm1(2.0 * epsilon0)) - 2.0 * epsilon0 - math.log(2.0 * m)
    i = np.arange(3.0, order + 1.0)
    choose = gammaln(order + 1.0) - gammaln(i + 1.0) - gammaln(order - i + 1.0)
    higher = choose + np.log(i) + gammaln(0.5 * i) + 0.5 * i * ratio
    series = float(np.logaddexp.reduce(np.concatenate([[0.0, tail, pairs], higher])))
    return min(epsilon0, girgis_simple_rdp(epsilon0, clients, order), series / (order - 1))


def girgis_lower_rdp(epsilon0: float, clients: int, order: int) -> float:
    """Return what binary randomized response reaches at least, at every integer order from 2 on.

    Parameters
    ----------
    epsilon0 : float
        Local budget, in nats.
    clients : int
        Number of reports.
    order : int
        Renyi order, at least 2.

    Returns
    -------
    float
        A lower bound on the divergence of the shuffled reports.

    Notes
    -----
    Source: Girgis et al. 2021, equation (9) of Chen, Cao and Ge 2024. Neighbors: replace-one.

    Derivation. Q: all n clients hold 0, so that Bin(n, p) ones arrive, p = 1/(1 + e^eps0). P: one
    of them holds 1. Given k ones the ratio is an average over the report that differs, P/Q = (k
    e^eps0 + (n - k) e^-eps0)/n = 1 + X, and X = (e^eps0 - e^-eps0) (k - n p)/n has mean 0 and
    variance (e^eps0 - e^-eps0)^2 p (1 - p)/n = (e^eps0 - 1)^2/(n e^eps0). As p <= 1/2, the central
    moments p (1 - p) ((1 - p)^(i - 1) + (-1)^i p^(i - 1)) of one report are >= 0, and so are those
    of a sum. So E_Q (1 + X)^order = sum over i of binom(order, i) E X^i is at least its terms up to
    i = 2.
    """
    gain = 4.0 * math.sinh(0.5 * epsilon0) ** 2  # (e^eps0 - 1)^2/e^eps0
    return math.log1p(0.5 * order * (order - 1) * gain / clients) / (order - 1)


def chen2024_rdp(epsilon0: float, clients: int, order: float) -> float:
    """Return 2 e^eps0 order/(n - 1): Chen, Cao and Ge 2024 (ICASSP), Corollary 2; asymptotic."""
    return 2.0 * math.exp(epsilon0) * order / (clients - 1)


REACHED_ROUND_OFF = 1e-13
"""Logarithms of sums of four terms whose total is about one lose less."""


def reached_epsilon(epsilon0: float, order: float, divergence: float, delta: float) -> float:
    """Return a lower bound on epsilon at `delta` where a Renyi divergence is at least this large.

    Statement. If D_order(P || Q) >= `divergence`, and no loss |log(P/Q)| exceeds eps0, then P and Q
    are not (epsilon, delta) indistinguishable for the epsilon that is returned.

    Proof. Suppose that they are, in both directions. Let h(a) = E_Q (P/Q - a)_+, which is convex.
    (1) h(e^epsilon) <= delta, and h(a) = 0 from e^eps0 on. (2) The other direction has the curve
    a h(1/a) + 1 - a. So h(e^-epsilon) <= 1 - e^-epsilon + e^-epsilon delta, and h(a) = 1 - a up to
    e^-eps0. (3) A convex curve lies below the chords between these four points, and these values.
    The chords are the curve of the pair with losses eps0, epsilon, -epsilon, -eps0 whose masses
    under Q are o, i, i e^epsilon, o e^eps0: o (e^eps0 - e^epsilon) = delta, and all add up to one.
    (4) For a convex f, E_Q f(P/Q) = f(1) + the integral of f''(a) (h(a) - (1 - a)_+): a larger
    curve has a larger moment of f(x) = x^order. If the four-point moment is below
    e^((order - 1) divergence), the supposition is false. ∎

    Both sides are moved by their round-off in the direction that refutes less. The moment grows
    with epsilon, and where i would be negative (the chords are no curve) nothing is refuted, so a
    bisection finds the largest refuted epsilon, or a smaller one.
    """

    def most(epsilon: float) -> float:
        """Return the log E_Q (P/Q)^order of that pair."""
        # e^eps0 - e^epsilon without cancellation.
        outer = delta / (math.exp(epsilon) * math.expm1(epsilon0 - epsilon))
        # i (1 + e^epsilon) + o (1 + e^eps0) = 1, and o (1 + e^eps0) = o (1 + e^epsilon) + delta.
        inner = (1.0 - delta) / (1.0 + math.exp(epsilon)) - outer
        if inner < 0.0:
            return math.inf
        with np.errstate(divide="ignore"):
            masses = np.log([outer, inner, inner, outer])
        losses = np.array([epsilon0, epsilon, -epsilon, -epsilon0])
        # Of the mirrored outcomes Q has e^loss times the mass.
        logs = masses + np.array([0.0, 0.0, epsilon, epsilon0]) + order * losses
        return float(np.logaddexp.reduce(logs))

    target = (order - 1.0) * divergence * ROUND_DOWN
    if most(0.0) * ROUND_UP + REACHED_ROUND_OFF >= target:
        return 0.0
    low, high = 0.0, epsilon0 * (1.0 - 1e-9)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high)
            if most(middle) * ROUND_UP + REACHED_ROUND_OFF < target
            else (low, middle)
        )
    return low
