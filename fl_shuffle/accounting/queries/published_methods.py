"""How GSPA, Echo and the Renyi and Gaussian-DP bounds answer a `Question`.

Every function checks its conditions and raises `NotApplicableError` naming the one that failed.
"""

from __future__ import annotations

import math

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds import renyi
from fl_shuffle.accounting.bounds.published import renyi_closed_forms
from fl_shuffle.accounting.bounds.published.echo_of_neighbors import echo_epsilon
from fl_shuffle.accounting.bounds.published.gspa import gspa_exact_curve, gspa_mu
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from fl_shuffle.accounting.queries.guarantees import (
    ONE_RANDOMIZER,
    SHUFFLED,
    answer_to,
    epsilon_and_delta,
    guarantee_from_curve,
    guarantee_from_epsilon,
    require_one_round,
)
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.queries.randomizer_methods import SAFE_CLONE
from fl_shuffle.errors import NotApplicableError

CENTRAL_LIMIT = (SHUFFLED, "a central limit theorem without error term")


def gspa_guarantee(query: Question) -> Guarantee:
    mu = gspa_mu(query.local_budgets, rounds=query.rounds)
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: gaussian_epsilon(delta, mu),
        lambda epsilon: gaussian_delta(epsilon, mu),
    )
    theorem = "Theorems 2 and 5" if query.rounds > 1 else "Theorem 2"
    source = f"Chen, Cao, Ge 2024 (GSPA), {theorem}"
    return answer_to(query, (epsilon, delta), Status.AS_PUBLISHED, source, CENTRAL_LIMIT, mu=mu)


def gspa_exact_guarantee(query: Question) -> Guarantee:
    status, reason = _gspa_status(query)
    return guarantee_from_curve(
        query,
        gspa_exact_curve(query.local_budgets, relative_error=query.relative_error),
        max(query.local_budgets).epsilon0,
        status,
        "Chen, Cao, Ge 2024 (GSPA), Theorem 1, at finite n",
        (reason, "the worst client's curve"),
    )


def _gspa_status(query: Question) -> tuple[Status, str]:
    """Proven where every other report contains both answers with mass 1/(1 + e^eps_j)."""
    pure = all(budget.delta0 == 0.0 for budget in query.local_budgets)
    plain = query.joint == 1 and not query.parallel
    if pure and plain and query.randomizer == "krr" and query.k == 2:
        return Status.PROVEN, "binary randomized response, any personal budgets"
    if pure and plain and not query.personal and query.randomizer in SAFE_CLONE:
        return Status.PROVEN, "one local budget; the blanket bound is never larger"
    if not pure:
        return Status.AS_PUBLISHED, "the reduction is not proven for delta0 > 0"
    return Status.AS_PUBLISHED, "the reduction is not proven for this randomizer and budgets"


def echo_guarantee(query: Question) -> Guarantee:
    if query.randomizer not in (None, "laplace"):
        raise NotApplicableError(
            f"echo is stated for clipped Laplace noise, not {query.randomizer}"
        )
    budgets = query.local_budgets
    return guarantee_from_epsilon(
        query,
        lambda delta: echo_epsilon(budgets, delta),
        Status.AS_PUBLISHED,
        "Liu et al. 2023 (Echo of Neighbors)",
        "Laplace noise clipped to a bounded range",
    )


def rdp_guarantee(query: Question, upper: str) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    rounds = query.rounds
    orders = renyi.useful_orders(
        epsilon0, clients, delta=query.delta, epsilon=query.epsilon, rounds=rounds
    )
    status = Status.PROVEN
    if upper == "rdp":
        values = renyi.clone_rdp_curve(epsilon0, clients, orders).tolist()
        source = "Feldman, McMillan, Talwar 2022 pair, exact divergence"
    elif upper == "girgis-upper":
        orders = tuple(sorted({float(max(2, round(order))) for order in orders}))
        values = [renyi_closed_forms.girgis_upper_rdp(epsilon0, clients, order) for order in orders]
        source = "Girgis et al. 2021, two upper bounds"
    else:
        values = [renyi_closed_forms.chen2024_rdp(epsilon0, clients, order) for order in orders]
        source, status = "Chen, Cao, Ge 2024 (Renyi DP), Corollary 2", Status.ASYMPTOTIC
    table = dict(zip(orders, (rounds * value for value in values), strict=True))
    if query.delta is not None:
        epsilon = renyi.rdp_epsilon(table.__getitem__, query.delta, orders)
        # The local guarantee holds whatever the shuffler does; an asymptotic form is left alone.
        epsilon = epsilon if status is Status.ASYMPTOTIC else min(epsilon, rounds * epsilon0)
        delta = query.delta
    else:
        epsilon = query.epsilon or 0.0
        delta = renyi.rdp_delta(table.__getitem__, epsilon, orders)
    asked = [round(order, 3) for order in orders]
    assumed = (SHUFFLED, ONE_RANDOMIZER)
    return answer_to(query, (epsilon, delta), status, source, assumed, orders=asked)


def gdp_asymptotic_guarantee(query: Question) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    mu = renyi_closed_forms.chen2024_mu(epsilon0, clients) * math.sqrt(query.rounds)
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: gaussian_epsilon(delta, mu),
        lambda epsilon: gaussian_delta(epsilon, mu),
    )
    source = "Chen, Cao, Ge 2024 (Renyi DP), Theorem 2"
    return answer_to(query, (epsilon, delta), Status.ASYMPTOTIC, source, CENTRAL_LIMIT, mu=mu)


def girgis_lower_guarantee(query: Question) -> Guarantee:
    require_one_round(query)
    query.require_pure()
    epsilon0, _, clients = query.local
    binary = query.randomizer is None or (query.randomizer == "krr" and query.k == 2)
    if not binary or query.parallel or query.joint > 1:
        raise NotApplicableError(
            "girgis-lower is what binary randomized response reaches (krr with k = 2, or no "
            "randomizer named: some randomizer of this budget reaches it); other randomizers may "
            "lie below it: use lower"
        )
    orders = sorted({round(1.1**i) for i in range(8, 90)})
    floors = [
        (float(s), renyi_closed_forms.girgis_lower_rdp(epsilon0, clients, float(s))) for s in orders
    ]

    def reached(epsilon: float) -> float:
        return max(renyi.rdp_floor_delta(rho, s, epsilon0, epsilon) for s, rho in floors)

    if query.epsilon is not None:
        epsilon, delta = query.epsilon, reached(query.epsilon)
    else:
        delta = query.delta or 0.0
        epsilon, _ = bisected(lambda at: reached(at) > delta, 0.0, epsilon0, 1e-9)
    return answer_to(
        query,
        (epsilon, delta),
        Status.LOWER_BOUND,
        "Girgis et al. 2021, lower bound, turned into (epsilon, delta)",
        ("reached by binary randomized response of this local budget",),
    )
