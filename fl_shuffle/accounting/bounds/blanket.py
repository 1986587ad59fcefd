"""Privacy-blanket bounds for a given randomizer: delta, epsilon, cohort size and local budget.

Upper bound of Balle, Bell, Gascon and Nissim 2019 (Lemma 5.3) in the form of Su, Cheng and Wang
2025 (Theorem 4), which is the best any decomposition of the randomizer can give; computed by
`stop_loss.amplified_delta` with its numerical error added. Valid for every n >= 1 and in both
directions of the replace-one relation. Units are nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_shuffle.accounting.bounds.participation import (
    ASSUMPTION,
    require_participation,
    with_absence,
)
from fl_shuffle.accounting.engine.monotone_search import (
    crossing,
    largest_real,
    last_above,
    smallest_integer,
)
from fl_shuffle.accounting.engine.stop_loss import (
    DeltaBound,
    amplified_delta,
    usual_error,
)
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.laws.amplification import Case
from fl_shuffle.accounting.laws.finite import Randomizer
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import (
    InvalidValueError,
    NotApplicableError,
    require_integer,
    require_open_unit,
    require_real,
)

MAX_EPSILON = 100.0
"""Above this the curve is taken at this point, which is safe: it falls with epsilon."""
METHOD = "blanket"

Others = Sequence[tuple[Randomizer, int]]


@dataclass(frozen=True)
class _Setting:
    """Everything but epsilon: the cases, who hides the client, and how often it takes part."""

    cases: tuple[Case, ...]
    hiding: tuple[tuple[float, int], ...] | None
    """(gamma, count) of the others; None: n - 1 copies of the client's own randomizer."""
    others: int
    participation: float
    relative_error: float | None

    def delta(self, epsilon: float) -> DeltaBound:
        """Upper bound on the worst case's delta."""
        results = [self._case_delta(case, min(epsilon, MAX_EPSILON)) for case in self.cases]
        return max(results, key=lambda bound: bound.delta)

    def unhidden(self, epsilon: float) -> float:
        """The part of the bound in which nobody else hides the client: cheap, and below it."""
        values = []
        for case in self.cases:
            own = ((case.blanket_mass, self.others),)
            q = self.participation
            log_alone = 0.0
            for gamma, count in own if self.hiding is None else self.hiding:
                mass = 1.0 - q + q * gamma
                log_alone += count * math.log1p(-min(mass, 1.0)) if mass < 1.0 else -math.inf
            values.append(q * math.exp(log_alone) * case.local_delta(epsilon))
        return max(values)

    def _case_delta(self, case: Case, epsilon: float) -> DeltaBound:
        exposed = case.exposed(epsilon)
        law = case.law(epsilon)
        hidden = DeltaBound(0.0, 0.0)
        if law is not None:
            own = ((case.blanket_mass, self.others),)
            classes = own if self.hiding is None else self.hiding
            law, blanket = with_absence(law, classes, self.participation, epsilon)
            hidden = amplified_delta(
                law, blanket, relative_error=self.relative_error, best_effort=True
            )
        exposed *= self.participation
        delta = min(1.0, hidden.delta + exposed * (1.0 + 1e-12))
        return DeltaBound(delta, hidden.error + 2e-12 * exposed)


def _setting(
    randomizer: Randomizer,
    n: int,
    others: Others | None,
    participation: float,
    relative_error: float | None,
) -> _Setting:
    count = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS)
    rate = require_participation(participation)
    hiding = None
    if others is not None:
        hiding = tuple(
            (_shared_mass(randomizer, other), require_integer("count", number, minimum=0))
            for other, number in others
        )
        total = sum(number for _, number in hiding)
        if total != count - 1:
            raise InvalidValueError("others", total, f"counts must sum to n - 1 = {count - 1}")
    return _Setting(randomizer.cases(), hiding, count - 1, rate, relative_error)


def _shared_mass(own: Randomizer, other: Randomizer) -> float:
    """The blanket mass of `other`, provided its blanket law is that of `own`."""
    same = own == other or (
        own.blanket_shape is not None and own.blanket_shape == other.blanket_shape
    )
    if not same:
        raise NotApplicableError(
            f"{other.name} does not share the blanket law of {own.name}: their reports cannot be "
            "accounted as hiding each other; account per cohort of identical randomizers"
        )
    return min(case.blanket_mass for case in other.cases())


def _guarantee(
    randomizer: Randomizer, setting: _Setting, epsilon: float, delta: float, error: float
) -> Guarantee:
    assumptions = ["n reports arrive, each shuffled whole with independent randomness"]
    if setting.participation < 1.0:
        assumptions.append(ASSUMPTION)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=METHOD,
        status=Status.PROVEN,
        source=randomizer.source,
        assumptions=(*assumptions, *randomizer.assumptions),
        numerical_error=error,
        details={
            "randomizer": randomizer.name,
            "epsilon0": randomizer.local_epsilon,
            "clients": setting.others + 1,
            "blanket_mass": min(case.blanket_mass for case in setting.cases),
            "participation": setting.participation,
        },
    )


