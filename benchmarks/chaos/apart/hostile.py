"""A client that hands over what no honest client does; rounds go on without it, or unharmed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.chaos.apart.kills import came_of
from benchmarks.chaos.apart.parties import (
    CLIENTS,
    RELEASES,
    Parties,
    Send,
    begun,
    honestly,
    parties,
)
from benchmarks.chaos.tally import Tally
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, report_as_bytes
from fl_shuffle.shuffler.remote.link import Link, Sender, ShufflerError
from fl_shuffle.shuffler.remote.sealing import new_key, public_key, seal

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
        except ShufflerError as error:
            print(error, flush=True)

    def hand_over(
        self,
        sealed: bytes,
        *,
        client: int = CULPRIT,
        number: int | None = None,
        token: bytes | None = None,
        facts: Agreement | None = None,
    ) -> None:
        """A delivery, some of it other than it should be."""
        facts = self.facts if facts is None else facts
        token = self.sender._own.token if token is None else token
        _handed_over.append(sealed)
        when = self.number if number is None else number
        self.ask(wire.DELIVER, wire.Call(token, facts.run, when, facts, client).encoded(sealed))

    def changed(self, value: float) -> bytes:
        """A sealed report with another coordinate."""
        report = self.report.copy()
        report[3] = value
        return self.sealed(report)


@dataclass(frozen=True)
class Kind:
    """What is done, and how many reports a round then counts where reports are released, and where
    their sum is."""

    do: Callable[[Case], object]
    reports: int
    sum: int


def refused(do: Callable[[Case], object]) -> Kind:
    """What the shuffler does not take."""
    return Kind(do, CLIENTS - 1, CLIENTS - 1)


def unusable(do: Callable[[Case], object]) -> Kind:
    """What the shuffler cannot tell from a report: only who opens it can."""
    return Kind(do, CLIENTS, CLIENTS - 1)


def harmless(do: Callable[[Case], object]) -> Kind:
    """What changes nothing: the culprit's report is there, once."""
    return Kind(do, CLIENTS, CLIENTS)


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
    begin = dataclasses.replace(call, agreement=case.facts)
    case.ask(wire.BEGIN, begin.encoded(wire.bitmap_of(everybody)))
    for method in (wire.CLOSE, wire.FINISH, wire.FETCH, "Nothing"):
        case.ask(method, call.encoded())


_handed_over: list[bytes] = []


def _replayed(case: Case) -> None:
    """What was handed over before, in an earlier round."""
    case.hand_over(_handed_over[-1])


def _flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


KINDS: dict[str, Kind] = {
    "garbage": unusable(lambda case: case.hand_over(os.urandom(case.facts.sealed_bytes))),
    "zeros": unusable(lambda case: case.hand_over(bytes(case.facts.sealed_bytes))),
    "a bit of the key": unusable(lambda case: case.hand_over(_flipped(case.sealed(), 3))),
    "a bit of the text": unusable(lambda case: case.hand_over(_flipped(case.sealed(), 99))),
    "a bit of the tag": unusable(lambda case: case.hand_over(_flipped(case.sealed(), 2640))),
    "truncated": refused(lambda case: case.hand_over(case.sealed()[:-1])),
    "too long": refused(lambda case: case.hand_over(case.sealed() + b"\0")),
    "empty": refused(lambda case: case.hand_over(b"")),
    "another dimension": refused(lambda case: case.hand_over(case.sealed(case.report[1:]))),
    "sent twice": harmless(lambda case: _twice(case, same=True)),
    "replayed in the next round": unusable(_replayed),
    "two reports": harmless(lambda case: _twice(case, same=False)),
    "in two names": harmless(_copied),
    "sealed for the next round": unusable(
        lambda case: case.hand_over(replace(case, number=case.number + 1).sealed())
    ),
    "sealed for another run": unusable(
        lambda case: case.hand_over(
            replace(case, facts=replace(case.facts, run=OTHER_RUN)).sealed()
        )
    ),
    "sealed to another key": unusable(
        lambda case: case.hand_over(
            seal(report_as_bytes(case.report), public_key(new_key()), case.facts.info(case.number))
        )
    ),
    "sent for the next round": refused(
        lambda case: case.hand_over(case.sealed(), number=case.number + 1)
    ),
    "sent for another run": refused(
        lambda case: case.hand_over(case.sealed(), facts=replace(case.facts, run=OTHER_RUN))
    ),
    "under other facts": refused(
        lambda case: case.hand_over(case.sealed(), facts=replace(case.facts, min_reports=2))
    ),
    "in another site's name": refused(lambda case: case.hand_over(case.sealed(), client=4)),
    "in nobody's name": refused(lambda case: case.hand_over(case.sealed(), client=1 << 60)),
    "without a token": refused(lambda case: case.hand_over(case.sealed(), token=bytes(32))),
    "the analyzer's calls": refused(_as_analyzer),
    "no message": refused(lambda case: case.ask(wire.DELIVER, b"")),
    "a message of garbage": refused(lambda case: case.ask(wire.DELIVER, os.urandom(3000))),
    "half a message": refused(lambda case: case.ask(wire.DELIVER, bytes(40))),
    "a message of 32 MiB": refused(lambda case: case.ask(wire.DELIVER, bytes(1 << 25))),
    "3e38": unusable(lambda case: case.hand_over(case.changed(3e38))),
    "NaN": unusable(lambda case: case.hand_over(case.changed(np.nan))),
    "an infinity": unusable(lambda case: case.hand_over(case.changed(np.inf))),
}


def _instead(names: Sequence[str]) -> Send:
    """What a node does whose first client hands over one of these in each round."""

    def send(own: Sender, facts: Agreement, number: int, who: int, reports: np.ndarray) -> None:
        if who == CULPRIT:
            (report,) = reports
            KINDS[names[number - 1]].do(Case(own, facts, number, report))
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
    found.kill("node-0")
    found.forget()
    found.start_node(0, _instead(names))
    found.start_server(run, release, resume=False, rounds=len(names))
    lost, uncounted, problem = came_of(found, run, tally, rounds=len(names))
    problem = problem or _not_finite(run)
    counted = LedgerRecord(run / "ledger.sqlite").reports.tolist() if begun(run) else []
    counted += [0] * (len(names) - len(counted))
    for name, reports in zip(names, counted, strict=True):
        expected = KINDS[name].reports if release == "reports" else KINDS[name].sum
        wrong = "" if reports == expected else f"{reports} reports were counted, not {expected}"
        tally.add(f"{name} ({release})", problem=wrong)
    if lost or uncounted or problem:
        tally.lost += lost
        tally.uncounted += uncounted
        tally.problems.append(f"{tally.name} ({release}): {problem}")


def _not_finite(run: Path) -> str:
    from safetensors.numpy import load_file

    model = load_file(run / "model.safetensors")
    finite = all(np.isfinite(values).all() for values in model.values())
    return "" if finite else "the model is not finite"
