"""A run directory, read; its rounds are counted again from the ledger when that is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.ledger import LEDGER
from fl_shuffle.ledger.reader import LedgerRecord

if TYPE_CHECKING:
    from fl_shuffle.accounting.accountant import Accountant
    from fl_shuffle.accounting.columns import ClientTotals
    from fl_shuffle.accounting.rounds.events import Spend
    from fl_shuffle.accounting.rounds.worst_client import WorstClient

AGREEMENT = 1e-6
"""Recorded and recomputed epsilons may differ by this, relatively (library versions)."""


PROVEN = ("proven", "sum", "local")
"""Columns that are counted for every client, in the ledger's order."""
Spent = tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]


class Recount(NamedTuple):
    """What the ledger's rounds cost when they are counted again; see `RunRecord`."""

    spend: Spend | None
    recounted: float | None
    totals: ClientTotals
    worst: WorstClient | None
    accountant: Accountant


@dataclass(frozen=True)
class RunRecord:
    """A run for a reader: its ledger; `accuracy` maps a round to the test accuracy
    measured after it.

    What is counted again from the ledger (`recount`) is counted when first asked for: whoever wants
    what was written down alone does not wait for the accountant.
    """

    directory: Path
    ledger: LedgerRecord
    accuracy: dict[int, float]

    @cached_property
    def recount(self) -> Recount:
        """All of the run's rounds, counted again."""
        from fl_shuffle.accounting.accountant import Accountant
        from fl_shuffle.accounting.rounds.trust import Trust

        ledger, config = self.ledger, self.config
        accountant = Accountant(
            ledger.classes,
            ledger.class_of,
            unit=config["privacy"]["unit"],
            schedule=config["training"]["schedule"],
            delta=self.delta,
            dimension=ledger.meta["dimension"],
            trust=Trust.of(config),
        )
        spend, recounted = None, None
        for number, present in ledger.attempts:
            last = number >= ledger.rounds.max(initial=0)
            if last:
                spend = accountant.preview(number, present)
                recounted = spend.headline if number in ledger.rounds else recounted
            accountant.commit(number, present)
        if spend is not None:
            spend = replace(spend, columns={**spend.columns, **accountant.lower_columns()})
        totals, worst = accountant.client_totals(), accountant.worst_client()
        return Recount(spend, recounted, totals, worst, accountant)

    @property
    def spend(self) -> Spend | None:
        """After the last round, None before the first release; a sequential round that was reserved
        but not (yet) committed counts in it as released."""
        return self.recount.spend

    @property
    def recounted(self) -> float | None:
        """The headline, the worst client's, after the last committed round, to set beside the
        ledger's own `recorded`."""
        return self.recount.recounted

    @property
    def totals(self) -> ClientTotals:
        """Every client's rounds and epsilons."""
        return self.recount.totals

    @property
    def written(self) -> Spent | None:
        """The same as the run wrote it down at its end: rounds [n], epsilons [n] by column; None
        before that."""
        if self.ledger.spend is None:
            return None
        rounds, *columns = self.ledger.spend.T
        return rounds.astype(np.int64), dict(zip(PROVEN, columns, strict=True))

    @property
    def counted(self) -> Spent:
        """The same, counted again."""
        return self.totals.rounds, {name: getattr(self.totals, name) for name in PROVEN}

    @property
    def proven_columns(self) -> dict[str, NDArray[np.float64]]:
        """Every client's epsilons in the proven columns that say something."""
        found = self.counted[1]
        return {name: values for name, values in found.items() if not np.isnan(values).any()}

    @property
    def worst(self) -> WorstClient | None:
        """The client with the largest epsilon."""
        return self.recount.worst

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ledger.meta["config"]
        return found

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.directory.resolve().name

    @property
    def delta(self) -> float:
        """At which every epsilon of the run stands."""
        return float(self.config["privacy"]["target_delta"])

    @property
    def recorded(self) -> float | None:
        column = self.ledger.epsilons[
            "proven" if self.spend is None else self.spend.headline_column
        ]
        return float(column[-1]) if column.size else None

    @property
    def differing(self) -> NDArray[np.int64]:
        """The clients whose recorded spend is not what their rounds give when counted again."""
        recorded = self.ledger.spend
        if recorded is None:
            return np.empty(0, dtype=np.int64)
        rounds, columns = self.counted
        if len(recorded) != len(rounds):
            return np.arange(len(rounds))
        counted = np.stack([rounds, *columns.values()], axis=1)
        same = np.isclose(recorded, counted, rtol=AGREEMENT, atol=0.0, equal_nan=True)
        return np.flatnonzero(~same.all(axis=1))

    @property
    def agrees(self) -> bool:
        """Whether the ledger's last number is what its rounds give when counted again."""
        if self.recounted is None or self.recorded is None:
            return self.recounted == self.recorded
        return math.isclose(self.recorded, self.recounted, rel_tol=AGREEMENT)


def read_run(directory: Path) -> RunRecord:
    """Raises `RunError` if `directory` is not a run's, or what is in it cannot be read."""
    ledger = LedgerRecord(directory / LEDGER)
    accuracy = {n: each["accuracy"] for n, each in ledger.metrics.items() if "accuracy" in each}
    return RunRecord(directory, ledger, accuracy)
