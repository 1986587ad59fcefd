"""What every client had spent after every round, counted again from a run's ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle._internal.plugins import data_frame
from fl_shuffle.ledger.tables import EPSILONS
from fl_shuffle.report.record import PROVEN, RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from fl_shuffle.accounting.columns import ClientTotals

_EVERYBODY = slice(None)
QUANTILES = {"least exposed": 0.0, "10%": 0.1, "median": 0.5, "90%": 0.9, "most exposed": 1.0}
"""Levels that are drawn."""
QUANTILE_ROUNDS = 40
"""Largest number of rounds after which quantiles are computed."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpendHistory:
    """Cumulative epsilons of clients after each round of a run, counted again from its ledger.

    Epsilons are in nats at `delta`, for replacing one unit of privacy (replace-one). They are
    proven upper bounds, except in a run whose clients declare their own training: there `local`
    holds as declared, and nothing else is claimed. A round that was attempted again after a crash
    counts every attempt that may have been released.

    T is the number of rounds in which something was released, n the number of clients.

    Parameters
    ----------
    round_numbers : array of int, shape (T,)
        Rounds in which something was released, increasing.
    clients : array of int, shape (n,)
        Numbers of the clients in the ledger.
    num_reports : array of int, shape (T, n)
        How many times the client's reports of this round were released: 0 where it was absent, 1,
        or more after attempts that were repeated.
    rounds : array of int, shape (T, n)
        The same, added up to this round: rounds that the client took part in.
    shuffled, sum, local : array of float, shape (T, n)
        Epsilon of the client in each column; NaN where the column says nothing.
    headline : str
        The column that matches what the run releases: `shuffled`, `sum`, or `local`; `none` in a
        run without privacy, whose epsilons are infinite.
    delta : float
        The run's target delta.
    """

    round_numbers: Numbers
    clients: Numbers
    num_reports: Numbers
    rounds: Numbers
    shuffled: Vector
    sum: Vector
    local: Vector
    headline: str
    delta: float

    @property
    def epsilon(self) -> Vector:
        """The headline epsilon of each client after each round, shape (rounds, clients)."""
        if self.headline == "none":
            return np.where(self.rounds > 0, np.inf, 0.0)
        found: Vector = getattr(self, self.headline)
        return found

    @property
    def columns(self) -> dict[str, Vector]:
        """The columns that say something, each of shape (rounds, clients)."""
        found = {name: getattr(self, name) for name in PROVEN}
        return {name: values for name, values in found.items() if not np.isnan(values).any()}

    def table(self) -> dict[str, NDArray[Any]]:
        """Return one row for each round and client, round by round: columns of equal length."""
        rounds, clients = self.rounds.shape
        return {
            "round": np.repeat(self.round_numbers, clients),
            "client": np.tile(self.clients, rounds),
            "num_reports": self.num_reports.ravel(),
            "rounds": self.rounds.ravel(),
            **{EPSILONS[name]: getattr(self, name).ravel() for name in PROVEN},
            "delta": np.full(rounds * clients, self.delta),
        }

    def to_frame(self) -> DataFrame:
        """Return `table()` as a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row for each round and client, with the columns of `table`.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        return data_frame(self.table())


def spend_history(run: RunRecord, clients: Numbers | None = None) -> SpendHistory:
    """Count a run's rounds again, and keep what each of these clients had spent after each.

    The numbers come from the accountant that a recount uses, so the last row is what `recount`
    gives. A sequential round that was reserved and not (yet) committed counts as released.

    Parameters
    ----------
    run : RunRecord
        The run.
    clients : array of int, shape (clients,), optional
        Numbers of the clients; all clients by default. A single client is much cheaper than all.

    Returns
    -------
    SpendHistory
        One row for each round.
    """
    numbers, found = _snapshots(run, _EVERYBODY if clients is None else clients)
    chosen = np.arange(len(run.class_of))[_EVERYBODY if clients is None else clients]
    rows = [totals for _, totals in found]
    spent = {
        name: np.array([getattr(row, name) for row in rows]).reshape(len(numbers), chosen.size)
        for name in ("rounds", *PROVEN)
    }
    sent = np.zeros((len(numbers), chosen.size), dtype=np.int64)
    for number, present, _ in run.attempts:
        sent[numbers.index(number)] += present[chosen]
    return SpendHistory(
        np.array(numbers, dtype=np.int64),
        chosen,
        sent,
        **{**spent, "rounds": spent["rounds"].astype(np.int64)},
        headline=run.headline,
        delta=run.delta,
    )


@dataclass(frozen=True, eq=False)
class SpendQuantiles:
    """Quantiles over all clients of the headline epsilon after rounds, and some clients' own.

    Parameters
    ----------
    round_numbers : array of int, shape (rounds,)
        At most `QUANTILE_ROUNDS` rounds, the first and the last among them.
    quantiles : array of float, shape (rounds, len(QUANTILES))
        Epsilons (nats, at the run's delta) at the levels of `QUANTILES`.
    clients : array of float, shape (rounds, clients)
        Epsilon of each client that was asked for.
    """

    round_numbers: Numbers
    quantiles: Vector
    clients: Vector


def spend_quantiles(run: RunRecord, clients: Sequence[int] = ()) -> SpendQuantiles:
    """Return quantiles over the clients after at most `QUANTILE_ROUNDS` rounds, counted again."""
    every = len({number for number, *_ in run.attempts})
    at = np.unique(np.linspace(0, max(0, every - 1), QUANTILE_ROUNDS).round().astype(np.int64))
    at = at[:every]
    numbers, found = _snapshots(run, _EVERYBODY, at)
    levels, some = list(QUANTILES.values()), np.array(clients, dtype=np.int64)
    # No more than one round's epsilons of all clients are held at a time.
    with np.errstate(invalid="ignore"):
        rows = [
            (numbers[row], np.quantile(totals.headline, levels), totals.headline[some])
            for row, totals in found
        ]
    rounds, quantiles, own = zip(*rows, strict=True) if rows else ((), (), ())
    return SpendQuantiles(
        np.array(rounds, dtype=np.int64),
        # Between two infinities there is infinity, and NumPy's interpolation finds nothing.
        np.nan_to_num(np.array(quantiles), nan=np.inf, posinf=np.inf).reshape(-1, len(levels)),
        np.array(own).reshape(len(rows), some.size),
    )


def _snapshots(
    run: RunRecord, clients: Numbers | slice, at: Numbers | None = None
) -> tuple[list[int], Iterator[tuple[int, ClientTotals]]]:
    """Return the rounds in which something left, and some clients' totals after some of them.

    The second yields (row, totals) for the rows `at` (None: each). A sequential round that was
    reserved and not (yet) committed is one of them: it may have left.
    """
    last = {number: place for place, (number, *_) in enumerate(run.attempts)}
    numbers = sorted(last)
    # After a crash a round may have been attempted again after a later one: spend never falls.
    places = np.maximum.accumulate([last[number] for number in numbers], dtype=np.int64)
    rows = np.arange(len(numbers)) if at is None else at

    def counted() -> Iterator[tuple[int, ClientTotals]]:
        # Reading what is written down does not load the accountant.
        from fl_shuffle.accounting.accountant import Accountant

        plan = run.config, run.classes, run.class_of, run.meta["dimension"]
        accountant = Accountant.of(*plan, run.library, every_column=run.every_column)
        done = 0
        for row in rows.tolist():
            for attempt in run.attempts[done : int(places[row]) + 1]:
                accountant.commit(accountant.preview(*attempt))
            done = int(places[row]) + 1
            yield row, accountant.totals_of(clients)

    return numbers, counted()
