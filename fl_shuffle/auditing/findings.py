"""What an audit found: empirical lower bounds beside the claims they test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_shuffle.auditing.published import Published

ROUNDING = 1e-3
"""A float32 mean of 10,000 records may be off by this share of one record's effect."""
MARGIN = 1e-6
"""A lower bound must exceed a claim by this relative margin: both carry round-off."""


@dataclass(frozen=True)
class Point:
    """At one delta: epsilon is at least `lower` (with the audit's confidence); what is claimed.

    `proven` is the claim under test: the finding's `column`.
    """

    delta: float
    lower: float
    proven: float | None
    published: float | None

    @property
    def breaks_proven(self) -> bool:
        return self.proven is not None and self.lower > self.proven * (1.0 + MARGIN)

    @property
    def breaks_published(self) -> bool:
        return self.published is not None and self.lower > self.published * (1.0 + MARGIN)


@dataclass(frozen=True)
class Finding:
    """One attack: its lower bounds at several deltas (the run's own first), and its power.

    `ceiling` is the largest epsilon that this many plays could ever prove at the run's delta.
    `detectable` is how many times too small the target's noise would have to be for this attack to
    contradict the proven bound with probability 95% (None where no law predicts it). `column` is
    the accountant's column under test: `local`, `proven` (an adversary who sees the shuffled
    reports) or `sum` (one who sees sums of reports alone).
    """

    game: str
    method: str
    rounds: int
    plays: int
    points: tuple[Point, ...]
    ceiling: float
    detectable: float | None = None
    note: str = ""
    column: str = "proven"

    @property
    def breaks_proven(self) -> bool:
        return any(point.breaks_proven for point in self.points)

    @property
    def breaks_published(self) -> bool:
        return any(point.breaks_published for point in self.points)

    @property
    def witness(self) -> Point:
        """The point to show: a broken proven bound, else a broken published one, else the run's
        delta."""
        for broken in (
            [point for point in self.points if point.breaks_proven],
            [point for point in self.points if point.breaks_published],
        ):
            if broken:
                return broken[0]
        return self.points[0]

    @property
    def verdict(self) -> str:
        if self.breaks_proven:
            return f"CONTRADICTS THE PROVEN BOUND of column {self.column}"
        if self.breaks_published:
            return "breaks the published mu"
        return "does not contradict the proven bound"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; infinite numbers are written as text."""
        return {
            "game": self.game,
            "column": self.column,
            "method": self.method,
            "rounds": self.rounds,
            "plays": self.plays,
            "points": [
                {
                    "delta": point.delta,
                    "epsilon_lower": _number(point.lower),
                    "proven_epsilon": _number(point.proven),
                    "published_epsilon": _number(point.published),
                }
                for point in self.points
            ],
            "largest_provable_epsilon": _number(self.ceiling),
            "detectable_noise_factor": _number(self.detectable),
            "breaks_published": self.breaks_published,
            "breaks_proven": self.breaks_proven,
            "verdict": self.verdict,
            "note": self.note,
        }


@dataclass(frozen=True)
class Check:
    """One test of what every guarantee takes for granted; it refutes it if `p_value` <= `level`.

    `level` is this test's share of the audit's error probability. `power` says in words what it
    would have caught with probability 95%.
    """

    game: str
    method: str
    rounds: int
    plays: int
    p_value: float
    level: float
    power: str
    note: str = ""

    @property
    def refuted(self) -> bool:
        return self.p_value <= self.level

    @property
    def verdict(self) -> str:
        return "REFUTED: the proven bound does not apply" if self.refuted else "not refuted"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "game": self.game,
            "method": self.method,
            "rounds": self.rounds,
            "plays": self.plays,
            "p_value": self.p_value,
            "level": self.level,
            "refuted": self.refuted,
            "power": self.power,
            "note": self.note,
        }


@dataclass(frozen=True)
class Clipping:
    """The run's own gradient code on hostile records: its largest mean as a share of the radius the
    accountant assumes, and the largest change by one unit as a share of the sensitivity."""

    radius: float
    move: float

    @property
    def holds(self) -> bool:
        """Whether both stay within what is assumed, up to float32 rounding of the means."""
        return self.radius <= 1.0 + ROUNDING and self.move <= 1.0 + ROUNDING


@dataclass(frozen=True)
class AuditReport:
    """All findings of one audit; together they hold with the stated confidence."""

    name: str
    unit: str
    clients: int
    dimension: int
    noise: str
    confidence: float
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...] = ()
    recognition: Mapping[str, Any] = field(default_factory=dict)
    clipping: Clipping | None = None
    published: Published | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def breaks_proven(self) -> bool:
        """Whether a claim was refuted, or what all claims rest on: clipping, fresh noise, a random
        order, and that nothing but the reports tells of the data."""
        unclipped = self.clipping is not None and not self.clipping.holds
        leaking = self.published is not None and bool(self.published.differences)
        refuted = any(check.refuted for check in self.checks)
        broken = any(finding.breaks_proven for finding in self.findings)
        return unclipped or leaking or refuted or broken

    @property
    def breaks_published(self) -> bool:
        return any(finding.breaks_published for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "unit": self.unit,
            "relation": "replace-one",
            "clients": self.clients,
            "dimension": self.dimension,
            "noise": self.noise,
            "confidence": self.confidence,
            "findings": [finding.to_dict() for finding in self.findings],
            "checks": [check.to_dict() for check in self.checks],
            "recognition": dict(self.recognition),
            "clipping": None
            if self.clipping is None
            else {"radius_share": self.clipping.radius, "sensitivity_share": self.clipping.move},
            "published": None if self.published is None else self.published.to_dict(),
            "notes": list(self.notes),
            "breaks_published": self.breaks_published,
            "breaks_proven": self.breaks_proven,
            "seconds": self.seconds,
        }


def _number(value: float | None) -> float | str | None:
    return str(value) if value is not None and not math.isfinite(value) else value
