"""What a certificate claims, against whom and under which assumptions; and whether it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

from flint import arb, fmpq

from .balls import Profile
from .finite import finite
from .gaussian import local, rounds_of, summed
from .ledger import LedgerFacts, ledger_facts
from .reading import LARGEST_EPSILON, Fields, Refused, Work, parse, require
from .shuffled import PAGE, shuffled

FORMAT, VERSION = "fl-shuffle certificate", "2"
WORK = 3e9
"""Steps of about 50 ns: a shipped run takes a third, and what asks for more is refused."""

SERVER = "whoever runs the server and sees every client's report under its name"
REPORTS = "whoever sees the shuffled reports of every round"
SUMS = "whoever sees the sum of every round's reports"
ASSUMPTIONS = {
    "clip": "every mean lies within its radius and moves by at most the sensitivity (section 0)",
    "noise": "reports are ideal noise rounded to a public grid, drawn independently (section 9)",
    "arrivals": "who reports, and when, depends neither on data nor on releases (section 10)",
    "honest": "the counted others keep their noise secret, and are fixed before it (section 0)",
    "order": "every batch leaves in a uniformly random order, untied to clients (section 0)",
    "sum": "of every batch exactly one sum leaves, and what is made of it (section 14)",
    "batches": "a client's reports of a round have one mean, independent noise, and a batch and an "
    "order each; the colluders are fixed before the first of these batches (section 6)",
}

LINK = re.compile("[0-9a-f]{64}")
RELATIONS = ("replace-one", "replace-one after the partition by label")


Bound = Callable[[Fields, Fields, Work], Profile]


@dataclass(frozen=True)
class Kind:
    """A kind of claim: facts, witness, work -> its profile; its adversary; what it assumes."""

    bound: Bound
    adversary: str
    names: tuple[str, ...]

    def assumptions(self, batches: int) -> list[dict[str, str]]:
        """Return identifiers and words, as certificates carry them, for this number of batches per
        round."""
        names = (*self.names, "batches") if batches > 1 else self.names
        return [{"id": name, "words": ASSUMPTIONS[name]} for name in names]


KINDS = {
    "local": Kind(local, SERVER, ("clip", "noise")),
    "sum": Kind(summed, SUMS, ("clip", "noise", "arrivals", "honest", "sum")),
    "shuffled": Kind(shuffled, REPORTS, ("clip", "noise", "arrivals", "honest", "order")),
    "finite": Kind(finite, REPORTS, ("arrivals", "honest", "order")),
}


@dataclass(frozen=True)
class Accepted:
    """A claim that holds: (epsilon, delta)-DP for replacing one `unit`, against `adversary`."""

    kind: str
    unit: str
    relation: str
    adversary: str
    client: str
    epsilon: fmpq
    delta: fmpq
    verified: arb
    """An upper bound on delta at this epsilon, at most the claim's."""
    link: str
    """The run's last link; empty where the claim is about no run."""
    batches: int
    """A client's reports in each round, each in a batch of its own."""
    by_page: fmpq | None
    """What convex order alone proves, a proof of a page."""
    caveats: tuple[str, ...]
    """What the ledger says against relying on the claim."""

    def statement(self) -> str:
        """Return the claim in words: everything that was checked, and nothing else."""
        whose = "any client of these facts" if self.client == "any" else f"client {self.client}"
        what = "everything held by" if self.unit == "client" else "one record of"
        alone = self.by_page and digits(self.by_page)
        page = f" ({alone} by convex order alone, a proof of one page)" if alone else ""
        several = f", with {self.batches} reports a round, each in a batch of its own"
        return (
            f"epsilon = {digits(self.epsilon)}{page} at delta = {digits(self.delta)} "
            f"for replacing {what} {whose} (relation: {self.relation})"
            f"{several if self.batches > 1 else ''}, against {self.adversary}"
        )


