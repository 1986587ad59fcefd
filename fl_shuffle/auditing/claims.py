"""The claims under audit, as the accountant of the run would print them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import ANALYZED, Trust
from fl_shuffle.auditing.findings import Point
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizer_plan import RandomizerPlan


class Claims:
    """What is claimed of client `target`: (column, rounds, delta) -> epsilon, None where empty.

    All clients report in every round; for the column `sum`, those of `present` [clients] where
    given, and `no_sum` says why that column says nothing (None where it does).
    """

    def __init__(
        self,
        config: Config,
        plan: RandomizerPlan,
        target: int,
        dimension: int | None = None,
        present: NDArray[np.bool_] | None = None,
    ) -> None:
        self._config, self._plan, self._target = config, plan, target
        # What is played, and counted, are batches: a round may have several.
        self._trust = replace(Trust.of(config.to_dict()), reports_per_round=1)
        self._library = RoundLibrary()
        self._known: dict[tuple[int, float], dict[str, float | None]] = {}
        self._sums = SumAccount.start(
            plan.classes,
            plan.class_of,
            schedule=config.training.schedule,
            assumed_honest=self._trust.assumed_honest,
            dimension=dimension,
        )
        self._everyone = np.ones(len(plan), dtype=bool)
        self._present = self._everyone if present is None else present
        self.no_sum = ANALYZED if self._trust.analyzed else self._sums.reason

    def __call__(self, column: str, rounds: int, delta: float) -> float | None:
        """After so many rounds."""
        if column == "sum":
            account = self._sums
            for _ in range(rounds):
                account = account.after(self._present)
            return account.curve(self._target).epsilon(delta)
        if (rounds, delta) not in self._known:
            self._known[rounds, delta] = self._counted(rounds, delta)
        return self._known[rounds, delta][column]

    def held_against(self, column: str, rounds: int, delta: float, lower: float) -> Point:
        """A lower bound beside this column; for shuffled batches the published number, too."""
        published = self("gspa", rounds, delta) if column == "proven" else None
        return Point(delta, lower, self(column, rounds, delta), published)

    def _counted(self, rounds: int, delta: float) -> dict[str, float | None]:
        accountant = Accountant(
            self._plan.classes,
            self._plan.class_of,
            unit=self._config.privacy.unit,
            schedule=self._config.training.schedule,
            delta=delta,
            library=self._library,
            trust=self._trust,
        )
        for number in range(1, rounds):
            accountant.commit(number, self._everyone)
        columns = accountant.preview(rounds, self._everyone).columns
        own = int(self._plan.class_of[self._target])
        return {name: columns[name].epsilon.get(own) for name in ("proven", "gspa", "local")}
