"""What a run's numbers mean, for a reader who has never seen an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from fl_shuffle.accounting.rounds.threat_model import attackers
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.report.record import RunRecord
from fl_shuffle.runs.console_messages import plain_words


@dataclass(frozen=True)
class Policy:
    """What the reader's own rules call strong (epsilon at most that) and moderate."""

    strong: float
    moderate: float

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Parse `STRONG,MODERATE`. Raises `InvalidValueError` unless 0 < STRONG <= MODERATE."""
        try:
            strong, moderate = map(float, text.split(","))
        except ValueError:
            strong = moderate = math.nan
        if not 0.0 < strong <= moderate < math.inf:
            allowed = "must be two epsilons, 0 < STRONG <= MODERATE"
            raise InvalidValueError("policy", text, allowed, "as in --policy 1,8")
        return cls(strong, moderate)

    def grade(self, epsilon: float) -> str:
        """Return `strong`, `moderate` or `weak`."""
        if epsilon <= self.strong:
            return "strong"
        return "moderate" if epsilon <= self.moderate else "weak"


class Look(NamedTuple):
    """Somebody who could look: its epsilon (nats, most exposed client), that number's grade (empty
    without a policy), and what the number takes."""

    who: str
    column: str
    epsilon: float
    grade: str
    takes: str


def who_looks(run: RunRecord, policy: Policy | None) -> list[Look]:
    """Return who could look at a run that released something, the attacker of the headline first.

    Where the server also shuffles its operator stands second. Attackers of whom nothing is proven
    are left out.
    """
    spend = run.spend
    assert spend is not None
    privacy, found = run.config["privacy"], []
    shuffler = privacy.get("shuffler", "server")
    for who, column, takes in attackers(privacy["release"], shuffler, spend.headline_column):
        epsilon = spend.columns[column].worst
        if epsilon is not None:
            grade = "" if policy is None else policy.grade(epsilon)
            found.append(Look(who, column, epsilon, grade, takes))
    return found


def best_guess(worst: WorstClient) -> float:
    """Return how often the best decision between two data sets of the most exposed client can be
    right at most, if each is as likely: 1/2 + total variation / 2, and that is delta at epsilon
    0."""
    return 0.5 + 0.5 * min(1.0, float(worst.profile([0.0])[0]))


def in_words(run: RunRecord) -> str:
    """Return what the run did for its most exposed client, in the words of its summary."""
    spend = run.spend
    assert spend is not None
    words = plain_words(
        {name: each.worst for name, each in spend.columns.items()},
        headline=spend.headline_column,
        reports=int(run.reports.min(initial=spend.num_reports)),
        rounds=spend.round_number,
    )
    return words[0].upper() + words[1:]
