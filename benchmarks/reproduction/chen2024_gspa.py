"""Chen, Cao and Ge 2024 (GSPA), Figure 2: central epsilon against n for personal local budgets.

Beside the published curves: GSPA's own reduction solved exactly, bounds that are proven for two
randomizers, the only bound proven for any randomizer (each client hides among clients of the same
budget), and, in a second figure, runs that leak more than GSPA's number.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
from fl_shuffle.accounting.bounds.clones import standard_clone
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.published import (
    echo_epsilon,
    erlingsson2019_epsilon,
    feldman2022_epsilon,
    gspa_exact_curve,
)
from fl_shuffle.accounting.distributions.outcome_pair import OutcomePair
from fl_shuffle.accounting.lower_bounds.chosen_datasets import lower_bound_epsilon
from fl_shuffle.accounting.numerics.monotone_search import solve
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.sections import BudgetsSection
from fl_shuffle.errors import NotApplicableError

DISTRIBUTIONS = {
    "unif1": "Unif 1: U(0.01, 1)",
    "unif2": "Unif 2: U(0.01, 2)",
    "constant": "constant 0.5",
    "mixed": "50% 0.5 + 50% 0.01",
}

ERLINGSSON = "Erlingsson 2019, worst budget (outside its condition)"
FELDMAN = "Feldman 2022, worst budget"
ECHO = "Echo (as published)"
GSPA = "GSPA (as published)"
EXACT = "GSPA's reduction, exact"
BINARY = "proven: binary randomized response"
LAPLACE = "proven: Laplace, common noise, personal clipping"
COHORT = "proven: any randomizer, equal budgets hide each other"
STYLES: dict[str, dict[str, Any]] = {
    ERLINGSSON: {"color": "0.6", "ls": "--"},
    FELDMAN: {"color": "C3", "ls": "--"},
    ECHO: {"color": "C5", "ls": "--"},
    GSPA: {"color": "C1", "lw": 2},
    BINARY: {"color": "C0", "lw": 3, "alpha": 0.5},
    EXACT: {"color": "k", "ls": "-."},
    LAPLACE: {"color": "C2", "lw": 2},
    COHORT: {"color": "k", "ls": ":"},
}


def bounds_at(epsilon0: NDArray[np.float64], repeats: int, delta: float) -> dict[str, float]:
    """Every bound for `repeats` copies of these budgets."""
    counts = Counter(epsilon0.tolist())
    budgets = tuple(LocalBudget(value, 0.0, count * repeats) for value, count in counts.items())
    clients = epsilon0.size * repeats
    top = float(epsilon0.max())
    personal = BoundQuery(budgets=budgets, delta=delta)
    return {
        ERLINGSSON: erlingsson2019_epsilon(top, clients, delta),
        FELDMAN: _feldman(top, clients, delta),
        ECHO: echo_epsilon(budgets, delta),
        GSPA: bound(replace(personal, method="gspa")).epsilon,
        EXACT: solve(gspa_exact_curve(budgets), top, epsilon=None, delta=delta).epsilon,
        BINARY: bound(replace(personal, method="blanket", randomizer="krr", k=2)).epsilon,
        LAPLACE: bound(replace(personal, method="blanket", randomizer="laplace")).epsilon,
        COHORT: max(
            min(each.epsilon0, standard_clone(each.epsilon0, each.count, delta=delta).epsilon)
            # The largest budget of every cohort size: nobody else can be the worst.
            for each in {each.count: each for each in sorted(budgets)}.values()
        ),
    }


def _feldman(epsilon0: float, clients: int, delta: float) -> float:
    try:
        return feldman2022_epsilon(epsilon0, clients, delta)
    except NotApplicableError:
        return math.nan


# --- what really leaks --------------------------------------------------------------------------


def one_among_many(own: float, other: float, cells: int = 2000) -> Any:
    """A witness for lower bounds: a client with Laplace budget `own` that holds 0 or 1 (the other
    direction is a mirror image) among clients with budget `other` that hold the middle value.

    Every client adds noise of its own scale. Reports are binned, which can only lower the
    divergence.
    """
    reach = 12.0 / own
    edges = np.linspace(-reach, 1.0 + reach, cells + 1)
    p, q = _masses(edges, 0.0, own), _masses(edges, 1.0, own)
    case = OutcomePair.of(p, q, _masses(edges, 0.5, other), blanket_mass=1.0).case()
    return SimpleNamespace(name="one among many", local_epsilon=own, witness_cases=lambda: (case,))


def _masses(edges: NDArray[np.float64], centre: float, epsilon: float) -> NDArray[np.float64]:
    """Masses of Laplace(center, 1/epsilon) left of, between and right of the edges."""
    x = epsilon * (edges - centre)
    below = np.where(x < 0, 0.5 * np.exp(np.minimum(x, 0.0)), 1 - 0.5 * np.exp(-np.maximum(x, 0)))
    above = np.where(x > 0, 0.5 * np.exp(-np.maximum(x, 0)), 1 - 0.5 * np.exp(np.minimum(x, 0.0)))
    inner = np.where(x[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([[below[0]], inner, [above[-1]]])


REACHED = "certainly at least"


def leak(clients: int, own: float, other: float, delta: float) -> dict[str, Any]:
    """GSPA's epsilon beside an epsilon that one client certainly exceeds."""
    budgets = (LocalBudget(other, 0.0, clients - 1), LocalBudget(own, 0.0, 1))
    query = BoundQuery(method="gspa", budgets=budgets, delta=delta)
    reached = lower_bound_epsilon(one_among_many(own, other), clients, delta).epsilon
    return {
        "clients": clients,
        "own epsilon0": own,
        "others epsilon0": other,
        GSPA: bound(query).epsilon,
        REACHED: reached,
    }


