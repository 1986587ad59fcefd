"""What a run's numbers mean, for a reader who has never seen an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.report.record import RunRecord
from fl_shuffle.run_words import plain_words

RARE = 0.01
"""Evidence that turns up this often by chance is what the factor of the odds is said for."""
NO_LIMIT = 1e6
"""Odds that may rise by more than this factor are not limited in any useful sense."""


@dataclass(frozen=True)
class Policy:
    """What the reader's own rules call strong (epsilon at most that) and moderate."""

    strong: float
    moderate: float

    @classmethod
    def parse(cls, text: str) -> Policy:
        """`STRONG,MODERATE`. Raises `InvalidValueError` unless 0 < STRONG <= MODERATE."""
        try:
            strong, moderate = map(float, text.split(","))
        except ValueError:
            strong = moderate = math.nan
        if not 0.0 < strong <= moderate < math.inf:
            allowed = "must be two epsilons, 0 < STRONG <= MODERATE"
            raise InvalidValueError("policy", text, allowed, "as in --policy 1,8")
        return cls(strong, moderate)

    def grade(self, epsilon: float) -> str:
        """`strong`, `moderate` or `weak`."""
        if epsilon <= self.strong:
            return "strong"
        return "moderate" if epsilon <= self.moderate else "weak"


def odds_factor(epsilon: float, delta: float) -> float:
    """How much evidence that chance brings with probability `RARE` or more can raise odds: from
    P(A) <= e^epsilon P(B) + delta."""
    return math.exp(min(epsilon, 700.0)) + delta / RARE


def best_guess(worst: WorstClient) -> float:
    """How often the best decision between two data sets of the worst client can be right at most,
    if each is as likely: 1/2 + total variation / 2, and that is delta at epsilon 0."""
    return 0.5 + 0.5 * min(1.0, float(worst.profile([0.0])[0]))


def in_words(run: RunRecord) -> str:
    """What the run did for its most exposed client, in the words of its summary."""
    spend = run.spend
    assert spend is not None
    words = plain_words(
        {name: each.worst for name, each in spend.columns.items()},
        headline=spend.headline_column,
        reports=int(run.reports.min(initial=spend.n_reports)),
        rounds=spend.round_number,
    )
    return words[0].upper() + words[1:]
