"""A run's ledger as plain tables: columns of equal length, for pandas, Arrow, CSV, or the eye.

Epsilons are nats at the run's delta, cumulative, NaN where a column says nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import require_integer
from fl_shuffle.ledger.tables import EPSILONS
from fl_shuffle.report.record import PROVEN, RunRecord

Columns = dict[str, NDArray[Any]]


def rounds_table(run: RunRecord) -> Columns:
    """Return one row a released round: reports that arrived, and each column for the most exposed
    client."""
    accuracy = np.array([run.accuracy.get(int(number), np.nan) for number in run.rounds])
    return {
        "round": run.rounds,
        "num_reports": run.reports,
        **{EPSILONS[name]: values for name, values in run.epsilons.items()},
        "delta": np.full(len(run.rounds), run.delta),
        "accuracy": accuracy,
    }


def clients_table(run: RunRecord, *, recount: bool = False) -> Columns:
    """Return one row a client: its budget of one report, its total of the run where it has one, its
    randomizer, its rounds and what they cost, as written at the run's end; with `recount`, and of a
    run that has none, counted."""
    spent = run.counted if recount or run.recorded_spend is None else run.recorded_spend
    rounds, *epsilons = spent.T
    clients = len(run.class_of)
    of_class = {
        name: np.array([getattr(each, name) for each in run.classes])[run.class_of]
        for name in ("epsilon0", "delta0", "noise", "scale", "radius", "records")
    }
    return {
        "client": np.arange(clients),
        **of_class,
        **({} if run.total_epsilon is None else {"total_epsilon": run.total_epsilon}),
        "rounds": rounds.astype(np.int64),
        **{EPSILONS[name]: values for name, values in zip(PROVEN, epsilons, strict=True)},
        "delta": np.full(clients, run.delta),
    }


def participation_table(
    run: RunRecord, *, client: int | None = None, round_number: int | None = None
) -> Columns:
    """Return one row a released report: its round, the attempt at that round, and its client.

    Restricted to one client or one round if these are given. Raises `InvalidValueError` for a
    client or round that the run does not have.
    """
    if client is not None:
        require_integer("client", client, minimum=0, maximum=len(run.class_of) - 1)
    if round_number is not None:
        last = max((number for number, *_ in run.attempts), default=1)
        require_integer("round", round_number, minimum=1, maximum=last)
    found = []
    tries: dict[int, int] = {}
    for number, present, _ in run.attempts:
        tries[number] = tries.get(number, 0) + 1
        if round_number in (None, number):
            who = np.flatnonzero(present)
            who = who if client is None else who[who == client]
            found.append(np.stack(np.broadcast_arrays(number, tries[number], who)))
    empty = np.empty((3, 0), dtype=np.int64)
    return dict(zip(("round", "attempt", "client"), np.hstack([empty, *found]), strict=True))


def notes_table(run: RunRecord) -> Columns:
    """Return one row a remark of the run: the round it belongs to, its kind, its text."""
    rounds, kinds, texts = zip(*run.notes, strict=True) if run.notes else ((),) * 3
    return {
        "round": np.array(rounds, dtype=np.int64),
        "kind": np.array(kinds, dtype=np.str_),
        "text": np.array(texts, dtype=np.str_),
    }


TABLES = {
    "rounds": rounds_table,
    "clients": clients_table,
    "participation": participation_table,
    "notes": notes_table,
}
