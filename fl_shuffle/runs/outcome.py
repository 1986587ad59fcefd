"""One finished round, as the outside sees it."""

from __future__ import annotations

from dataclasses import dataclass

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.configuration.sections import Config


def publishes_times(config: Config) -> bool:
    """Whether a run writes down times: how long a client computes may depend on its records."""
    return config.run.entropy == "seeded"


@dataclass(frozen=True)
class RoundOutcome:
    """What a round has cost, how many clients that were asked are not in it, how long it took in
    seconds, and what was measured after it."""

    round_number: int
    spend: Spend
    dropped: int
    seconds: float
    metrics: dict[str, float]
