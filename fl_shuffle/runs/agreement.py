"""Whether the files of a run that goes on tell the same story, before anything more is released.

A ledger that is older than the run would leave releases off the bill. metrics.csv is the witness: a
round's line is written after the ledger knows of its release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from fl_shuffle.errors import RunError
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import COLUMN_NAMES
from fl_shuffle.runs.directory import METRICS
from fl_shuffle.runs.metrics import Line, cell, line_of

SAME = 1e-6
"""Numbers may differ by this, relatively (they are written with ten digits)."""


def require_agreement(
    path: Path, known: LedgerRecord, lines: Mapping[int, Line], checkpoint: int
) -> str | None:
    """Raise `RunError`, naming the difference, if ledger, metrics and checkpoint do not agree.

    `checkpoint` is the round of the state to go on from, 0 without one. Returns a remark for the
    ledger where metrics.csv is ahead of it and that is no harm: a seeded run plays those rounds
    again, to the same bits. (By one round it always may be: what was recorded becomes durable with
    the next reservation.)
    """
    rounds = {int(number): place for place, number in enumerate(known.rounds)}
    missing = next((n for n in range(1, checkpoint + 1) if n not in rounds), None)
    if missing is not None:
        raise RunError(
            f"{path}: the state to go on from is that after round {checkpoint}, and the ledger "
            f"knows nothing of round {missing}; put the run's own ledger back"
        )
    for number, line in lines.items():
        if number not in rounds:
            continue
        place = rounds[number]
        for column, told, counted in (
            ("n_reports", line["n_reports"], float(known.reports[place])),
            ("proven_epsilon", line["proven_epsilon"], float(known.epsilon["proven"][place])),
        ):
            if not _same(told, counted):
                raise RunError(
                    f"{path}: in round {number} {METRICS} says {column} = {told}, the ledger "
                    f"{counted:.10g}: they are not of one run; put the run's own files back"
                )
    newest, last = max(lines, default=0), max(rounds, default=0)
    if newest <= last:
        return None
    difference = f"{METRICS} tells of round {newest}, the ledger ends at round {last}"
    if known.meta["config"]["run"]["entropy"] != "seeded":
        raise RunError(
            f"{path}: {difference}: the ledger is older than the run, and what was released since "
            "would not be counted; put the newer one back"
        )
    if newest == last + 1:
        return None
    return f"{difference}: these rounds are played again, to the same bits"


def lines_to_keep(known: LedgerRecord, lines: Mapping[int, Line], first: int) -> dict[int, Line]:
    """The lines of the rounds before `first`; those that are lost as the ledger has them, without
    accuracy and loss."""
    kept = {number: line for number, line in lines.items() if number < first}
    for place, number in enumerate(known.rounds.tolist()):
        if number < first and number not in kept:
            epsilons = (_number(known.epsilon[name][place]) for name in COLUMN_NAMES)
            kept[number] = line_of(number, int(known.reports[place]), {}, None, epsilons, None)
    return kept


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _same(told: str, counted: float) -> bool:
    if not told or math.isnan(counted):
        return told == cell(_number(counted))
    return math.isclose(float(told), counted, rel_tol=SAME)
