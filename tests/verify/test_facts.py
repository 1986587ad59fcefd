"""Which facts bind which claim: the table of docs/research/proofs, section 17, against the
verifier.

Every claim of the table is written with facts that just bear it. Each fact is then left out, or
made worse, in turn.
"""

from __future__ import annotations

import random
from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.certificates.writing import (
    certificate,
    randomized_response,
    shuffled_witness,
    text_of,
)
from fl_shuffle.verify.__main__ import main
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.reading import Fields, Refused
from tests.repository import ROOT
from tests.verify.made import ROUND, places, replaced
from tests.verify.test_certificates import accountants_delta, mutated

Capture = pytest.CaptureFixture[str]
KINDS = ("local", "sum", "shuffled", "finite")
UNITS, CLIENTS = ("client", "record"), ("3", "any")
CLAIMS = list(product(KINDS, UNITS, CLIENTS))
DELTA = 1e-3
OTHER = (*ROUND, "others", 0)
COARSE = "1"
"""A grid on which a report of scale 1 does not count beside others (section 14)."""

WORSE: dict[str, tuple[tuple[str | int, ...], str | None]] = {
    "times": ((*ROUND, "times"), "2"),
    "scale": ((*ROUND, "scale"), "0.5"),
    "radius": ((*ROUND, "radius"), "0.1"),
    "sensitivity": ((*ROUND, "sensitivity"), "0.2"),
    "grid": ((*ROUND, "grid"), COARSE),
    "colluders": ((*ROUND, "colluders"), "30"),
    "others: count": ((*OTHER, "count"), "10"),
    "others: scale": ((*OTHER, "scale"), "0.5"),
    "others: radius": ((*OTHER, "radius"), "0.1"),
    "others: grid": ((*OTHER, "grid"), COARSE),
    "others: sensitivity": ((*OTHER, "sensitivity"), None),
    "randomizer: k": (("facts", "randomizer", "k"), "2"),
    "randomizer: epsilon0": (("facts", "randomizer", "epsilon0"), "2"),
    "clients": (("facts", "clients"), "20"),
}
"""Row of the table -> where the fact stands, and a value that protects less (None: not stated)."""
WORSE_FINITE = WORSE | {"times": (("facts", "times"), "2")}


def gaussian_facts(unit: str) -> dict[str, Any]:
    """One round of 61 clients that are alike, three of whom collude."""
    alike = {"scale": "1", "radius": "0.05", "grid": "0.000003814697265625"}
    alike |= {"sensitivity": "0.1" if unit == "client" else "0.04"}
    others = [{"count": count, **alike} for count in ("20", "40")]
    own = {"times": "1", "noise": "gaussian", **alike, "others": others, "colluders": "3"}
    return {"dimension": "650", "rounds": [own]}


@cache
def _claim(kind: str, unit: str) -> dict[str, Any]:
    if kind == "finite":
        return randomized_response(3, 1.0, 40, 1, DELTA, 0.4)
    facts, witness = gaussian_facts(unit), {}
    if kind == "shuffled":
        rounds = rounds_of(Fields(facts, "facts"))
        witness = shuffled_witness(rounds, DELTA, printed=0.02, short=True)
    return certificate(kind, facts, witness, unit=unit, client=3, delta=DELTA, start=0.02)


@pytest.mark.slow
def test_certificate_being_made_is_told_point_by_point() -> None:
    """And is the same: nothing of what is told is a result."""
    told: list[str] = []
    facts = gaussian_facts("client")
    facts["rounds"][0]["times"] = "3"
    rounds = rounds_of(Fields(facts, "facts"))
    witness = shuffled_witness(rounds, DELTA, short=True, tell=told.append)
    points = len(witness["types"][0]["points"])
    assert points > 1 and len(told) == points
    assert told[0] == "proof by the convex order, kind of round 1 of 1: a point at epsilon 0"
    assert witness == shuffled_witness(rounds, DELTA, short=True)
    told.clear()
    asked: dict[str, Any] = {"unit": "client", "client": 3, "delta": DELTA, "start": 0.02}
    written = certificate("shuffled", facts, witness, **asked, tell=told.append)
    assert told == [f"what it proves, point {number + 1}" for number in range(points)]
    assert written == certificate("shuffled", facts, witness, **asked)


def claim_of(kind: str, unit: str, client: str) -> dict[str, Any]:
    """A certificate whose epsilon is the smallest that its facts and witness bear."""
    written = deepcopy(_claim(kind, unit))
    written["claim"] |= {"unit": unit, "client": client}
    return written


