"""Any number of a question for a target: a search over the accountant's own answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fl_shuffle import settings_schema
from fl_shuffle.accounting.bisection import furthest
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_mu
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.errors import (
    InvalidValueError,
    NotApplicableError,
    require_choice,
    require_real,
)

COSTS = {
    "clients": False,
    "sigma": False,
    "records": False,
    "assumed_honest": False,
    "epsilon0": True,
    "delta0": True,
    "rounds": True,
    "participation": True,
}
"""What can be solved for; whether more of it costs privacy. (Of k more may cost more
or less.)"""
LARGEST, SMALLEST = 1e9, 1e-6
"""Nothing beyond is tried: of real numbers, and of counts that have no end of their own."""
FIRST_AWAY = 1e-4
"""A value that does not keep the target when it is asked again is moved by this share first."""
LEAST_DELTA = 1e-300
"""Smallest target delta: the search compares logarithms of deltas, and doubles end near 1e-308."""


def solve(query: BoundQuery, name: str, delta: float) -> tuple[float, Guarantee]:
    """Return the most of `name` (where it costs privacy) or the least that keeps the target.

    The target is `query.epsilon` at `delta`. Returns the value, and the answer there: asked again
    with this value, for epsilon at `delta` or for delta at epsilon, the method keeps the target.
    Where the query names no method, the one is asked that is the smallest proven where the search
    begins. Raises `NotApplicableError` where no value keeps the target, and `InvalidValueError` for
    a target that is none.
    """
    require_choice("solve_for", name, COSTS)
    if (target := query.epsilon) is None:
        raise InvalidValueError("epsilon", None, "is the target, with delta")
    delta = require_real("delta", delta, minimum=LEAST_DELTA, maximum=1.0, exclusive_maximum=True)
    spec = settings_schema.settings_of(BoundQuery)[name]
    whole = spec.kind.startswith("int")
    # Zero has no logarithm, and the search is in logarithms.
    least = 1.0 if whole else max(spec.least or 0.0, SMALLEST)
    most = min(spec.most or LARGEST, LARGEST)
    if name == "assumed_honest":
        most = float(query.clients or 1)
    if name == "delta0":
        least, most = LEAST_DELTA, 0.5
    answers: dict[float, Guarantee] = {}
    refusals: list[NotApplicableError] = []
    method = query.method

    def asked(value: float) -> BoundQuery:
        changed: Any = {name: int(value) if whole else value, "method": method}
        return replace(query, **changed)

    def spare(value: float) -> float:
        """Return how much better than the target the answer is: about linear in the value's
        logarithm."""
        nonlocal method
        if value not in answers:
            try:
                answers[value] = bound(asked(value))
            except NotApplicableError as error:
                refusals.append(error)
                return -1.0
        if method is None and answers[value].delta < 1.0:
            # The method is fixed at the first answer that says anything: the smallest proven one
            # may change with the value, and a search over a mixture of curves need not be
            # monotone.
            method = answers[value].method
        return _coordinate(answers[value].delta) - _coordinate(delta)

    start = _guess(query, name, delta)
    value = furthest(spare, start, least, most, whole=whole, upwards=COSTS[name])

    def keeps(value: float) -> bool:
        """Return whether both questions are answered within the target."""
        if spare(value) < 0.0:
            return False
        return bound(replace(asked(value), epsilon=None, delta=delta)).epsilon <= target

    if value is not None:
        value = _nearest_kept(keeps, value, least, most, whole=whole, upwards=not COSTS[name])
    if value is None:
        nothing = f"no {name} in [{least:g}, {most:g}] keeps epsilon = {query.epsilon:g} at delta ="
        raise refusals[-1] if refusals else NotApplicableError(f"{nothing} {delta:g}")
    return int(value) if whole else value, answers[value]


def _nearest_kept(
    keeps: Callable[[float], bool],
    value: float,
    least: float,
    most: float,
    *,
    whole: bool,
    upwards: bool,
) -> float | None:
    """Return `value`, or the first value in growing steps away from it, that keeps the target.

    `upwards`: more of it costs less. Both questions are asked of one curve, but a search for
    epsilon ends a little above it, and some curves jump as the value changes. None: none keeps it.
    """
    step = FIRST_AWAY
    while not keeps(value):
        if value == (most if upwards else least):
            return None
        value = value * (1.0 + step) if upwards else value / (1.0 + step)
        if whole:
            value = float(math.ceil(value) if upwards else math.floor(value))
        value, step = min(max(value, least), most), 2.0 * step
    return value


def _coordinate(delta: float) -> float:
    # Tails fall like e^(-z^2/2): in z the curve is nearly a straight line.
    return math.sqrt(max(-math.log(max(delta, LEAST_DELTA)), 0.0))


def _guess(query: BoundQuery, name: str, delta: float) -> float:
    """Return where to begin: near what sums of Gaussian reports would need."""
    epsilon = max(query.epsilon or 0.0, 1e-3)
    # A sum of n reports over T rounds has mu = sensitivity sqrt(T)/(sigma sqrt(n)): solved for
    # what is asked.
    mu = gaussian_mu(epsilon, delta)
    sensitivity = 2.0 / (query.records if query.unit == "record" else 1)
    clients, rounds = query.clients or 1, query.rounds
    if name == "sigma":
        alone = sensitivity * math.sqrt(rounds) / mu
        # Noise that hides a client by itself is enough; some of it is needed in any crowd.
        return min(alone, max(1.5 * alone / math.sqrt(clients), 0.3 * sensitivity))
    if name == "clients":
        if query.sigma is not None:
            return (sensitivity / (query.sigma * mu)) ** 2 * rounds
        local = min(query.epsilon0 or 1.0, 20.0)
        # Shuffled reports of a local budget: epsilon is of the order of sqrt(e^epsilon0
        # log(1/delta)/n).
        return 4.0 * rounds * math.exp(local) * math.log(1.0 / delta) / max(epsilon, 1e-2) ** 2
    if name == "rounds" and query.sigma is not None:
        return clients * (query.sigma * mu / sensitivity) ** 2
    return {
        "epsilon0": 1.0,
        "participation": 0.5,
        "delta0": 1e-6,
        "assumed_honest": 0.5 * clients,
    }.get(name, 1.0)
