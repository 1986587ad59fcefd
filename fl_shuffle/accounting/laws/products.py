"""Compositions inside one report: several answers at once, or one of several mechanisms.

Su, Cheng and Wang 2025, Sections 6 and 7: the blanket of a joint report is the product of the
blankets, that of a parallel report their mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from fl_shuffle.accounting.laws.amplification import AmplificationLaw, AtomicLaw, Case, MixtureLaw
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import FiniteRandomizer, Randomizer, distinct
from fl_shuffle.accounting.laws.outcome_pair import OutcomePair
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_real


@dataclass(frozen=True)
class JointComposition(FiniteRandomizer):
    """One report holds an independent answer of each part; neighbouring inputs may differ in all.

    Local budgets add up. Laplace parts are replaced by a finite dominating pair whose fineness
    falls with their number; other parts must have finitely many kinds of report.
    """

    parts: tuple[Randomizer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not self.parts:
            raise InvalidValueError("parts", self.parts, "needs at least one randomizer")
        self._tables()

    def _tables(self) -> list[tuple[tuple[OutcomePair, ...], tuple[OutcomePair, ...]]]:
        """(candidate pairs, witness pairs) of every part."""
        laplace = sum(isinstance(part, LaplaceRandomizer) for part in self.parts)
        cells = TOLERANCES.product_laplace_cells[
            min(laplace, len(TOLERANCES.product_laplace_cells) - 1)
        ]
        tables = []
        for part in self.parts:
            if isinstance(part, FiniteRandomizer):
                tables.append((part.coordinate_pairs(), part.coordinate_witnesses()))
            elif isinstance(part, LaplaceRandomizer):
                tables.append(((part.dominating_pair(cells),), (part.binned_witness(cells),)))
            else:
                raise NotApplicableError(
                    f"joint composition of {part.name}: only Laplace and randomizers with finitely "
                    "many kinds of report can be joined; discretise it into a probability matrix"
                )
        return tables

    @property
    def name(self) -> str:
        return "joint(" + ", ".join(part.name for part in self.parts) + ")"

    @property
    def local_epsilon(self) -> float:
        return math.fsum(part.local_epsilon for part in self.parts)

    @property
    def source(self) -> str:
        return "Su, Cheng, Wang 2025, Section 6"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return _merged_assumptions(self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        return _products([candidates for candidates, _ in self._tables()], "up")

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return _products([witnesses for _, witnesses in self._tables()], "down")


def _products(
    choices: Sequence[tuple[OutcomePair, ...]], direction: Literal["up", "down"]
) -> tuple[OutcomePair, ...]:
    current: tuple[OutcomePair, ...] = choices[0]
    for options in choices[1:]:
        _check_size(len(current) * len(options), max(p.size for p in current) * options[0].size)
        current = distinct(
            left.times(right).merged(direction) for left, right in product(current, options)
        )
    return current


def _check_size(cases: int, outcomes: int) -> None:
    if cases > TOLERANCES.product_max_cases or outcomes > TOLERANCES.product_max_outcomes:
        raise NotApplicableError(
            f"the composition has {cases} candidate pairs of {outcomes} outcomes (at most "
            f"{TOLERANCES.product_max_cases} "
            f"and {TOLERANCES.product_max_outcomes}); use fewer parts or equal "
            f"budgets, whose outcomes "
            "coincide"
        )


@dataclass(frozen=True)
class ParallelComposition(FiniteRandomizer):
    """Each client uses one part, drawn with the public weights; the report says which.

    `parts` lists (weight, randomizer); weights are positive and sum to one.
    """

    parts: tuple[tuple[float, Randomizer], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple((w, r) for w, r in self.parts))
        if not self.parts:
            raise InvalidValueError("parts", self.parts, "needs at least one randomizer")
        for weight, _ in self.parts:
            require_real("weight", weight, minimum=0.0, maximum=1.0, exclusive_minimum=True)
        total = math.fsum(weight for weight, _ in self.parts)
        if abs(total - 1.0) > 1e-9:
            raise InvalidValueError("weights", total, "must sum to one within 1e-9")

    @property
    def name(self) -> str:
        inner = ", ".join(f"{weight:g} {part.name}" for weight, part in self.parts)
        return f"parallel({inner})"

    @property
    def local_epsilon(self) -> float:
        return max(part.local_epsilon for _, part in self.parts)

    @property
    def source(self) -> str:
        return "Su, Cheng, Wang 2025, Section 7"

    @property
    def assumptions(self) -> tuple[str, ...]:
        return _merged_assumptions([part for _, part in self.parts])

    @property
    def blanket_shape(self) -> Hashable | None:
        return None

    def _finite(self) -> list[tuple[float, FiniteRandomizer]] | None:
        finite = [(w, part) for w, part in self.parts if isinstance(part, FiniteRandomizer)]
        return finite if len(finite) == len(self.parts) else None

    def _table(self) -> list[tuple[float, FiniteRandomizer]]:
        finite = self._finite()
        if finite is None:
            raise NotApplicableError(
                f"{self.name} has parts with a continuum of reports: it has no outcome table"
            )
        return finite

    def pairs(self) -> tuple[OutcomePair, ...]:
        return _unions(self._table(), lambda part: part.coordinate_pairs(), None)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return _unions(self._table(), lambda part: part.coordinate_witnesses(), 1.0)

    def cases(self) -> tuple[Case, ...]:
        if self._finite() is not None:
            return super().cases()
        return _case_unions([(weight, part.cases()) for weight, part in self.parts])

    def witness_cases(self, *, both_directions: bool = False) -> tuple[Case, ...]:
        if self._finite() is not None:
            return super().witness_cases(both_directions=both_directions)
        return _case_unions(
            [
                (weight, part.witness_cases(both_directions=both_directions))
                for weight, part in self.parts
            ]
        )


def _merged_assumptions(parts: Sequence[Randomizer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for part in parts for line in part.assumptions))


def _unions(
    parts: Sequence[tuple[float, FiniteRandomizer]],
    choose: Callable[[FiniteRandomizer], tuple[OutcomePair, ...]],
    blanket_mass: float | None,
) -> tuple[OutcomePair, ...]:
    options = [choose(part) for _, part in parts]
    weights = [weight for weight, _ in parts]
    _check_size(math.prod(len(choice) for choice in options), 1)
    return distinct(
        OutcomePair.of(
            np.concatenate([w * pair.p for w, pair in zip(weights, chosen, strict=True)]),
            np.concatenate([w * pair.q for w, pair in zip(weights, chosen, strict=True)]),
            np.concatenate(
                [
                    w * pair.blanket_mass * pair.omega
                    for w, pair in zip(weights, chosen, strict=True)
                ]
            ),
            np.concatenate([pair.loss for pair in chosen]),
            blanket_mass=blanket_mass,
        )
        for chosen in product(*options)
    )


def _case_unions(parts: Sequence[tuple[float, tuple[Case, ...]]]) -> tuple[Case, ...]:
    weights = [weight for weight, _ in parts]
    return tuple(
        _case_union(list(zip(weights, chosen, strict=True)))
        for chosen in product(*(cases for _, cases in parts))
    )


def _case_union(parts: list[tuple[float, Case]]) -> Case:
    """Part i is hidden with weight w_i gamma_i / gamma, and its L is scaled by gamma / gamma_i."""
    gamma = math.fsum(weight * case.blanket_mass for weight, case in parts)

    def law(epsilon: float) -> AmplificationLaw | None:
        members = []
        for weight, case in parts:
            inner = case.law(epsilon)
            if inner is not None:
                mass = case.blanket_mass
                members.append((weight * mass / gamma, gamma / mass, inner))
        if not members:
            return None
        atomic = [(w, scale, inner) for w, scale, inner in members if isinstance(inner, AtomicLaw)]
        if len(atomic) < len(members):
            return MixtureLaw(tuple(members))
        return AtomicLaw.of(
            np.concatenate([scale * inner.values for _, scale, inner in atomic]),
            np.concatenate([weight * inner.probabilities for weight, _, inner in atomic]),
        )

    def exposed(epsilon: float) -> float:
        return math.fsum(weight * case.exposed(epsilon) for weight, case in parts)

    return Case(gamma, law, exposed)
