"""Compositions inside one report: several answers at once, or one of several mechanisms.

Su, Cheng and Wang 2025, Sections 6 and 7: the blanket of a joint report is the product of the
blankets, that of a parallel report their mixture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import FiniteRandomizer, Randomizer, distinct
from fl_shuffle.accounting.laws.outcome_pair import OutcomePair
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_real

PRODUCT_MAX_OUTCOMES = 300_000
"""More kinds of joint report than this do not fit the memory."""
PRODUCT_LAPLACE_CELLS = (0, 400, 64, 20, 12, 8)
"""Cells per side of each Laplace part, by the number of such parts."""
PRODUCT_MAX_CASES = 4096
"""More pairs of joint inputs than this take minutes."""


@dataclass(frozen=True)
class JointComposition(FiniteRandomizer):
    """One report holds an independent answer of each part; neighbouring inputs may differ in all.

    Local budgets add up. Laplace parts are replaced by a finite dominating pair whose fineness
    falls with their number; other parts must have finitely many kinds of report.
    """

    parts: tuple[Randomizer, ...]
    source = "Su, Cheng, Wang 2025, Section 6"

    def __post_init__(self) -> None:
        parts = tuple(self.parts)
        if not parts:
            raise InvalidValueError("parts", self.parts, "needs at least one randomizer")
        name = "joint(" + ", ".join(part.name for part in parts) + ")"
        self._set(parts=parts, name=name, assumptions=_merged_assumptions(parts))
        _tables(parts)

    @property
    def local_epsilon(self) -> float:
        return math.fsum(part.local_epsilon for part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        return _products([candidates for candidates, _ in _tables(self.parts)], "up")

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return _products([witnesses for _, witnesses in _tables(self.parts)], "down")


def _tables(
    parts: Sequence[Randomizer],
) -> list[tuple[tuple[OutcomePair, ...], tuple[OutcomePair, ...]]]:
    """(candidate pairs, witness pairs) of every part."""
    laplace = sum(isinstance(part, LaplaceRandomizer) for part in parts)
    cells = PRODUCT_LAPLACE_CELLS[min(laplace, len(PRODUCT_LAPLACE_CELLS) - 1)]
    tables = []
    for part in parts:
        if isinstance(part, FiniteRandomizer):
            tables.append((part.coordinate_pairs(), part.coordinate_witnesses()))
        elif isinstance(part, LaplaceRandomizer):
            tables.append(((part.dominating_pair(cells),), (part.binned_witness(cells),)))
        else:
            raise NotApplicableError(
                f"composition of {part.name}: only Laplace and randomizers with finitely many "
                "kinds of report can be composed; discretise it into a probability matrix"
            )
    return tables


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
    if cases > PRODUCT_MAX_CASES or outcomes > PRODUCT_MAX_OUTCOMES:
        raise NotApplicableError(
            f"the composition has {cases} candidate pairs of {outcomes} outcomes (at most "
            f"{PRODUCT_MAX_CASES} "
            f"and {PRODUCT_MAX_OUTCOMES}); use fewer parts or equal "
            f"budgets, whose outcomes "
            "coincide"
        )


@dataclass(frozen=True)
class ParallelComposition(FiniteRandomizer):
    """Each client uses one part, drawn with the public weights; the report says which.

    `parts` lists (weight, randomizer); weights are positive and sum to one.
    """

    parts: tuple[tuple[float, Randomizer], ...]
    source = "Su, Cheng, Wang 2025, Section 7"

    def __post_init__(self) -> None:
        parts = tuple((weight, part) for weight, part in self.parts)
        if not parts:
            raise InvalidValueError("parts", self.parts, "needs at least one randomizer")
        name = ", ".join(f"{weight:g} {part.name}" for weight, part in parts)
        assumptions = _merged_assumptions([part for _, part in parts])
        self._set(parts=parts, name=f"parallel({name})", assumptions=assumptions)
        for weight, _ in self.parts:
            require_real("weight", weight, minimum=0.0, maximum=1.0, exclusive_minimum=True)
        total = math.fsum(weight for weight, _ in self.parts)
        if abs(total - 1.0) > 1e-9:
            raise InvalidValueError("weights", total, "must sum to one within 1e-9")

    @property
    def local_epsilon(self) -> float:
        return max(part.local_epsilon for _, part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        return self._unions(0, None)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return self._unions(1, 1.0)

    def _unions(self, which: int, blanket_mass: float | None) -> tuple[OutcomePair, ...]:
        """Every choice of one pair a part: its candidates (0) or witnesses (1)."""
        weights, parts = zip(*self.parts, strict=True)
        # Only one part is used: each may be as fine as if it were alone.
        options = [_tables([part])[0][which] for part in parts]
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


def _merged_assumptions(parts: Sequence[Randomizer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for part in parts for line in part.assumptions))
