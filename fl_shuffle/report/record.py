"""A run directory, read; its rounds are counted again from the ledger when that is asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.ledger import LEDGER
from fl_shuffle.ledger.reader import LedgerRecord

if TYPE_CHECKING:
    from fl_shuffle.accounting.accountant import Accountant
    from fl_shuffle.accounting.columns import ClientTotals
    from fl_shuffle.accounting.rounds.events import Spend
    from fl_shuffle.accounting.rounds.round_library import RoundLibrary
    from fl_shuffle.accounting.rounds.worst_client import WorstClient
    from fl_shuffle.report.history import SpendQuantiles

AGREEMENT = 1e-6
"""Recorded and recomputed epsilons may differ by this, relatively (library versions)."""
PROVEN = ("shuffled", "sum", "local")
"""Columns that are counted for every client, in the ledger's order."""


class RunRecord(LedgerRecord):
    """A run for a reader: its ledger, and what its rounds cost when they are counted again.

    That is done at the first request, so a reader of what was written down does not wait
    for the accountant. `followed` are the clients that figures show one by one. `every_column`
    adds what the run itself left out because nobody had asked for it (`Accountant.unasked`).
    """

    followed: tuple[int, ...] = ()
    every_column: bool = False

    @cached_property
    def accuracy(self) -> dict[int, float]:
        """Of the rounds after which it was measured, on the test records."""
        return {n: each["accuracy"] for n, each in self.metrics.items() if "accuracy" in each}

    @cached_property
    def _recount(self) -> tuple[Accountant, Spend | None, float | None]:
        from fl_shuffle.accounting.accountant import Accountant

        plan = self.config, self.classes, self.class_of, self.meta["dimension"]
        accountant = Accountant.of(*plan, self.library, every_column=self.every_column)
        spend = recounted = None
        for number, present, unusable in self.attempts:
            preview = accountant.preview(number, present, unusable)
            if number >= self.rounds.max(initial=0):  # the last one
                spend = preview.spend
                recounted = spend.headline if number in self.rounds else recounted
            accountant.commit(preview)
        if spend is not None:
            spend = replace(spend, columns={**spend.columns, **accountant.lower_bounds()})
        return accountant, spend, recounted

    @cached_property
    def library(self) -> RoundLibrary:
        """Curves of the run's rounds, which every recomputation shares."""
        from fl_shuffle.accounting.rounds.round_library import RoundLibrary

        return RoundLibrary()

    @property
    def accountant(self) -> Accountant:
        """That of all of the run's rounds."""
        return self._recount[0]

    @property
    def spend(self) -> Spend | None:
        """After the last round, None before the first release; a sequential round that was reserved
        but not (yet) committed counts in it as released."""
        return self._recount[1]

    @property
    def recounted(self) -> float | None:
        """The headline, the most exposed client's, after the last committed round, to set beside
        the ledger's own `epsilon`."""
        return self._recount[2]

    @property
    def totals(self) -> ClientTotals:
        """Every client's rounds and epsilons."""
        return self.accountant.client_totals()

    @cached_property
    def counted(self) -> NDArray[np.float64]:
        """Every client's spend as in `recorded_spend` [clients, 4], counted again."""
        return np.stack([getattr(self.totals, name) for name in ("rounds", *PROVEN)], axis=1)

    @property
    def proven_columns(self) -> dict[str, NDArray[np.float64]]:
        """Every client's epsilons in the proven columns that say something."""
        found = zip(PROVEN, self.counted.T[1:], strict=True)
        return {name: values for name, values in found if not np.isnan(values).any()}

    @cached_property
    def quantiles(self) -> SpendQuantiles:
        """Quantiles over the clients after rounds, and what the `followed` clients had spent."""
        from fl_shuffle.report.history import spend_quantiles

        return spend_quantiles(self, self.followed)

    @cached_property
    def worst(self) -> WorstClient | None:
        """The client with the largest epsilon."""
        return self.accountant.worst_client()

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.directory.resolve().name

    @property
    def differing(self) -> NDArray[np.int64]:
        """The clients whose recorded spend is not what their rounds give when counted again."""
        counted = self.counted
        recorded = counted if self.recorded_spend is None else self.recorded_spend
        if len(recorded) != len(counted):
            return np.arange(len(counted))
        same = np.isclose(recorded, counted, rtol=AGREEMENT, atol=0.0, equal_nan=True)
        shuffled = 1 + PROVEN.index("shuffled")
        alone = (recorded, counted)
        if self.accountant.unasked and any(np.isnan(each[:, shuffled]).all() for each in alone):
            same[:, shuffled] = True  # one of the two did not compute this column
        return np.flatnonzero(~same.all(axis=1))

    @property
    def agrees(self) -> bool:
        """Whether the ledger's last number is what its rounds give when counted again."""
        if self.recounted is None or self.epsilon is None:
            return self.recounted == self.epsilon
        return agree(self.epsilon, self.recounted)


def agree(recorded: float, counted: float) -> bool:
    """Return whether a recorded epsilon is the counted one, but for other versions of libraries."""
    return math.isclose(recorded, counted, rel_tol=AGREEMENT)


def read_run(directory: Path) -> RunRecord:
    """Raise `RunError` if `directory` is not a run's, or what is in it cannot be read."""
    return RunRecord(directory / LEDGER)
