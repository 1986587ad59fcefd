"""A client that hands over what no honest client does; rounds go on without it, or unharmed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chaos.apart.parties import CLIENTS, RELEASES, Parties, Send, honestly, parties
from benchmarks.chaos.federation import not_finite
from benchmarks.chaos.tally import Tally
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes
from fl_shuffle.shuffler.remote.link import Link, Sender
from fl_shuffle.shuffler.remote.sealing import seal

CULPRIT = 0
"""The client, which the first node plays, with client 1."""
OTHER_RUN = "0f" * 16


@dataclass(frozen=True)
class Case:
    """What the culprit has in hand in one round."""

    sender: Sender
    facts: Agreement
    number: int
    report: np.ndarray

    @property
    def key(self) -> bytes:
        """The public key that reports are to be sealed to."""
        key = self.sender._own.key if self.facts.release == "sum" else self.sender._analyzer
        assert key is not None
        return key

    def sealed(self, report: np.ndarray | None = None) -> bytes:
        """As an honest client seals it."""
        message = report_as_bytes(self.report if report is None else report)
        return seal(message, self.key, self.facts.info(self.number))

    def ask(self, method: str, data: bytes) -> None:
        """Call the shuffler; a refusal is written down."""
        try:
            Link(self.sender._own, 0.0).ask_bytes(method, data)
        except wire.ShufflerError as error:
            print(error, flush=True)

    def hand_over(
        self, sealed: bytes, *, client: int = CULPRIT, token: bytes | None = None
    ) -> None:
        """A delivery."""
        _handed_over.append(sealed)
        token = self.sender._own.token if token is None else token
        call = wire.Call(token, self.facts.run, self.number, self.facts, client)
        self.ask(wire.DELIVER, call.encoded(sealed))

    def under(self, **facts: Any) -> Case:
        """Under other facts."""
        return replace(self, facts=replace(self.facts, **facts))


Kind = tuple[tuple[int, int], Callable[[Case], object]]
"""How many reports a round then counts where reports are released, and where their sum is; what is
done."""
REFUSED = (CLIENTS - 1, CLIENTS - 1)
"""What the shuffler does not take."""
UNUSABLE = (CLIENTS, CLIENTS - 1)
"""What the shuffler cannot tell from a report: only who opens it can."""
HARMLESS = (CLIENTS, CLIENTS)
"""What changes nothing: the culprit's report is there, once."""


def _twice(case: Case, *, same: bool) -> None:
    first = case.sealed()
    case.hand_over(first)
    case.hand_over(first if same else case.sealed())


def _copied(case: Case) -> None:
    """The same sealed bytes in the other client's name; its own come after that."""
    sealed = case.sealed()
    case.hand_over(sealed)
    case.hand_over(sealed, client=1)


def _as_analyzer(case: Case) -> None:
    call = wire.Call(case.sender._own.token, case.facts.run, case.number)
    everybody = np.ones(CLIENTS, dtype=bool)
    begin = replace(call, agreement=case.facts)
    case.ask(wire.BEGIN, begin.encoded(wire.bitmap_of(everybody)))
    for method in (wire.CLOSE, wire.FINISH, wire.FETCH, "Nothing"):
        case.ask(method, call.encoded())


_handed_over: list[bytes] = []


def _replayed(case: Case) -> None:
    """What was handed over before, in an earlier round."""
    case.hand_over(_handed_over[-1])


KINDS: dict[str, Kind] = {
    "garbage": (UNUSABLE, lambda case: case.hand_over(os.urandom(case.facts.sealed_bytes))),
    "truncated": (REFUSED, lambda case: case.hand_over(case.sealed()[:-1])),
    "sent twice": (HARMLESS, lambda case: _twice(case, same=True)),
    "replayed in the next round": (UNUSABLE, _replayed),
    "two reports": (HARMLESS, lambda case: _twice(case, same=False)),
    "in two names": (HARMLESS, _copied),
    "sealed for the next round": (
        UNUSABLE,
        lambda case: case.hand_over(replace(case, number=case.number + 1).sealed()),
    ),
    "sealed for another run": (
        UNUSABLE,
        lambda case: case.hand_over(case.under(run=OTHER_RUN).sealed()),
    ),
    "sent for the next round": (
        REFUSED,
        lambda case: replace(case, number=case.number + 1).hand_over(case.sealed()),
    ),
    "sent for another run": (
        REFUSED,
        lambda case: case.under(run=OTHER_RUN).hand_over(case.sealed()),
    ),
    "under other facts": (REFUSED, lambda case: case.under(min_reports=2).hand_over(case.sealed())),
    "in another site's name": (REFUSED, lambda case: case.hand_over(case.sealed(), client=4)),
    "without a token": (REFUSED, lambda case: case.hand_over(case.sealed(), token=bytes(32))),
    "the analyzer's calls": (REFUSED, _as_analyzer),
    "a message of 32 MiB": (REFUSED, lambda case: case.ask(wire.DELIVER, bytes(1 << 25))),
    "3e38": (UNUSABLE, lambda case: case.hand_over(case.sealed(3e38 * np.ones_like(case.report)))),
}


def _instead(names: Sequence[str]) -> Send:
    """What a node does whose first client hands over one of these in each round."""

    def send(own: Sender, facts: Agreement, number: int, who: int, reports: np.ndarray) -> None:
        if who == CULPRIT:
            (report,) = reports
            KINDS[names[number - 1]][1](Case(own, facts, number, report))
        else:
            honestly(own, facts, number, who, reports)

    return send


def sealed_reports(folder: Path, names: Sequence[str] = tuple(KINDS)) -> Tally:
    """Two runs, one for each kind of release, with one of `KINDS` in place of one client's report
    in each round: they end as they should, with a finite model, count whom they should in every
    round, and nobody learns more."""
    tally = Tally("apart: hostile sealed reports", seen=0)
    with parties(folder) as found:
        # The one in which the shuffler must not read any comes last.
        for release in reversed(RELEASES):
            _play(found, names, release, tally)
        seen = found.seen_in_memory("reports")
        tally.seen = (tally.seen or 0) + len(seen)
        tally.problems += seen
    return tally


def _play(found: Parties, names: Sequence[str], release: str, tally: Tally) -> None:
    run = found.folder / release
    found.nodes[0].kill()
    found.forget()
    found.nodes[0] = found.node(0, _instead(names))
    found.nodes[0].start()
    found.start_server(run, release, len(names))
    lost, uncounted, problem = found.came_of(run, tally, rounds=len(names))
    problem = problem or not_finite(run)
    ledger = run / "ledger.sqlite"
    counted = LedgerRecord(ledger).reports.tolist() if ledger.exists() else []
    counted += [0] * (len(names) - len(counted))
    for name, reports in zip(names, counted, strict=True):
        expected = KINDS[name][0][RELEASES.index(release)]
        wrong = "" if reports == expected else f"{reports} reports were counted, not {expected}"
        tally.add(f"{name} ({release})", problem=wrong)
    if lost or uncounted or problem:
        tally.lost += lost
        tally.uncounted += uncounted
        tally.problems.append(f"{tally.name} ({release}): {problem}")