def table() -> dict[str, dict[str, str]]:
    """Row -> kind -> when the fact is needed, from docs/research/proofs."""
    page = (ROOT / "docs/research/proofs/certificate-facts.md").read_text(encoding="utf-8")
    section = page[page.index("\n## 17. ") :]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    head, _, *body = rows
    assert [name.strip("`") for name in head[2:]] == list(KINDS)
    return {row[0]: dict(zip(KINDS, row[2:], strict=True)) for row in body}


def needed(cell: str, unit: str, client: str) -> bool:
    """Whether this claim needs the fact: `all`, `none`, or conditions on unit and client."""
    if cell in ("all", "none"):
        return cell == "all"
    known = {unit, "any" if client == "any" else "one"}
    return any(set(condition.split()) <= known for condition in cell.split(", "))


def stands(written: dict[str, Any], path: tuple[str | int, ...]) -> bool:
    """Whether anything stands at this place of a certificate."""
    return path in set(places(written))


def test_proofs_table_has_a_row_for_every_fact() -> None:
    assert set(table()) == set(WORSE)


@pytest.mark.parametrize(("kind", "unit", "client"), CLAIMS)
def test_fact_made_worse_is_refused_where_needed(kind: str, unit: str, client: str) -> None:
    written = claim_of(kind, unit, client)
    assert check(text_of(written)).client == client
    ways = WORSE_FINITE if kind == "finite" else WORSE
    for fact, cells in table().items():
        where, to = ways[fact]
        if not stands(written, where):
            assert cells[kind] == "none", fact  # claims of this kind have no such fact
            continue
        changed = replaced(written, where, to)
        if not needed(cells[kind], unit, client):
            check(text_of(changed))
            continue
        with pytest.raises(Refused):
            check(text_of(changed))


@pytest.mark.parametrize(("kind", "unit", "client"), CLAIMS)
def test_fact_left_out_is_refused(kind: str, unit: str, client: str) -> None:
    """Others' sensitivity alone may be left out: their means then move by two radii."""
    written, optional = claim_of(kind, unit, client), 0
    for path in list(places(written)):
        if path[0] != "facts" or not isinstance(path[-1], str):
            continue
        changed = replaced(written, path, None)
        if path[:-2] == OTHER[:-1] and path[-1] == "sensitivity":
            optional += 1
            if (unit, client) != ("record", "any"):
                check(text_of(changed))
                continue
        with pytest.raises(Refused):
            check(text_of(changed))
    assert optional == (0 if kind == "finite" else 2)


@pytest.mark.parametrize("kind", ["local", "sum"])
def test_any_record_without_others_sensitivity_refused(kind: str) -> None:
    """One client's record moves its mean by 1e-6. Nothing bounds the others' but two radii."""
    facts = gaussian_facts("record")
    facts["rounds"][0]["sensitivity"] = "0.000001"
    for other in facts["rounds"][0]["others"]:
        del other["sensitivity"]
    written = certificate(kind, facts, {}, unit="record", client=3, delta=1e-5, start=1e-5)
    assert float(check(text_of(written)).verified) <= 1e-5
    anybody = replaced(written, ("claim", "client"), "any")
    with pytest.raises(Refused, match="client: not all are alike"):
        check(text_of(anybody))
    stated = [{**other, "sensitivity": "0.000001"} for other in facts["rounds"][0]["others"]]
    assert check(text_of(replaced(anybody, (*ROUND, "others"), stated))).client == "any"
    # Of clients as a whole means move by two radii, whatever a certificate states.
    client = replaced(replaced(anybody, (*ROUND, "others"), stated), ("claim", "unit"), "client")
    with pytest.raises(Refused, match="twice its radius"):
        check(text_of(client))


def test_claims_of_kinds_without_runs_have_no_run() -> None:
    written = claim_of("finite", "client", "3")
    written["facts"]["run"] = {"link": "0" * 64, "unit": "client", "relation": "replace-one"}
    with pytest.raises(Refused, match="run: no run makes a claim of kind 'finite'"):
        check(text_of(written))


@pytest.mark.parametrize(
    ("run", "client", "relation", "why"),
    [
        (None, "3", "replace-one after the partition by label", "relation: only a run"),
        ({}, "3", "replace-one", "link"),
        ({"link": "0" * 63}, "3", "replace-one", "link"),
        ({"link": "0" * 64}, "any", "replace-one", "client: a run's claim"),
        ({"link": "0" * 64, "unit": "record"}, "3", "replace-one", "unit: not client"),
        ({"link": "0" * 64}, "3", "replace-one after the partition by label", "relation: not"),
    ],
)
def test_run_facts_that_do_not_fit_the_claim_are_refused(
    run: dict[str, str] | None, client: str, relation: str, why: str
) -> None:
    written = claim_of("local", "client", client)
    written["claim"]["relation"] = relation
    if run is not None:
        written["facts"]["run"] = {"unit": "client", "relation": "replace-one", **run}
    with pytest.raises(Refused, match=why):
        check(text_of(written))


