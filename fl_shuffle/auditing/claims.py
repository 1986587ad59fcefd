"""The claims under audit, as the accountant of the run would print them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import ANALYZED, Trust
from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.configuration.sections import Config


class Claims:
    """What is claimed of the target of `source`: (column, rounds, delta) -> epsilon, None where
    empty.

    Those clients report in every round that are `present`. `no_sum` says why the column `sum` says
    nothing; empty where it does. `library` keeps one-round curves.
    """

    def __init__(
        self, config: Config, source: Canaries, library: RoundLibrary | None = None
    ) -> None:
        self._plan, self._target = source.claimant
        self._present, self._dimension = source.present, source.scene.dimension
        self._config, self._library = config, library or RoundLibrary()
        # What is played, and counted, are batches: a round may have several.
        self._trust = replace(Trust.of(config.to_dict()), reports_per_round=1)
        self._sums = SumAccount.start(
            self._plan.classes, self._plan.class_of, schedule=config.training.schedule,
            assumed_honest=self._trust.assumed_honest, dimension=self._dimension,
        )  # fmt: skip
        self.no_sum = ANALYZED if self._trust.analyzed else self._sums.reason or ""
        self._counted = cache(self._count)

    def __call__(self, column: str, rounds: int, delta: float) -> float | None:
        """After so many rounds."""
        if column == "sum":  # alone, for the other columns take their time
            account = self._sums
            for _ in range(rounds):
                account = account.after(self._present)
            return account.curve(self._target).epsilon(delta)
        accountant, spend = self._counted(rounds, delta)
        own, listed = int(self._plan.class_of[self._target]), spend.columns[column]
        if column == "gspa" or own in listed.epsilon or not listed.epsilon:
            return listed.epsilon.get(own, listed.worst)
        # A round lists the most exposed classes alone; a client's own bill is whole.
        return float(getattr(accountant.client_totals(), column)[self._target])

    def _count(self, rounds: int, delta: float) -> tuple[Accountant, Spend]:
        """The account after so many rounds, and what the last one says."""
        accountant = Accountant(
            self._plan.classes, self._plan.class_of, unit=self._config.privacy.unit,
            schedule=self._config.training.schedule, delta=delta, library=self._library,
            dimension=self._dimension, trust=self._trust,
        )  # fmt: skip
        for number in range(1, rounds):
            accountant.commit(number, self._present)
        spend = accountant.preview(rounds, self._present)
        accountant.commit(rounds, self._present)
        return accountant, spend
