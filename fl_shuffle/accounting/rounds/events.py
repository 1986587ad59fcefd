"""Events are data: what was executed, and what it cost. Accountants interpret them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_shuffle._internal.renamed import RenamedKeys, renamed_attribute
from fl_shuffle.accounting.guarantee import Status, proof_over_attack
from fl_shuffle.errors import InvalidValueError

OLD_COLUMNS = {"specific": "su2025", "proven": "shuffled", "lower": "shuffled_lower"}
"""Columns as version 0.2 calls them -> their names."""


@dataclass(frozen=True)
class Column:
    """One way of counting the privacy spent so far: a number per class, and its largest.

    Attributes
    ----------
    name : str
        Name of the column.
    status : Status
        How much its numbers may claim.
    source : str
        Theorem or paper.
    epsilon : mapping of int to float
        Class to the cumulative epsilon (nats, at the run's target delta) of its most exposed
        client. An empty mapping means that the column does not apply; `note` then says why.
    note : str
        What a reader must know of it.
    overall : float or None
        The largest of all clients, where not every class is listed.
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
        """Epsilon of the most exposed client; None where the column does not apply."""
        # Not every class is listed then, so the largest listed one need not be the largest of
        # all.
        if self.overall is not None:
            return self.overall
        return max(self.epsilon.values()) if self.epsilon else None


@dataclass(frozen=True)
class Spend:
    """Cumulative privacy after a round, in every column.

    Attributes
    ----------
    round_number : int
        Number of the round, from 1.
    num_reports : int
        Number of reports that arrived in it.
    delta : float
        Delta of every epsilon.
    mu_round, mu_total : float or None
        Published GSPA parameter of the round, and of all rounds together.
    columns : mapping of str to Column
        The columns, by name.
    release : {"reports", "sum"}
        What the attacker sees; it says which column is the headline.
    """

    round_number: int
    num_reports: int
    delta: float
    mu_round: float | None
    mu_total: float | None
    columns: Mapping[str, Column]
    release: str = "reports"

    n_reports = renamed_attribute("n_reports", "num_reports")
    proven_over_lower = renamed_attribute("proven_over_lower", "tightness")

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", RenamedKeys(self.columns, OLD_COLUMNS))

    @property
    def headline_column(self) -> str:
        """The column that matches what is released.

        A sum is computed from the shuffled reports, so `shuffled` holds where `sum` says nothing;
        `local` where clients declare what they did, and nothing is proven; `none` where nothing
        protects anybody.
        """
        if self.columns["local"].status is Status.NONE:
            return str(Status.NONE)
        if self.columns["local"].status is Status.DECLARED:
            return "local"
        found = self.columns.get("sum") if self.release == "sum" else None
        return "shuffled" if found is None or found.worst is None else "sum"

    @property
    def headline(self) -> float:
        """The proven number that matches what is released, for the most exposed client."""
        column = self.columns.get(self.headline_column)
        worst = None if column is None else column.worst
        # Without a number nothing is promised: that is an infinite epsilon, and never zero.
        return math.inf if worst is None else worst

    @property
    def tightness(self) -> float | None:
        """Column `shuffled` over `shuffled_lower`: 1 means tight.

        `shuffled_lower` is what an attack on the shuffled reports certainly reaches. None where no
        attack reaches anything.
        """
        bound, lower = self.columns["shuffled"].worst, self.columns.get("shuffled_lower")
        if bound is None:
            return None
        return proof_over_attack(bound, None if lower is None else lower.worst)
