"""The claims under audit, as the accountant of the run would print them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import ANALYZED, Trust
from fl_shuffle.auditing.findings import Point
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizer_plan import RandomizerPlan


class Claims:
    """What is claimed of client `target`: (column, rounds, delta) -> epsilon, None where empty.

    All clients report in every round, or those of `present` [clients] where given. `no_sum` says
    why the column `sum` says nothing; empty where it does. `library` keeps one-round curves.
    """

    def __init__(
        self,
        config: Config,
        plan: RandomizerPlan,
        target: int,
        dimension: int | None = None,
        present: NDArray[np.bool_] | None = None,
        library: RoundLibrary | None = None,
    ) -> None:
        self._config, self._plan, self._dimension = config, plan, dimension
        self._target, self._own = target, int(plan.class_of[target])
        # What is played, and counted, are batches: a round may have several.
        self._trust = replace(Trust.of(config.to_dict()), reports_per_round=1)
        self._library = RoundLibrary() if library is None else library
        self._known: dict[tuple[int, float], tuple[Accountant, Mapping[str, Column]]] = {}
        self._present = np.ones(len(plan), dtype=bool) if present is None else present
        self._sums = SumAccount.start(
            plan.classes,
            plan.class_of,
            schedule=config.training.schedule,
            assumed_honest=self._trust.assumed_honest,
            dimension=dimension,
        )
        self.no_sum = ANALYZED if self._trust.analyzed else self._sums.reason or ""

    def __call__(self, column: str, rounds: int, delta: float) -> float | None:
        """After so many rounds."""
        if column == "sum":  # alone, for the other columns take their time
            account = self._sums
            for _ in range(rounds):
                account = account.after(self._present)
            return account.curve(self._target).epsilon(delta)
        accountant, columns = self._counted(rounds, delta)
        listed = columns[column].epsilon
        if column == "gspa" or self._own in listed or not listed:
            return listed.get(self._own, columns[column].worst)
        # A round lists the most exposed classes alone; a client's own bill is whole.
        return float(getattr(accountant.client_totals(), column)[self._target])

    def held_against(self, column: str, rounds: int, delta: float, lower: float) -> Point:
        """A lower bound beside this column; for shuffled batches the published number, too."""
        published = self("gspa", rounds, delta) if column == "proven" else None
        return Point(delta, lower, self(column, rounds, delta), published)

    def _counted(self, rounds: int, delta: float) -> tuple[Accountant, Mapping[str, Column]]:
        """The account after so many rounds, and the columns of the last one."""
        if (rounds, delta) not in self._known:
            accountant = Accountant(
                self._plan.classes,
                self._plan.class_of,
                unit=self._config.privacy.unit,
                schedule=self._config.training.schedule,
                delta=delta,
                library=self._library,
                dimension=self._dimension,
                trust=self._trust,
            )
            for number in range(1, rounds):
                accountant.commit(number, self._present)
            columns = accountant.preview(rounds, self._present).columns
            accountant.commit(rounds, self._present)
            self._known[rounds, delta] = accountant, columns
        return self._known[rounds, delta]
