"""Bounds of the literature by name: they answer a query beside the proven ones.

Those as published are no guarantees (docs/research/errata.md says where one fails). `general-clone`
and `feldman2022-numeric` are proven: they are `blanket` and `clone` by their papers' names. Every
function checks the conditions of its theorem and raises `NotApplicableError` naming the one that
failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fl_shuffle.accounting.bounds.published import (
    ERLINGSSON_CLIENTS,
    ERLINGSSON_DELTA,
    ERLINGSSON_EPSILON0,
    Formula,
    bennett_delta,
    chen2024_mu,
    closed_form_delta,
    echo_epsilon,
    erlingsson2019_epsilon,
    feldman2022_epsilon,
    gspa_exact_curve,
    hoeffding_delta,
    moments_curve,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.guarantees import (
    ONE_RANDOMIZER,
    SHUFFLED,
    Method,
    answer_to,
    epsilon_and_delta,
    guarantee_from_curve,
    require_one_round,
)
from fl_shuffle.accounting.queries.query import BoundQuery, make_randomizer
from fl_shuffle.accounting.queries.randomizer_methods import blanket_guarantee, clone_guarantee
from fl_shuffle.accounting.queries.renyi_methods import published_batch, require_several
from fl_shuffle.errors import NotApplicableError

LARGEST_EPSILON0 = 100.0
"""Tail bounds square e^epsilon0: from here on doubles would overflow."""


def gdp_guarantee(query: BoundQuery) -> Guarantee:
    epsilon0, clients = published_batch(query)
    # Gaussian DP composes by the root of the sum of squares.
    mu = chen2024_mu(epsilon0, clients) * math.sqrt(query.rounds)
    point = epsilon_and_delta(
        query,
        lambda delta: gaussian_epsilon(delta, mu),
        lambda epsilon: gaussian_delta(epsilon, mu),
    )
    theorem = "Theorem 2 and Proposition 2" if query.rounds > 1 else "Theorem 2"
    source = f"Chen, Cao, Ge 2024 (ICASSP), {theorem}"
    assumptions = (SHUFFLED, "a central limit theorem without error term")
    return answer_to(query, point, Status.AS_PUBLISHED, source, assumptions, mu=mu)


GDP = Method("gdp", "Gaussian DP of the Renyi paper, as published", gdp_guarantee, headline=False)


# --- closed forms of one round -----------------------------------------------------------------


def _closed_form(query: BoundQuery, epsilon_at: Callable[[float], float], source: str) -> Guarantee:
    """Return the answer of a formula for epsilon that falls with delta."""
    point = epsilon_and_delta(
        query, epsilon_at, lambda epsilon: closed_form_delta(epsilon_at, epsilon)
    )
    assumptions = (SHUFFLED, ONE_RANDOMIZER)
    return answer_to(query, point, Status.AS_PUBLISHED, source, assumptions)


def erlingsson_guarantee(query: BoundQuery) -> Guarantee:
    require_one_round(query)
    epsilon0, clients = published_batch(query)
    if clients < ERLINGSSON_CLIENTS or epsilon0 >= ERLINGSSON_EPSILON0:
        raise NotApplicableError(
            f"{query.method} needs clients >= {ERLINGSSON_CLIENTS} and epsilon0 < "
            f"{ERLINGSSON_EPSILON0:g}, got {clients} and {epsilon0:g}"
        )
    answer = _closed_form(
        query,
        lambda delta: erlingsson2019_epsilon(epsilon0, clients, delta),
        "Erlingsson et al. 2019 (SODA), Theorem 7",
    )
    # Checked on the answer: the question may have given epsilon, and delta comes out.
    if answer.delta >= ERLINGSSON_DELTA:
        raise NotApplicableError(
            f"{query.method} needs delta < {ERLINGSSON_DELTA:g}, got {answer.delta:g}"
        )
    return answer


ERLINGSSON = Method(
    "erlingsson2019",
    "12 epsilon0 sqrt(log(1/delta)/n), as published",
    erlingsson_guarantee,
    headline=False,
)


def feldman_guarantee(query: BoundQuery) -> Guarantee:
    require_one_round(query)
    epsilon0, clients = published_batch(query)

    def epsilon_at(delta: float) -> float:
        try:
            return feldman2022_epsilon(epsilon0, clients, delta)
        except NotApplicableError:
            # Outside the theorem's range of delta nothing is amplified.
            return epsilon0

    if query.delta is not None:
        feldman2022_epsilon(epsilon0, clients, query.delta)  # raises outside the theorem's range
    source = "Feldman, McMillan, Talwar 2022, Theorem 3.1, closed form"
    return _closed_form(query, epsilon_at, source)


FELDMAN = Method(
    "feldman2022",
    "standard clone in closed form, as published",
    feldman_guarantee,
    headline=False,
)


def feldman_numeric_guarantee(query: BoundQuery) -> Guarantee:
    """Return the delta of the paper's pair itself: the same number as `clone`, by the name of its
    paper.

    The pair: C ~ Bin(n - 1, e^-eps0), A ~ Bin(C, 1/2), D ~ Bern(e^eps0/(1 + e^eps0)), and
    (A + D, C - A + 1 - D) against (A + 1 - D, C - A + D) (Su, Cheng, Wang 2025, Theorem 3 of
    section 3.1). Their program sums it in steps with an early stop; here the sum is exact up to a
    share that is added, so the status is proven.
    """
    answer = clone_guarantee(query)
    source = "Feldman, McMillan, Talwar 2022, numeric bound of the standard clone pair"
    return replace(answer, source=source)


FELDMAN_NUMERIC = Method(
    "feldman2022-numeric",
    "standard clone by numbers, which is clone",
    feldman_numeric_guarantee,
    headline=False,
)


def echo_guarantee(query: BoundQuery) -> Guarantee:
    require_one_round(query)
    query.require_pure()
    budgets = query.local_budgets
    require_several(query, query.clients or 1)
    # The sum divides by each epsilon0.
    smallest = min(budget.epsilon0 for budget in budgets)
    if smallest <= 0.0:
        raise NotApplicableError(f"{query.method} needs every epsilon0 above 0, got {smallest:g}")
    top = max(budget.epsilon0 for budget in budgets)
    answer = _closed_form(
        query,
        # The largest local budget holds for everybody without any shuffle.
        lambda delta: min(top, echo_epsilon(budgets, delta)),
        "Liu et al. 2023 (Echo of Neighbors)",
    )
    note = "the hiding probabilities are averages over inputs, not a worst case"
    return replace(answer, assumptions=(SHUFFLED, note))


ECHO = Method(
    "liu2023", "Echo of Neighbors, personal budgets, as published", echo_guarantee, headline=False
)


# --- curves ------------------------------------------------------------------------------------


def gspa_finite_guarantee(query: BoundQuery) -> Guarantee:
    """Return GSPA's reduction without its central limit theorem."""
    require_several(query, query.clients or 1)
    budgets = query.local_budgets
    top = max(budget.epsilon0 for budget in budgets)
    return guarantee_from_curve(
        query,
        gspa_exact_curve(budgets),
        top,
        Status.AS_PUBLISHED,
        "Chen, Cao, Ge 2024 (GSPA), Theorem 1 at finite n",
        ("all clients use binary randomized response: the reduction fails for others",),
    )