def blanket_delta(
    randomizer: Randomizer,
    n: int,
    epsilon: float,
    *,
    others: Others | None = None,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Guarantee:
    """Delta of the shuffle of `n` reports at central budget `epsilon` (nats, >= 0).

    `others` lists (randomizer, count) of the n - 1 other clients when their budgets differ; they
    must share the blanket law (same k, same noise scale). `participation` = q < 1: each of n
    clients takes part by its own coin with that public probability, and who did stays secret; n
    counts all who may. Where it is public, take n as the number of reports that came, and q = 1.

    Where the accuracy cannot be had a coarser bound is returned, at worst the local one;
    `numerical_error` tells. Raises `InvalidValueError`, `NotApplicableError`.

    >>> from fl_shuffle.accounting.laws.finite import KRandomizedResponse
    >>> f"{blanket_delta(KRandomizedResponse(1.0, 10), 1000, 0.0792072).delta:.3e}"
    '1.187e-06'
    """
    budget = require_real("epsilon", epsilon, minimum=0.0)
    setting = _setting(randomizer, n, others, participation, relative_error)
    bound = setting.delta(budget)
    return _guarantee(randomizer, setting, budget, bound.delta, bound.error)


def blanket_epsilon(
    randomizer: Randomizer,
    n: int,
    delta: float,
    *,
    others: Others | None = None,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Guarantee:
    """The smallest epsilon found at which delta(epsilon) <= `delta` has been certified.

    Infinite when no epsilon up to 100 will do (reports outside the blanket weigh more than delta).
    """
    target = require_open_unit("delta", delta)
    setting = _setting(randomizer, n, others, participation, relative_error)
    seen: dict[float, DeltaBound] = {}

    def curve(epsilon: float) -> float:
        seen[epsilon] = setting.delta(epsilon)
        return seen[epsilon].delta

    maximum = min(randomizer.local_epsilon, MAX_EPSILON)
    minimum = last_above(setting.unhidden, target, maximum)
    epsilon = None
    if minimum < maximum * (1.0 - 1e-7):
        tolerance = relative_error or usual_error(setting.cases[0].law(0.0))
        _, epsilon = crossing(
            curve,
            target,
            maximum,
            "below",
            minimum=minimum,
            tolerance=min(TOLERANCES.search_log_tolerance, tolerance),
        )
    if epsilon is None and maximum == randomizer.local_epsilon:
        epsilon = maximum * (1.0 + 1e-12)
        return _guarantee(randomizer, setting, epsilon, target, 0.0)
    if epsilon is None:
        return _guarantee(randomizer, setting, math.inf, target, 0.0)
    return _guarantee(randomizer, setting, epsilon, target, seen[epsilon].error)


def smallest_cohort(
    randomizer: Randomizer,
    epsilon: float,
    delta: float,
    *,
    participation: float = 1.0,
    maximum: int = MAX_CLIENTS,
    relative_error: float | None = None,
) -> int:
    """The smallest number of reports found that certifies (epsilon, delta).

    Larger cohorts are safe too: more blanket reports never raise delta. Raises
    `NotApplicableError` if even `maximum` reports do not suffice.
    """
    target = require_open_unit("delta", delta)
    budget = require_real("epsilon", epsilon, minimum=0.0)
    limit = require_integer("maximum", maximum, minimum=1, maximum=MAX_CLIENTS)

    def holds(n: int) -> bool:
        setting = _setting(randomizer, n, None, participation, relative_error)
        return setting.delta(budget).delta <= target

    found = smallest_integer(holds, 1, limit)
    if found is None:
        raise NotApplicableError(
            f"no cohort of up to {limit} reports gives ({budget:g}, {target:g}) with "
            f"{randomizer.name}; lower epsilon0 or ask for a larger epsilon or delta"
        )
    return found


def largest_local_budget(
    family: Callable[[float], Randomizer],
    n: int,
    epsilon: float,
    delta: float,
    *,
    participation: float = 1.0,
    maximum: float = 20.0,
    relative_error: float | None = None,
) -> float:
    """The largest epsilon0 found at which `family(epsilon0)` is certified (epsilon, delta).

    `family` must be monotone in privacy (every named randomizer is). The answer never exceeds
    `maximum`; it is at least `epsilon`, up to 1e-6, because shuffling never hurts.
    """
    target = require_open_unit("delta", delta)
    budget = require_real("epsilon", epsilon, minimum=0.0)
    limit = require_real("maximum", maximum, minimum=0.0, maximum=MAX_EPSILON0)

    def holds(epsilon0: float) -> bool:
        setting = _setting(family(epsilon0), n, None, participation, relative_error)
        return setting.delta(budget).delta <= target

    return largest_real(holds, limit)
