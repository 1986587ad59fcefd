"""What an audit found: empirical lower bounds beside the claims they test, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fl_shuffle.accounting.distributions.gaussian_mechanism import MAX_MU_EPSILON, gaussian_mu
from fl_shuffle.settings_schema import json_ready

ROUNDING = 1e-3
"""A float32 mean of 10,000 records may be off by this share of one record's effect."""
MARGIN = 1e-6
"""A lower bound must exceed a claim by this relative margin: both carry round-off."""


@dataclass(frozen=True)
class FindingPoint:
    """What an attack found at one delta.

    Epsilon is at least `epsilon_lower` (with the audit's confidence), and at most `proven_epsilon`
    by the claim under test: the finding's `column`.
    """

    delta: float
    epsilon_lower: float
    proven_epsilon: float | None
    published_epsilon: float | None = None

    @property
    def noise_factor(self) -> float:
        """See `Finding`, at this delta."""
        claim = self.proven_epsilon
        if claim is None or claim > MAX_MU_EPSILON or self.epsilon_lower <= 0.0:
            return math.inf
        return gaussian_mu(claim, self.delta) / gaussian_mu(self.epsilon_lower, self.delta)

    @property
    def broken(self) -> tuple[bool, bool]:
        """Whether it refutes what is proven, and what is published."""
        proven, published = (
            claim is not None and self.epsilon_lower > claim * (1.0 + MARGIN)
            for claim in (self.proven_epsilon, self.published_epsilon)
        )
        return proven, published


@dataclass(frozen=True)
class Finding:
    """One attack: its lower bounds at several deltas (the run's own first), and its power.

    `noise_factor` is how many times too small noise would have to be, about, for these plays to
    contradict the proven bound: the Gaussian mu that is as private as that bound says, over the mu
    that is as private as was measured; exact for the mu tests, infinite where nothing was measured.
    `column` is the accountant's column under test: `local`, `shuffled` (an adversary who sees the
    shuffled reports) or `sum` (one who sees sums of reports alone).
    """

    JSON: ClassVar = ("breaks_published", "breaks_proven", "verdict", "noise_factor")

    game: str
    method: str
    rounds: int
    plays: int
    points: tuple[FindingPoint, ...]
    note: str = ""
    column: str = "shuffled"

    @property
    def breaks_proven(self) -> bool:
        """Whether a lower bound exceeds what is proven."""
        return any(point.broken[0] for point in self.points)

    @property
    def breaks_published(self) -> bool:
        """Whether a lower bound exceeds what is published."""
        return any(point.broken[1] for point in self.points)

    @property
    def witness(self) -> FindingPoint:
        """The point to show.

        A broken proven bound, else a broken published one, else the run's delta.
        """
        return max(self.points, key=lambda point: point.broken)

    @property
    def verdict(self) -> str:
        """What the finding says of the claims, in words."""
        if self.breaks_proven:
            return f"CONTRADICTS THE PROVEN BOUND of column {self.column}"
        published = self.breaks_published
        return "breaks the published mu" if published else "does not contradict the proven bound"

    @property
    def noise_factor(self) -> float:
        """The least `noise_factor` of its points."""
        return min(point.noise_factor for point in self.points)


@dataclass(frozen=True)
class Check:
    """One test of what every guarantee assumes; it refutes the assumption if `p_value` <= `level`.

    `level` is this test's share of the audit's error probability, `plays` how many rounds were
    looked at. `power` says in words what it would have caught with probability 95%.
    """

    JSON: ClassVar = ("refuted",)

    game: str
    method: str
    plays: int
    p_value: float
    level: float
    power: str
    note: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the assumption is refuted."""
        return self.p_value <= self.level


@dataclass(frozen=True)
class Clipping:
    """The run's own gradient code on hostile records.

    `radius_share` is its largest mean as a share of the radius that the accountant assumes,
    `sensitivity_share` the largest change by one unit as a share of the sensitivity.
    """

    radius_share: float
    sensitivity_share: float

    @property
    def holds(self) -> bool:
        """Whether both stay within what is assumed, up to float32 rounding of the means."""
        return max(self.radius_share, self.sensitivity_share) <= 1.0 + ROUNDING


@dataclass(frozen=True)
class Difference:
    """What stands at a place of what neighboring runs published; None where one has no such."""

    neighbour: str
    where: str
    first: str | None
    second: str | None


@dataclass(frozen=True)
class Published:
    """What was compared: `fields` of the first run, against runs on these `neighbours`."""

    neighbours: tuple[str, ...]
    fields: int
    messages: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditReport:
    """All findings of one audit; together they hold with the stated confidence.

    Attributes
    ----------
    name : str
        What was audited.
    unit : {"record", "client"}
        What neighbors replace.
    clients, dimension : int
        Number of clients, and of coordinates of a report.
    noise : str
        Kind of noise.
    confidence : float
        Probability with which all lower bounds hold together.
    findings : tuple of Finding
        Lower bounds of the attacks.
    checks : tuple of Check
        Tests of what every guarantee assumes.
    clipping : Clipping or None
        What hostile records do to a mean; None if it was not looked at.
    published : Published or None
        What runs on neighboring data published; None if it was not looked at.
    notes : tuple of str
        What was not tested, and why.
    seconds : float
        How long the audit took.
    """

    JSON: ClassVar = ("relation", "breaks_published", "breaks_proven")

    name: str
    unit: str
    clients: int
    dimension: int
    noise: str
    confidence: float
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...] = ()
    clipping: Clipping | None = None
    published: Published | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    relation: ClassVar = "replace-one"

    @property
    def breaks_proven(self) -> bool:
        """Whether a claim was refuted, or what all claims rest on.

        That is clipping, fresh noise, a random order, and that nothing but the reports tells of the
        data.
        """
        unclipped = self.clipping is not None and not self.clipping.holds
        leaking = self.published is not None and bool(self.published.differences)
        refuted = any(check.refuted for check in self.checks)
        return unclipped or leaking or refuted or any(f.breaks_proven for f in self.findings)

    @property
    def breaks_published(self) -> bool:
        """Whether a published number was refuted."""
        return any(finding.breaks_published for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready mapping; infinite numbers are written as text."""
        found: dict[str, Any] = json_ready(self)
        return found

    def text(self) -> str:
        """Return the report for the reader."""
        from jinja2 import Environment, FileSystemLoader

        loader = FileSystemLoader(Path(__file__).parent / "templates")
        pages = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
        return pages.get_template("audit.txt.j2").render(report=self)
