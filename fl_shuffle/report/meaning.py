"""What a run's numbers mean, for a reader who has never seen an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.report.formats import short
from fl_shuffle.report.record import RunRecord
from fl_shuffle.run_words import plain_words

RARE = 0.01
"""Evidence that turns up this often by chance is what the factor of the odds is said for."""
NO_LIMIT = 1e6
"""Odds that may rise by more than this factor are not limited in any useful sense."""


@dataclass(frozen=True)
class Policy:
    """What the reader's own rules call strong (epsilon at most that) and moderate.

    Raises `InvalidValueError` unless 0 < strong <= moderate.
    """

    strong: float
    moderate: float

    def __post_init__(self) -> None:
        if not (0.0 < self.strong <= self.moderate < math.inf):
            raise InvalidValueError(
                "policy", f"{self.strong:g},{self.moderate:g}", "must be 0 < STRONG <= MODERATE",
                "as in --policy 1,8",
            )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> Policy:
        """`STRONG,MODERATE`. Raises `InvalidValueError`."""
        try:
            strong, moderate = map(float, text.split(","))
        except ValueError:
            raise InvalidValueError(
                "policy", text, "must be two epsilons, STRONG,MODERATE", "as in --policy 1,8"
            ) from None
        return cls(strong, moderate)

    def grade(self, epsilon: float) -> str:
        """`strong`, `moderate` or `weak`."""
        if epsilon <= self.strong:
            return "strong"
        return "moderate" if epsilon <= self.moderate else "weak"


def removed(run: RunRecord) -> str:
    """What taking a unit out costs, in words, where sums are released and that is known."""
    spend = run.spend
    if spend is None or spend.headline_column != "sum":
        return ""
    epsilon = add_remove_of(run.config, spend.headline, run.delta)
    return "" if epsilon is None else f"; epsilon {short(epsilon)} is {ADD_REMOVE_WORDS}"


def whom(run: RunRecord) -> str:
    """Who it is that the headline holds against."""
    privacy = run.config["privacy"]
    return towards(privacy["release"], privacy.get("shuffler", "in-server"))


def against(run: RunRecord) -> str:
    """Towards whom the headline holds, and towards whom it does not."""
    opponent = f"{whom(run)}, and knows all other data and every model"
    if run.config["privacy"].get("shuffler") == "apart" or run.spend is None:
        return opponent
    local = short(run.spend.columns["local"].worst)
    return (
        f"{opponent}; towards the operator of the server, which shuffles, too, epsilon is {local}"
    )


def attacked(spend: Spend) -> tuple[float | None, float | None]:
    """What an attack certainly reaches against what the headline is about, and how many times the
    headline exceeds it."""
    lower = spend.columns["sum_lower" if spend.headline_column == "sum" else "lower"].worst
    return lower, proof_over_attack(spend.headline, lower)


def odds(run: RunRecord) -> float | None:
    """How much evidence can raise odds; None where that is no useful limit."""
    assert run.spend is not None
    factor = odds_factor(run.spend.headline, run.delta)
    return factor if factor <= NO_LIMIT else None


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