@pytest.mark.parametrize(
    ("unit", "relation", "batches", "words"),
    [
        (
            "client",
            "replace-one",
            "",
            "everything held by client 3 (relation: replace-one), against ",
        ),
        (
            "record",
            "replace-one after the partition by label",
            "",
            "one record of client 3 (relation: replace-one after the partition by label), against ",
        ),
        (
            "client",
            "replace-one",
            "5",
            "everything held by client 3 (relation: replace-one), with 5 reports a round, each in "
            "a batch of its own, against ",
        ),
    ],
)
def test_statement_is_the_claim_with_its_relation(
    unit: str, relation: str, batches: str, words: str, tmp_path: Path, capsys: Capture
) -> None:
    facts = gaussian_facts(unit)
    facts["rounds"][0] |= {"times": "5", "others": []}
    facts["run"] = {"link": "0" * 64, "unit": unit, "relation": relation}
    facts["run"] |= {"reports_per_round": batches} if batches else {}
    written = certificate(
        "local", facts, {}, unit=unit, client=3, delta=DELTA, start=0.1, relation=relation
    )
    path = tmp_path / "claim.json"
    path.write_text(text_of(written), encoding="utf-8")
    assert main([str(path)]) == 0
    said = capsys.readouterr().out
    assert f"for replacing {words}" in said and written["claim"]["adversary"] in said
    assert "\nfacts: as the certificate states them, compared with no ledger\n" in said


def test_several_reports_a_round_are_an_assumption() -> None:
    """Stated where there are several, nowhere else; rounds are counted in batches."""
    facts = gaussian_facts("client")
    facts["rounds"][0]["times"] = "6"
    facts["run"] = {"link": "0" * 64, "unit": "client", "relation": "replace-one"}
    ways: dict[str, Any] = {"unit": "client", "client": 3, "delta": DELTA, "start": 0.1}
    one = certificate("local", deepcopy(facts), {}, **ways)
    facts["run"]["reports_per_round"] = "3"
    several = certificate("local", facts, {}, **ways)
    assert (check(text_of(one)).batches, check(text_of(several)).batches) == (1, 3)
    for written, other in ((one, several), (several, one)):
        with pytest.raises(Refused, match="assumptions"):
            check(text_of(replaced(written, ("assumptions",), other["assumptions"])))
    for wrong, why in (("4", "not a multiple"), ("1", "reports_per_round"), ("x", "not a decimal")):
        where = ("facts", "run", "reports_per_round")
        with pytest.raises(Refused, match=why):
            check(text_of(replaced(several, where, wrong)))


def views(written: dict[str, Any]) -> list[dict[str, Any]]:
    """The claim's facts as every client has them: what is not stated of it is two radii."""
    facts, found = written["facts"], [written]
    for place, group in product(range(len(facts["rounds"])), range(4)):
        own = facts["rounds"][place]
        if group >= len(own["others"]):
            continue
        other = own["others"][group]
        seen = {**own, **{name: other[name] for name in ("scale", "radius", "grid")}}
        seen["sensitivity"] = other.get("sensitivity", str(2 * float(other["radius"])))
        rest = [deepcopy(each) for each in own["others"]]
        rest[group]["count"] = str(int(other["count"]) - 1)
        first = {name: own[name] for name in ("scale", "radius", "grid")} | {"count": "1"}
        seen["others"] = [first, *(each for each in rest if int(each["count"]))]
        alone = deepcopy(written)
        alone["facts"]["rounds"][place] = seen
        found.append(alone)
    return found


@pytest.mark.parametrize(("kind", "unit"), product(("local", "sum"), UNITS))
def test_mutated_claim_of_any_client_holds_for_all(kind: str, unit: str) -> None:
    """The accountant, which knows nothing of `any`, is asked about one client after the other."""
    written, draw, accepted = claim_of(kind, unit, "any"), random.Random(f"{kind} {unit}"), 0
    # A loose claim leaves room for changes that are true.
    written["claim"]["epsilon"] = str(1.3 * float(written["claim"]["epsilon"]))
    for _ in range(400):
        changed = mutated(written, draw)
        try:
            found = check(text_of(changed))
        except Refused:
            continue
        if found.client == "any":
            accepted += 1
            delta = 1.001 * float(changed["claim"]["delta"])
            assert all(accountants_delta(each) <= delta for each in views(changed)), changed
    assert accepted > 20
