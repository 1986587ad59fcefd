"""Certified lower bounds: the exact divergence of chosen datasets.

If all other clients hold one value, the shuffled divergence equals the blanket expression with the
law of that value as a blanket of mass one (Su, Cheng and Wang 2025, Theorem 5). The numerical error
of the engine is subtracted, so the number is never above the divergence of that dataset.
"""

from __future__ import annotations

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.privacy_loss import Case
from fl_shuffle.accounting.randomizers_finite import Randomizer
from fl_shuffle.accounting.search import crossing
from fl_shuffle.accounting.stop_loss import MAX_REPORTS, DeltaBound, amplified_delta
from fl_shuffle.errors import NotApplicableError, require_integer, require_real

DEFAULT_RELATIVE_ERROR = 2e-4
MAX_EPSILON = 100.0
"""Above this nothing is claimed: the lower bound is zero."""


def _certified(case: Case, n: int, epsilon: float, relative_error: float) -> DeltaBound:
    """Bracket of the exact divergence of one dataset."""
    exposed = case.exposed(epsilon)
    law = case.law(epsilon)
    if law is None:
        return DeltaBound(exposed, 1e-12 * exposed)
    bound = amplified_delta(
        law, [(case.blanket_mass, n - 1)], relative_error=relative_error, best_effort=True
    )
    return DeltaBound(bound.delta + exposed, bound.error + 1e-12 * exposed)


def _lower(cases: tuple[Case, ...], n: int, epsilon: float, relative_error: float) -> DeltaBound:
    if epsilon > MAX_EPSILON:
        return DeltaBound(0.0, 0.0)
    results = [_certified(case, n, epsilon, relative_error) for case in cases]
    return max(results, key=lambda bound: bound.lower)


def _witnesses(randomizer: Randomizer, both_directions: bool) -> tuple[Case, ...]:
    cases = randomizer.witness_cases(both_directions=both_directions)
    if not cases:
        raise NotApplicableError(
            f"{randomizer.name} has no lower bound: it needs the report law of a third input"
        )
    return cases


def _statement(
    randomizer: Randomizer, n: int, epsilon: float, delta: float, error: float
) -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method="lower",
        status=Status.LOWER_BOUND,
        source="Su, Cheng, Wang 2025, Theorem 5",
        assumptions=("all other clients hold one common value", *randomizer.assumptions),
        numerical_error=error,
        details={
            "randomizer": randomizer.name,
            "epsilon0": randomizer.local_epsilon,
            "clients": n,
        },
    )


def lower_bound_delta(
    randomizer: Randomizer,
    n: int,
    epsilon: float,
    *,
    both_directions: bool = False,
    relative_error: float = DEFAULT_RELATIVE_ERROR,
) -> Guarantee:
    """A delta that the shuffle of `n` reports certainly reaches at `epsilon`; rounded down.

    The divergence is that of the first dataset from the second (x0 from x1, the others as the
    randomizer's `witness_cases` says); `both_directions` takes the larger of the two directions.

    Raises `NotApplicableError` if the randomizer offers no dataset to test.
    """
    budget = require_real("epsilon", epsilon, minimum=0.0)
    count = require_integer("n", n, minimum=1, maximum=MAX_REPORTS)
    bound = _lower(_witnesses(randomizer, both_directions), count, budget, relative_error)
    return _statement(randomizer, count, budget, min(1.0, bound.lower), bound.error)


def lower_bound_epsilon(
    randomizer: Randomizer,
    n: int,
    delta: float,
    *,
    both_directions: bool = False,
    relative_error: float = DEFAULT_RELATIVE_ERROR,
) -> Guarantee:
    """The largest epsilon found at which the shuffle certainly exceeds `delta`; zero if none."""
    target = require_real(
        "delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
    count = require_integer("n", n, minimum=1, maximum=MAX_REPORTS)
    cases = _witnesses(randomizer, both_directions)
    seen: dict[float, DeltaBound] = {}

    def curve(epsilon: float) -> float:
        seen[epsilon] = _lower(cases, count, epsilon, relative_error)
        return seen[epsilon].lower

    maximum = min(randomizer.local_epsilon, MAX_EPSILON)
    epsilon, _ = crossing(curve, target, maximum, "above")
    return _statement(randomizer, count, epsilon, target, seen[epsilon].error)