@dataclass(frozen=True)
class _Run:
    """What the facts say of the run that they are about."""

    link: str = ""
    batches: int = 1

    @classmethod
    def of(cls, facts: Fields, unit: str, relation: str, client: str) -> _Run:
        """Return the run of these facts; refuses a claim that they are not about."""
        if "run" not in facts.held:
            require(relation == RELATIONS[0], "relation: only a run has another")
            return cls()
        require(client != "any", "client: a run's claim is about one client, by its number")
        run = facts.object("run")
        run.word("unit", unit)
        run.word("relation", relation)
        link = run.get("link")
        require(isinstance(link, str) and LINK.fullmatch(link), "link: not 64 hexadecimal digits")
        several = "reports_per_round" in run.held
        return cls(str(link), run.integer("reports_per_round", 2, 10**6) if several else 1)


def check(
    text: str, ledger: Path | None = None, told: Callable[[int], None] | None = None
) -> Accepted:
    """Return the claim of an accepted certificate; `Refused` says what does not hold.

    With a run's `ledger` the facts must be those that the ledger tells of the claim's client.
    `told` gets the number of points begun.
    Every other exception of arithmetic (overflow, division by zero) is a refusal as well.
    """
    certificate = parse(text)
    certificate.word("format", FORMAT)
    certificate.word("version", VERSION)
    claim, facts = certificate.object("claim"), certificate.object("facts")
    name = claim.word("kind", *KINDS)
    kind = KINDS[name]
    unit, relation = claim.word("unit", "client", "record"), claim.word("relation", *RELATIONS)
    adversary = claim.word("adversary", kind.adversary)
    client = claim.get("client")
    if client != "any":
        client = str(claim.integer("client", 0, 10**12))
    about_run = "run" in facts.held
    require(not about_run or name != "finite", f"run: no run makes a claim of kind {name!r}")
    run = _Run.of(facts, unit, relation, client)
    assumptions = kind.assumptions(run.batches)
    stated = certificate.items("assumptions", len(ASSUMPTIONS))
    require(stated == assumptions, f"assumptions: not {json.dumps(assumptions)}")
    read = LedgerFacts({})
    if ledger is not None:
        require(client != "any", "client: a ledger is about one client, by its number")
        read = ledger_facts(ledger, name, int(client))
        require_facts(facts.held, read.facts)
    for each in rounds_of(facts) if name != "finite" else []:
        moved = unit == "record" or each.move == 2 * each.radius
        require(moved, "sensitivity: replacing a client moves its mean by twice its radius")
        whole = each.times % run.batches == 0
        require(whole, "times: not a multiple of reports_per_round")
        why = "client: not all are alike in scale, radius, grid and stated sensitivity"
        require(client != "any" or each.alike(), why)
    epsilon, delta = claim.number("epsilon", 0, LARGEST_EPSILON), claim.number("delta", 0, 1)
    work, by_page = Work(WORK, told), None

    def bounded(bound: Bound, witness: Fields, at: fmpq) -> arb:
        try:
            found = bound(facts, witness, work)(arb(at))
        except (ArithmeticError, ValueError) as error:
            raise Refused(f"the witness leads nowhere: {error}") from None
        why = f"delta at epsilon = {digits(at)} is only known to be at most {found.str(8)}"
        require(found <= arb(delta), why)
        return found

    verified = bounded(kind.bound, certificate.object("witness"), epsilon)
    if name == "shuffled" and "by a page" in certificate.held:
        alone = certificate.object("by a page")
        by_page = alone.number("epsilon", 0, LARGEST_EPSILON)
        bounded(partial(shuffled, ways=PAGE), alone.object("witness"), by_page)
    certificate.get("not certified")  # words for the reader
    certificate.require_all_read()
    return Accepted(
        name, unit, relation, adversary, client, epsilon, delta, verified, run.link, run.batches,
        by_page, read.caveats,
    )  # fmt: skip


def require_facts(stated: dict[str, Any], read: dict[str, Any]) -> None:
    """Require the certificate's facts to be those read from the ledger, to the letter."""
    for name in sorted({*stated, *read}):
        require(stated.get(name) == read.get(name), f"facts: {name} not as the ledger has it")


def digits(value: fmpq) -> str:
    """Return twelve significant digits, rounded up: what is printed of a claim holds, too."""
    with localcontext(prec=12, rounding=ROUND_CEILING):
        return str(Decimal(int(value.p)) / Decimal(int(value.q)))