# --- the target ---------------------------------------------------------------------------------


def run(options: Options, settings: Settings) -> Result:
    delta, other = settings["delta"], settings["others"]
    panel = partial(Panel, ylabel=f"central epsilon at delta = {delta:g}")
    rows: list[dict[str, Any]] = []
    parts = []
    for name in settings["distributions"]:
        shown = DISTRIBUTIONS[name]
        options.say(shown)
        # Number of budgets that are drawn, and repeated.
        section = BudgetsSection(
            distribution=name, epsilon=0.5, delta=1e-5, seed=settings["budget seed"]
        )
        epsilon0 = make_budgets(section, settings["repeated"]).epsilon
        found: list[dict[str, Any]] = [
            {"distribution": name, "clients": size, "delta": delta}
            | bounds_at(epsilon0, size // epsilon0.size, delta)
            for size in settings["clients"]
        ]
        rows += found
        parts.append(panel(shown, found, "clients", STYLES, xlabel="clients n"))
    options.say("one client among others")
    sizes = (1000,) if options.fast else (1000, 10_000)
    seen = [
        leak(clients, own, other, delta) for clients in sizes for own in settings["lone budgets"]
    ]
    title = f"One client among others of {other:g}, Laplace, n = {sizes[-1]}"
    styles = {GSPA: STYLES[GSPA], REACHED: {"color": "C3", "lw": 2}}
    lone = [each for each in seen if each["clients"] == sizes[-1]]
    beside = panel(title, lone, "own epsilon0", styles, xlabel="local budget of that client")
    slopes = []
    for name in DISTRIBUTIONS:
        own = [row for row in rows if row["distribution"] == name]
        ratio = own[0][GSPA] / own[-1][GSPA]
        slopes.append(math.log(ratio) / math.log(own[-1]["clients"] / own[0]["clients"]))
    top = max(seen, key=lambda each: each[REACHED] / each[GSPA])
    large = max(settings["clients"])
    facts = {
        "points": len(rows),
        "gains": [1.0 - row[GSPA] / np.nanmin([row[ECHO], row[FELDMAN]]) for row in rows],
        "slopes": slopes,
        "against": sum(row[GSPA] < row[ERLINGSSON] for row in rows),
        "exact": [row[EXACT] / row[GSPA] for row in rows],
        "binary": [row[BINARY] / row[GSPA] for row in rows],
        "laplace": [row[LAPLACE] / row[GSPA] for row in rows],
        "large": large,
        "cohort": {row["distribution"]: row[COHORT] for row in rows if row["clients"] == large},
        "other": other,
        "worse": sum(each[REACHED] > each[GSPA] for each in seen),
        "leaks": len(seen),
        "factor": top[REACHED] / top[GSPA],
        "top": top,
    }
    figures = {"bounds": panels(parts, 2), "leaks": panels([beside], 1)}
    return Result({"bounds": rows, "leaks": seen}, figures, facts)


TARGETS = {"chen2024-gspa-figure-2": run}
