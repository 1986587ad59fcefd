"""Every bound by name: a `BoundQuery` in, a `Guarantee` out.

`bound(query)` evaluates the method the query names; `compare(query)` all that apply. A method asked
outside its validity raises `NotApplicableError` with the condition that failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.query import BoundQuery, make_randomizer
from fl_shuffle.accounting.stop_loss import DeltaBound
from fl_shuffle.errors import FlShuffleError, NotApplicableError, require_choice

Curve = Callable[[float], DeltaBound]

SHUFFLED = "n reports arrive, each shuffled whole with independent randomness"
ONE_RANDOMIZER = "all clients use one randomizer with this local budget"
SAFE_CLONE = ("krr", "laplace", "privunit")
"""Randomizers whose bound survives clones with probability 2/(1 + e^eps0) at equal budgets."""


@dataclass(frozen=True)
class Method:
    """One bound: its name, what it is in a line, and how it answers."""

    name: str
    summary: str
    answer: Callable[[BoundQuery], Guarantee]


def bound(query: BoundQuery) -> Guarantee:
    """The answer of the method that the query names."""
    require_choice("method", query.method, METHODS)
    return METHODS[query.method].answer(query)


def compare(query: BoundQuery) -> dict[str, Guarantee | FlShuffleError]:
    """Every method's answer, or the error that says why it does not apply; best proven first.

    Order: proven upper bounds from small to large, then asymptotic and published ones, then lower
    bounds, then those that do not apply.
    """
    answers: dict[str, Guarantee | FlShuffleError] = {}
    for name in METHODS:
        try:
            answers[name] = bound(replace(query, method=name))
        except FlShuffleError as error:
            answers[name] = error
    return dict(sorted(answers.items(), key=lambda item: _rank(query, item[1])))


def applicable_methods(query: BoundQuery) -> tuple[str, ...]:
    """Names of the methods that answer this query, best proven first."""
    return tuple(name for name, value in compare(query).items() if isinstance(value, Guarantee))


def _rank(query: BoundQuery, value: Guarantee | FlShuffleError) -> tuple[int, float]:
    if isinstance(value, FlShuffleError):
        return 4, 0.0
    order = (Status.PROVEN, Status.ASYMPTOTIC, Status.AS_PUBLISHED, Status.LOWER_BOUND)
    number = value.epsilon if query.delta is not None else value.delta
    return order.index(value.status), number


# --- how a curve becomes an answer -------------------------------------------------------------


def _answer(
    query: BoundQuery,
    curve: Curve,
    local_epsilon: float,
    status: Status,
    source: str,
    assumptions: tuple[str, ...] = (),
) -> Guarantee:
    """Read the curve at the query's epsilon or delta, composed over its rounds."""
    from fl_shuffle.accounting.clones import solve

    notes: tuple[str, ...] = ()
    if query.rounds == 1:
        epsilon, delta, error = solve(
            curve, local_epsilon, epsilon=query.epsilon, delta=query.delta
        )
    else:
        epsilon, delta, error = *_composed(query, curve, local_epsilon), 0.0
        notes = ("each round is shuffled afresh; parameters depend on public outputs only",)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=status,
        source=source,
        assumptions=(SHUFFLED, *assumptions, *notes),
        numerical_error=error,
        unit=query.unit,
        details=_details(query),
    )


def _composed(query: BoundQuery, curve: Curve, local_epsilon: float) -> tuple[float, float]:
    from fl_shuffle.accounting.rounds import composed

    whole = composed(curve, local_epsilon, query.rounds)
    if query.delta is not None:
        return min(whole.epsilon(query.delta), query.rounds * local_epsilon), query.delta
    epsilon = query.epsilon if query.epsilon is not None else 0.0
    return epsilon, 0.0 if epsilon >= query.rounds * local_epsilon else whole.delta(epsilon)


