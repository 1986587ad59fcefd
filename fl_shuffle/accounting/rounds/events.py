"""Events are data: what was executed, and what it cost. Accountants interpret them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_shuffle.accounting.guarantee import Status, proof_over_attack
from fl_shuffle.errors import InvalidValueError


@dataclass(frozen=True)
class Column:
    """One way of counting the privacy spent so far: a number per class, and its worst.

    `epsilon` maps a class to the cumulative epsilon (nats, at the run's target delta) of its most
    exposed client. An empty mapping means the column does not apply; `note` then says why. Where
    not every class is listed, `overall` is the worst of all clients.
    """

    name: str
    status: Status
    source: str
    epsilon: Mapping[int, float] = field(default_factory=dict)
    note: str = ""
    overall: float | None = None

    def __post_init__(self) -> None:
        for index, value in self.epsilon.items():
            if math.isnan(value):
                raise InvalidValueError(f"{self.name} epsilon of class {index}", value, "is NaN")

    @property
    def worst(self) -> float | None:
        if self.overall is not None:
            return self.overall
        return max(self.epsilon.values()) if self.epsilon else None


@dataclass(frozen=True)
class Spend:
    """Cumulative privacy after a round, in every column; `release` says which is the headline:
    `proven` where shuffled reports are seen, `sum` where only sums are."""

    round_number: int
    n_reports: int
    delta: float
    mu_round: float | None
    mu_total: float | None
    columns: Mapping[str, Column]
    release: str = "reports"

    @property
    def headline_column(self) -> str:
        """The column that matches what is released. A sum is computed from the shuffled reports, so
        `proven` holds where `sum` says nothing; `local` where clients declare what they did, and
        nothing is proven."""
        if self.columns["local"].status is Status.DECLARED:
            return "local"
        found = self.columns.get("sum") if self.release == "sum" else None
        return "proven" if found is None or found.worst is None else "sum"

    @property
    def headline(self) -> float:
        """The proven number that matches what is released, for the worst client."""
        worst = self.columns[self.headline_column].worst
        return math.inf if worst is None else worst

    @property
    def proven_over_lower(self) -> float | None:
        """Column `proven` over what an attack on the shuffled reports certainly reaches; None where
        no attack does."""
        proven, lower = self.columns["proven"].worst, self.columns.get("lower")
        if proven is None:
            return None
        return proof_over_attack(proven, None if lower is None else lower.worst)
