"""Events are data: what was executed, and what it cost. Accountants interpret them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_shuffle.accounting.guarantee import Status, proof_over_attack
from fl_shuffle.accounting.reports import OwnLaw, ReportClass
from fl_shuffle.errors import InvalidValueError, require_choice, require_real


@dataclass(frozen=True)
class ClientClass:
    """Clients with identical randomizers: what one report of theirs is to the accountant.

    `noise` is `gaussian`, `laplace`, `user` (no known law: the declared local budget counts) or
    `declared` (what a client's own training did to its records is as good as one Gaussian mechanism
    of this `scale` and `sensitivity`, as it says; nothing is known of its report).
    `scale` is the Gaussian standard deviation or the Laplace scale b of each coordinate; `radius`
    bounds the norm of the mean report before noise (l2 for Gaussian, l1 for Laplace);
    `sensitivity` bounds how far that mean moves when one unit is replaced. `epsilon0`, `delta0` are
    the budget the client asked for, which the noise may or may not deliver.
    """

    noise: str
    scale: float
    radius: float
    sensitivity: float
    epsilon0: float
    delta0: float
    records: int

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, ("gaussian", "laplace", "user", "declared"))
        require_real("scale", self.scale, minimum=0.0, exclusive_minimum=self.noise != "user")
        require_real("radius", self.radius, minimum=0.0)
        require_real("sensitivity", self.sensitivity, minimum=0.0)
        require_real("epsilon0", self.epsilon0, minimum=0.0)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0)

    @property
    def exposure(self) -> float:
        """How far replacing one unit moves the mean, in noise widths (the Gaussian mu)."""
        if self.noise == "user":
            return self.epsilon0
        return min(self.sensitivity, 2.0 * self.radius) / self.scale

    @property
    def law(self) -> OwnLaw:
        """The client's own noise; steps that it declares count as one Gaussian mechanism."""
        noise = "gaussian" if self.noise == "declared" else self.noise
        return OwnLaw(noise, self.exposure, self.delta0 if noise == "user" else 0.0)


def client_class(kind: ReportClass) -> ClientClass:
    """The same reports as a run's accountant sees them; no budget was asked for."""
    return ClientClass(kind.noise, kind.scale, kind.radius, kind.sensitivity, kind.ratio, 0.0, 1)


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