GSPA_FINITE = Method(
    "gspa-finite",
    "GSPA's reduction at finite n, as published",
    gspa_finite_guarantee,
    headline=False,
)


def _moments_guarantee(query: BoundQuery, formula: Formula, name: str) -> Guarantee:
    """Return Balle et al.'s tail bound for the query's randomizer, or for any."""
    require_one_round(query)
    epsilon0, clients = published_batch(query)
    if epsilon0 > LARGEST_EPSILON0:
        raise NotApplicableError(
            f"{query.method} is evaluated for epsilon0 <= {LARGEST_EPSILON0:g}, got {epsilon0:g}"
        )
    named = query.randomizer is not None or bool(query.matrix)
    randomizer = make_randomizer(query, epsilon0) if named else None
    local = epsilon0 if randomizer is None else randomizer.local_epsilon
    return guarantee_from_curve(
        query,
        moments_curve(formula, local, clients, randomizer),
        local,
        Status.AS_PUBLISHED,
        f"Balle, Bell, Gascon, Nissim 2019, section 5, {name}'s inequality",
        (ONE_RANDOMIZER,),
    )


HOEFFDING = Method(
    "hoeffding",
    "privacy blanket with Hoeffding's inequality, as published",
    lambda query: _moments_guarantee(query, hoeffding_delta, "Hoeffding"),
    headline=False,
)
BENNETT = Method(
    "bennett",
    "privacy blanket with Bennett's inequality, as published",
    lambda query: _moments_guarantee(query, bennett_delta, "Bennett"),
    headline=False,
)


def general_clone_guarantee(query: BoundQuery) -> Guarantee:
    """Return the best decomposition of the general clone paradigm, which is the privacy blanket."""
    answer = blanket_guarantee(query)
    source = f"Su, Cheng, Wang 2025, Theorems 3 and 4: the blanket is optimal; {answer.source}"
    return replace(answer, source=source)


GENERAL_CLONE = Method(
    "general-clone",
    "best decomposition of the general clone paradigm: blanket",
    general_clone_guarantee,
    absence=True,
    headline=False,
)

PUBLISHED_METHODS = (
    GENERAL_CLONE, GSPA_FINITE, GDP, ECHO, ERLINGSSON, FELDMAN, FELDMAN_NUMERIC,
    HOEFFDING, BENNETT,
)  # fmt: skip
