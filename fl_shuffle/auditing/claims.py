"""The claims under audit, as the accountant of the run would print them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import ANALYZED, Trust
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizer_plan import RandomizerPlan


@dataclass(frozen=True)
class Claim:
    """Epsilon after some rounds at one delta, for the target: None where a column is empty."""

    proven: float | None
    published: float | None
    local: float | None


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
            found = [columns[name].epsilon.get(own) for name in ("proven", "gspa", "local")]
            known[rounds, delta] = Claim(*found)
        return known[rounds, delta]

    return claim


class SumClaims:
    """Column `sum` for client `target` when all clients report in every round: (rounds, delta) ->
    epsilon. `reason` says why it says nothing, None where it does."""

    def __init__(
        self, config: Config, plan: RandomizerPlan, target: int, dimension: int | None = None
    ) -> None:
        trust = Trust.of(config.to_dict())
        self._account = SumAccount.start(
            plan.classes,
            plan.class_of,
            schedule=config.training.schedule,
            assumed_honest=trust.assumed_honest,
            dimension=dimension,
        )
        self._target = target
        self.reason = ANALYZED if trust.analyzed else self._account.reason

    def __call__(self, rounds: int, delta: float) -> float:
        account, everyone = self._account, np.ones(len(self._account.class_of), dtype=bool)
        for _ in range(rounds):
            account = account.after(everyone)
        return account.curve(self._target).epsilon(delta)
