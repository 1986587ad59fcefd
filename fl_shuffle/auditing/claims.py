"""The claims under audit, as the accountant of the run would print them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizer_plan import RandomizerPlan


@dataclass(frozen=True)
class Claim:
    """Epsilon after some rounds at one delta, for the target: None where a column is empty.

    `sum_note` says why the column `sum` is.
    """

    proven: float | None
    published: float | None
    local: float | None
    sum: float | None
    sum_note: str


ClaimBook = Callable[[int, float], Claim]
"""(rounds, delta) -> claim."""


def accountant_claims(config: Config, plan: RandomizerPlan, target: int) -> ClaimBook:
    """The claims for client `target` when all clients report in every round."""
    own = int(plan.class_of[target])
    everyone = np.ones(len(plan), dtype=bool)
    known: dict[tuple[int, float], Claim] = {}
    library = RoundLibrary()

    def claim(rounds: int, delta: float) -> Claim:
        if (rounds, delta) not in known:
            accountant = Accountant(
                plan.classes,
                plan.class_of,
                unit=config.privacy.unit,
                schedule=config.training.schedule,
                delta=delta,
                rounds=rounds,
                library=library,
                trust=Trust.of(config.to_dict()),
            )
            for number in range(1, rounds):
                accountant.commit(number, everyone)
            columns = accountant.preview(rounds, everyone).columns
            proven, gspa, local = (
                columns[name].epsilon.get(own) for name in ("proven", "gspa", "local")
            )
            # Where not every class is listed, the worst client's number is claimed for all.
            sums = columns["sum"]
            known[rounds, delta] = Claim(
                proven, gspa, local, sums.epsilon.get(own, sums.worst), sums.note
            )
        return known[rounds, delta]

    return claim