def _details(query: BoundQuery) -> dict[str, object]:
    names = ("randomizer", "k", "epsilon0", "delta0", "clients", "rounds", "joint")
    found = {name: getattr(query, name) for name in names}
    if query.budgets:
        found["budget_classes"] = len(query.budgets)
    return {name: value for name, value in found.items() if value not in (None, "")}


def _from_epsilon(
    query: BoundQuery,
    epsilon_at: Callable[[float], float],
    status: Status,
    source: str,
    *notes: str,
) -> Guarantee:
    """An answer from a bound given as delta -> epsilon; one round only."""
    from fl_shuffle.accounting.closed_form import smallest_delta

    _one_round(query)
    if query.delta is not None:
        epsilon, delta = epsilon_at(query.delta), query.delta
    else:
        epsilon = query.epsilon if query.epsilon is not None else 0.0
        delta = smallest_delta(epsilon_at, epsilon)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=status,
        source=source,
        assumptions=(SHUFFLED, *notes),
        unit=query.unit,
        details=_details(query),
    )


def _one_round(query: BoundQuery) -> None:
    if query.rounds > 1:
        raise NotApplicableError(
            f"{query.method} is stated for one round; over {query.rounds} rounds use blanket, "
            "clone, rdp or gspa"
        )


# --- bounds of the randomizer itself -----------------------------------------------------------


