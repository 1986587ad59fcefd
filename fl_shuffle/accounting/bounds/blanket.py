"""Privacy-blanket bounds for a given randomizer: delta and epsilon.

Upper bound of Balle, Bell, Gascon and Nissim 2019 (Lemma 5.3) in the form of Su, Cheng and Wang
2025 (Theorem 4), which is the best any decomposition of the randomizer can give; computed by
`stop_loss.amplified_delta` with its numerical error added. Valid for every n >= 1 and in both
directions of the replace-one relation. Units are nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fl_shuffle.accounting.bounds.participation import require_participation, with_absence
from fl_shuffle.accounting.engine.monotone_search import Point, solve
from fl_shuffle.accounting.engine.stop_loss import (
    DeltaBound,
    amplified_delta,
    usual_error,
)
from fl_shuffle.accounting.laws.amplification import Case
from fl_shuffle.accounting.laws.finite import Randomizer
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.errors import (
    InvalidValueError,
    NotApplicableError,
    require_integer,
)

MAX_EPSILON = 100.0
"""Above this the curve is taken at this point, which is safe: it falls with epsilon."""

Others = Sequence[tuple[Randomizer, int]]


@dataclass(frozen=True)
class BlanketBound:
    """The bound for one of `others` + 1 clients; everything but epsilon."""

    randomizer: Randomizer
    cases: tuple[Case, ...]
    hiding: tuple[tuple[float, int], ...] | None
    """(gamma, count) of the others; None: n - 1 copies of the client's own randomizer."""
    others: int
    participation: float
    relative_error: float

    @classmethod
    def of(
        cls,
        randomizer: Randomizer,
        n: int,
        *,
        others: Others | None = None,
        participation: float = 1.0,
        relative_error: float | None = None,
    ) -> BlanketBound:
        """For the shuffle of `n` reports.

        `others` lists (randomizer, count) of the n - 1 other clients when their budgets differ;
        they must share the blanket law (same k, same noise scale). `participation` = q < 1: each of
        n clients takes part by its own coin with that public probability, and who did stays secret;
        n counts all who may. Where it is public, take n as the number of reports that came, and
        q = 1. Raises `InvalidValueError`, `NotApplicableError`.
        """
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
        cases = randomizer.cases()
        error = relative_error or usual_error(cases[0].law(0.0))
        return cls(randomizer, cases, hiding, count - 1, rate, error)

    def solve(self, *, epsilon: float | None = None, delta: float | None = None) -> Point:
        """What holds at one of the two, of which one is given.

        Epsilon is infinite when none up to 100 will do (reports outside the blanket weigh more than
        delta). Where the accuracy cannot be had a coarser bound is returned, at worst the local
        one; its error tells.
        """
        most = min(self.randomizer.local_epsilon, MAX_EPSILON)
        return solve(
            self.delta,
            most,
            epsilon=epsilon,
            delta=delta,
            relative_error=self.relative_error,
            unhidden=self.unhidden,
        )

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


def blanket_delta(randomizer: Randomizer, n: int, epsilon: float, **setting: Any) -> Point:
    """Delta of the shuffle of `n` reports at central budget `epsilon` (nats, >= 0).

    `setting`: see `BlanketBound.of`.

    >>> from fl_shuffle.accounting.laws.finite import KRandomizedResponse
    >>> f"{blanket_delta(KRandomizedResponse(1.0, 10), 1000, 0.0792072).delta:.3e}"
    '1.187e-06'
    """
    return BlanketBound.of(randomizer, n, **setting).solve(epsilon=epsilon)


def blanket_epsilon(randomizer: Randomizer, n: int, delta: float, **setting: Any) -> Point:
    """The smallest epsilon found at which delta(epsilon) <= `delta` has been certified."""
    return BlanketBound.of(randomizer, n, **setting).solve(delta=delta)