def _blanket(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.blanket import blanket_delta, blanket_epsilon

    query.require_pure()
    if query.personal:
        return _personal_blanket(query)
    epsilon0, _, clients = query.local
    randomizer = make_randomizer(query, epsilon0)
    if query.rounds == 1:
        if query.delta is not None:
            result = blanket_epsilon(randomizer, clients, query.delta)
        else:
            result = blanket_delta(randomizer, clients, query.epsilon or 0.0)
        return replace(result, unit=query.unit, details={**result.details, **_details(query)})

    def curve(epsilon: float) -> DeltaBound:
        value = blanket_delta(randomizer, clients, epsilon)
        return DeltaBound(value.delta, value.numerical_error)

    return _answer(
        query,
        curve,
        randomizer.local_epsilon,
        Status.PROVEN,
        randomizer.source,
        randomizer.assumptions,
    )


def _personal_blanket(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.worst_client import worst_client_curve

    if query.randomizer not in SAFE_CLONE:
        raise NotApplicableError(
            "blanket with personal budgets needs a blanket law that does not depend on the "
            f"budget: krr, laplace (common noise, personal clipping) or privunit, not "
            f"{query.randomizer}; account per cohort of equal budgets instead"
        )
    largest = make_randomizer(query, max(query.budgets).epsilon0)
    curve = worst_client_curve(
        query.budgets,
        lambda epsilon0: make_randomizer(query, epsilon0).cases()[0].law,  # type: ignore[arg-type, return-value]
        lambda own, other: make_randomizer(query, other.epsilon0).cases()[0].blanket_mass,
    )
    return _answer(
        query,
        curve,
        largest.local_epsilon,
        Status.PROVEN,
        f"{largest.source}, blanket masses of each client",
        (*largest.assumptions, "the worst client's curve; budgets are public"),
    )


def _lower(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.lower_bound import lower_bound_delta, lower_bound_epsilon

    _one_round(query)
    query.require_pure()
    epsilon0, _, clients = query.local
    randomizer = make_randomizer(query, epsilon0)
    if query.delta is not None:
        result = lower_bound_epsilon(randomizer, clients, query.delta)
    else:
        result = lower_bound_delta(randomizer, clients, query.epsilon or 0.0)
    return replace(result, unit=query.unit, details={**result.details, **_details(query)})


def _moments(query: BoundQuery, tail: str) -> Guarantee:
    from fl_shuffle.accounting import closed_form

    query.require_pure()
    epsilon0, _, clients = query.local
    formula = getattr(closed_form, f"{tail}_delta")
    if query.randomizer is None and not query.parallel:
        cases, local, note = None, epsilon0, ONE_RANDOMIZER
    else:
        randomizer = make_randomizer(query, epsilon0)
        cases, local, note = randomizer.cases(), randomizer.local_epsilon, randomizer.name

    def curve(epsilon: float) -> DeltaBound:
        if cases is None:
            moments = [closed_form.BlanketMoments.generic(epsilon0, epsilon)]
        else:
            moments = [
                closed_form.BlanketMoments.of_law(law, case.blanket_mass, case.exposed(epsilon))
                for case in cases
                if (law := case.law(epsilon)) is not None
            ]
        values = [formula(each, clients, epsilon) for each in moments]
        return DeltaBound(max(values, default=1.0), 0.0)

    source = f"Balle, Bell, Gascon, Nissim 2019, Section 5 ({tail.capitalize()})"
    return _answer(query, curve, local, Status.PROVEN, source, (note,))


# --- bounds for any randomizer of a local budget -----------------------------------------------


def _clone(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.clones import clone_curve, standard_clone

    if query.personal:
        return _personal_clone(query)
    epsilon0, delta0, clients = query.local
    if query.rounds == 1 or delta0 > 0.0:
        _one_round(query)
        result = standard_clone(
            epsilon0, clients, epsilon=query.epsilon, delta=query.delta, delta0=delta0
        )
        return replace(result, unit=query.unit, details=_details(query))
    curve = clone_curve(epsilon0, [(math.exp(-epsilon0), clients - 1)])
    source = "Feldman, McMillan, Talwar 2022, Theorem 3.2"
    return _answer(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def _personal_clone(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.clones import clone_law
    from fl_shuffle.accounting.personal import LocalBudget
    from fl_shuffle.accounting.worst_client import worst_client_curve

    query.require_pure()
    k = query.k

    def hiding(own: LocalBudget, other: LocalBudget) -> float:
        """e^-(how far the other's report law is from the own one's), both inputs arbitrary."""
        if query.randomizer == "laplace":
            return math.exp(-0.5 * (own.epsilon0 + other.epsilon0))
        rest = (k or 2) - 1.0
        mine, theirs = math.exp(-own.epsilon0), math.exp(-other.epsilon0)
        return min(1.0, theirs * (1.0 + rest * mine) / (1.0 + rest * theirs))

    if query.randomizer not in ("krr", "laplace"):
        raise NotApplicableError(
            "clone with personal budgets needs the distance between two clients' randomizers, "
            "which local budgets alone do not give: name krr or laplace, or use one cohort"
        )
    curve = worst_client_curve(
        query.budgets, lambda epsilon0: lambda epsilon: clone_law(epsilon0, epsilon), hiding
    )
    return _answer(
        query,
        curve,
        max(query.budgets).epsilon0,
        Status.PROVEN,
        "Feldman, McMillan, Talwar 2022, Theorem 3.2, with personal clone probabilities",
        ("the worst client's curve; budgets are public",),
    )


def _feldman2022(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting import closed_form
    from fl_shuffle.accounting.clones import delta0_penalty

    epsilon0, delta0, clients = query.local

    def pure(delta: float) -> float:
        return closed_form.feldman2022_epsilon(epsilon0, clients, delta)

    if delta0 == 0.0:
        source = "Feldman, McMillan, Talwar 2022, Theorem 3.1"
        return _from_epsilon(query, pure, Status.PROVEN, source, ONE_RANDOMIZER)

    _one_round(query)

    def curve(epsilon: float) -> DeltaBound:
        try:
            hidden = closed_form.smallest_delta(pure, epsilon)
        except NotApplicableError:
            hidden = 1.0
        return DeltaBound(
            min(1.0, hidden + delta0_penalty(epsilon, epsilon0, delta0, clients)), 0.0
        )

    source = "Feldman, McMillan, Talwar 2022, Theorem 3.8"
    return _answer(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def _feldman2023(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.closed_form import feldman2023_epsilon

    query.require_pure()
    epsilon0, _, clients = query.local
    _require_safe_clone(query)
    return _from_epsilon(
        query,
        lambda delta: feldman2023_epsilon(epsilon0, clients, delta),
        Status.PROVEN,
        "Feldman, McMillan, Talwar 2023, closed form, where its reduction stands",
        ONE_RANDOMIZER,
    )


def _require_safe_clone(query: BoundQuery) -> None:
    if query.randomizer not in SAFE_CLONE or query.joint > 1:
        raise NotApplicableError(
            f"{query.method} needs every report law to be at least "
            "(R(x0) + R(x1))/(e^eps0 + 1); that is known for krr, laplace and privunit, not for "
            f"{query.randomizer or 'an arbitrary randomizer'}: its general proof is withdrawn"
        )


def _variation_ratio(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.clones import clone_curve

    query.require_pure()
    epsilon0, _, clients = query.local
    if query.randomizer != "krr" or query.joint > 1:
        raise NotApplicableError(
            "variation-ratio is sound where the two report laws of the differing client leave no "
            "common remainder; here that is checked for krr only"
        )
    k = query.k or 2
    low = 1.0 / (math.exp(epsilon0) + k - 1.0)
    remainder = (k - 2) * low
    if remainder > 0.0:
        raise NotApplicableError(
            f"variation-ratio is not an upper bound here: with k = {k} the differing client's "
            f"report falls on a third category with probability {remainder:.3g}, which the "
            "reduction treats as revealing nothing; use blanket"
        )
    curve = clone_curve(epsilon0, [(2.0 * low, clients - 1)])
    source = "Wang et al. 2025, where its decomposition is exact"
    return _answer(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def _erlingsson(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.closed_form import erlingsson2019_epsilon

    query.require_pure()
    epsilon0, _, clients = query.local
    return _from_epsilon(
        query,
        lambda delta: erlingsson2019_epsilon(epsilon0, clients, delta),
        Status.PROVEN,
        "Erlingsson et al. 2019, Theorem 7",
        ONE_RANDOMIZER,
    )


# --- personal budgets, Renyi DP ----------------------------------------------------------------


def _gspa(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.gspa import gspa_delta, gspa_epsilon, gspa_mu

    budgets = query.local_budgets
    mu = gspa_mu(budgets, rounds=query.rounds)
    if query.delta is not None:
        epsilon, delta = gspa_epsilon(budgets, query.delta, rounds=query.rounds), query.delta
    else:
        epsilon = query.epsilon or 0.0
        delta = gspa_delta(budgets, epsilon, rounds=query.rounds)
    theorem = "Theorems 2 and 5" if query.rounds > 1 else "Theorem 2"
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.AS_PUBLISHED,
        source=f"Chen, Cao, Ge 2024 (GSPA), {theorem}",
        assumptions=(SHUFFLED, "a central limit theorem without error term"),
        unit=query.unit,
        details={**_details(query), "mu": mu},
    )


def _gspa_exact(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.gspa import gspa_exact_curve

    status, reason = _gspa_status(query)
    return _answer(
        query,
        gspa_exact_curve(query.local_budgets),
        max(query.local_budgets).epsilon0,
        status,
        "Chen, Cao, Ge 2024 (GSPA), Theorem 1, at finite n",
        (reason, "the worst client's curve"),
    )


def _gspa_status(query: BoundQuery) -> tuple[Status, str]:
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


def _echo(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.echo import echo_epsilon

    if query.randomizer not in (None, "laplace"):
        raise NotApplicableError(
            f"echo is stated for clipped Laplace noise, not {query.randomizer}"
        )
    budgets = query.local_budgets
    return _from_epsilon(
        query,
        lambda delta: echo_epsilon(budgets, delta),
        Status.AS_PUBLISHED,
        "Liu et al. 2023 (Echo of Neighbors)",
        "Laplace noise clipped to a bounded range",
    )


def _rdp(query: BoundQuery, upper: str) -> Guarantee:
    from fl_shuffle.accounting import renyi

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
        values = [renyi.girgis_upper_rdp(epsilon0, clients, order) for order in orders]
        source = "Girgis et al. 2021, Theorems 1 and 2"
    else:
        values = [renyi.chen2024_rdp(epsilon0, clients, order) for order in orders]
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
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=status,
        source=source,
        assumptions=(SHUFFLED, ONE_RANDOMIZER),
        unit=query.unit,
        details={**_details(query), "orders": [round(order, 3) for order in orders]},
    )


def _gdp_asymptotic(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting.gaussian import gaussian_delta, gaussian_epsilon
    from fl_shuffle.accounting.renyi import chen2024_mu

    query.require_pure()
    epsilon0, _, clients = query.local
    mu = chen2024_mu(epsilon0, clients) * math.sqrt(query.rounds)
    if query.delta is not None:
        epsilon, delta = gaussian_epsilon(query.delta, mu), query.delta
    else:
        epsilon = query.epsilon or 0.0
        delta = gaussian_delta(epsilon, mu)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.ASYMPTOTIC,
        source="Chen, Cao, Ge 2024 (Renyi DP), Theorem 2",
        assumptions=(SHUFFLED, "a central limit theorem without error term"),
        unit=query.unit,
        details={**_details(query), "mu": mu},
    )


def _girgis_lower(query: BoundQuery) -> Guarantee:
    from fl_shuffle.accounting import renyi

    _one_round(query)
    query.require_pure()
    epsilon0, _, clients = query.local
    orders = sorted({round(1.1**i) for i in range(8, 90)})
    floors = [(float(s), renyi.girgis_lower_rdp(epsilon0, clients, float(s))) for s in orders]

    def reached(epsilon: float) -> float:
        return max(renyi.rdp_floor_delta(rho, s, epsilon0, epsilon) for s, rho in floors)

    if query.epsilon is not None:
        epsilon, delta = query.epsilon, reached(query.epsilon)
    else:
        delta = query.delta or 0.0
        epsilon, above = 0.0, epsilon0
        while above - epsilon > 1e-9 * epsilon0:
            middle = 0.5 * (epsilon + above)
            epsilon, above = (middle, above) if reached(middle) > delta else (epsilon, middle)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.LOWER_BOUND,
        source="Girgis et al. 2021, Theorem 3, turned into (epsilon, delta)",
        assumptions=("reached by binary randomized response of this local budget",),
        unit=query.unit,
        details=_details(query),
    )


def _registry(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


METHODS: dict[str, Method] = _registry(
    Method("blanket", "the randomizer's own privacy blanket, solved exactly", _blanket),
    Method("clone", "standard clone, any randomizer, solved exactly", _clone),
    Method("gspa-exact", "GSPA's reduction solved at finite n", _gspa_exact),
    Method("bennett", "privacy blanket, Bennett tail", lambda q: _moments(q, "bennett")),
    Method("hoeffding", "privacy blanket, Hoeffding tail", lambda q: _moments(q, "hoeffding")),
    Method("feldman2022", "standard clone, closed form", _feldman2022),
    Method("feldman2023", "stronger clone, closed form, where it stands", _feldman2023),
    Method("variation-ratio", "variation-ratio reduction, where it is sound", _variation_ratio),
    Method("erlingsson2019", "first amplification bound, closed form", _erlingsson),
    Method("rdp", "exact Renyi divergence of the clone pair", lambda q: _rdp(q, "rdp")),
    Method("girgis-upper", "Renyi bounds of Girgis et al.", lambda q: _rdp(q, "girgis-upper")),
    Method("gspa", "GSPA's Gaussian-DP parameter, as published", _gspa),
    Method("echo", "Echo of Neighbors, as published", _echo),
    Method("rdp-asymptotic", "asymptotic Renyi form", lambda q: _rdp(q, "asymptotic")),
    Method("gdp-asymptotic", "asymptotic Gaussian-DP form", _gdp_asymptotic),
    Method("lower", "exact divergence of a dataset of the randomizer", _lower),
    Method("girgis-lower", "Renyi lower bound of Girgis et al.", _girgis_lower),
)
