"""Certificates are accepted where they are true, and refused where they are not."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import flint
import pytest
from flint import arb, fmpq

import fl_shuffle as fs
from fl_shuffle.accounting.client_classes import AnyRound, ClientClass, ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.certificates.writing import certificate, exact, rounded_up, text_of
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.verify import claims
from fl_shuffle.verify.__main__ import main
from fl_shuffle.verify.claims import check, digits
from fl_shuffle.verify.reading import Refused, parse
from tests.repository import ROOT
from tests.verify.made import KINDS, ROUND, golden, held, mu_of, places, replaced

FOLDER = ROOT / "fl_shuffle" / "verify"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_accepted_and_nothing_less(kind: str) -> None:
    """All but those of few points say what the accountant says, and those not less."""
    written = golden(kind)
    assert check(text_of(written)).kind == written["claim"]["kind"]
    share = accountants_delta(written) / float(written["claim"]["delta"])
    assert {"krr": 0.85, "gram": 0.95, "convex": 0.65}.get(kind, 0.999) < share <= 1
    less = exact(0.9999 * float(written["claim"]["epsilon"]))
    with pytest.raises(Refused, match="only known to be at most"):
        check(text_of(replaced(written, ("claim", "epsilon"), less)))


@pytest.mark.parametrize("value", ["1", "3", "", 2, None, ["2"]], ids=str)
@pytest.mark.parametrize(
    "place",
    [("format",), ("version",), *(("claim", name) for name in ("kind", "unit", "relation")),
     ("claim", "adversary")],
    ids="-".join,
)  # fmt: skip
def test_words_of_a_certificate_are_those_of_this_version(
    place: tuple[str, ...], value: object
) -> None:
    """What another version, or another language, means by the same facts is not known."""
    for kind in ("local", "finite"):
        with pytest.raises(Refused):
            check(json.dumps(replaced(golden(kind), place, value)))


@pytest.mark.parametrize(("delta", "error", "holds"), [
    ("0.5", "0.1", True), ("0.7", "0.1", True), ("0.95", "0.1", False), ("1.0", "0.1", False),
    ("1.0", "0", True), ("1.2", "0.1", False), ("1.0", "inf", False), ("nan", "0", False),
])  # fmt: skip
def test_a_bound_is_accepted_where_it_certainly_holds(
    delta: str, error: str, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are balls: all of one must be at most the claim's delta, or it is refused. Here the
    bound is that multiple of it, to within an error."""
    written = golden("local")
    claimed = arb(written["claim"]["delta"])

    def bound(*_: object) -> Callable[[arb], arb]:
        ball = arb(float(delta) if delta == "nan" else delta) + arb(0, float(error))
        return lambda epsilon: claimed * ball

    if holds:
        claimed = claimed * (1 - arb(2) ** -60)  # of a product's own rounding
    monkeypatch.setitem(
        claims.KINDS, "local", dataclasses.replace(claims.KINDS["local"], bound=bound)
    )
    if holds:
        assert check(text_of(written)).kind == "local"
    else:
        with pytest.raises(Refused, match="is only known to be at most"):
            check(text_of(written))


TYPE = ("witness", "types", 0)


@pytest.mark.parametrize(
    ("kind", "where", "to", "why"),
    [
        ("sum", ("claim", "adversary"), None, "adversary: not whoever sees the sum"),
        ("sum", ("claim", "client"), None, "client: not a decimal number"),
        ("sum", ("claim", "unit"), "household", "unit: not client or record"),
        ("sum", ("claim", "client"), "any", "not all are alike"),
        ("sum", ("assumptions",), [], "assumptions"),
        ("sum", (*ROUND, "grid"), "0.3", "grid: not a power of two"),
        ("local", (*ROUND, "sensitivity"), "0.01", "a client moves its mean by twice its radius"),
        ("convex", (*ROUND, "colluders"), "1", "more others than the facts state"),
        ("convex", (*ROUND, "noise"), "laplace", "noise: not gaussian"),
        ("convex", (*TYPE, "groups", 0, "count"), "21", "more others than the facts state"),
        ("convex", (*TYPE, "rounds"), ["1"], "one that there is not"),
        ("convex", ("witness", "types"), [], "types: not a list"),
        ("finite", ("facts", "randomizer", "name"), "something else", "name: not krr"),
        ("finite", ("witness", "points", 1, "by"), "gram", "by: not local or blanket"),
    ],
)
def test_a_changed_claim_or_fact_is_refused(
    kind: str, where: tuple[str | int, ...], to: object, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        check(text_of(replaced(golden(kind), where, to)))


def test_a_claim_may_be_about_any_client_or_a_record() -> None:
    """Where all clients are alike; and where one record moves a mean by less than the whole."""
    anybody = replaced(golden("gram"), ("claim", "client"), "any")
    assert check(text_of(anybody)).client == "any"
    record = replaced(golden("local"), ("claim", "unit"), "record")
    assert check(text_of(replaced(record, (*ROUND, "sensitivity"), "0.01"))).unit == "record"


def lines_of_code(text: str) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    nothing = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    )  # fmt: skip
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in nothing:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_verifier_is_as_long_as_the_page_says() -> None:
    """To 5 percent."""
    assert lines_of_code('"""Words.\n\nMore."""\n\n# Why.\nx = (\n    1  # one\n)\n') == 3
    page = (ROOT / "docs/how-to/certificates.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"about ([0-9,]+) lines of code", page)
    counted = sum(lines_of_code(each.read_text(encoding="utf-8")) for each in FOLDER.glob("*.py"))
    assert counted == pytest.approx(int(said.replace(",", "")), rel=0.05)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", ["krr", "gram"])
def test_verify_on_a_terminal_counts_points(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line that nothing stays of; the verdict is as ever, and elsewhere nothing is written."""
    path = tmp_path / "c.json"
    path.write_text(text_of(golden(kind)))
    points = path.read_text().count('"by"')
    assert main([str(path)]) == 0
    plain = capsys.readouterr()
    assert plain.out.startswith("ACCEPTED") and not plain.err
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert main([str(path)]) == 0
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert said.split("\r")[1:-2] == [f"checking point {k + 1} of {points}" for k in range(points)]
    assert points > 1 and not said.rpartition("\r")[2] and not said.split("\r")[-2].strip()
    assert capsys.readouterr().out == plain.out


HOSTILE = ["", "[]", "null", "[" * 100_000, "\ud800", "x" * (2 << 20)]
HOSTILE += ['{"format": ' + "[" * 50 + "]" * 50 + "}", '{"format": "a", "format": "a"}']
HOSTILE += ['{"format": NaN}', '{"format": 1e999}', '{"claim": {"epsilon": 0x10}}']
# The limit is in bytes: half a million characters of two each are too many.
HOSTILE += ['{"format": "' + "\u00e9" * 530_000 + '"}']


def test_hostile_text_is_refused() -> None:
    for text in HOSTILE:
        with pytest.raises(Refused):
            check(text)


def test_a_field_that_nobody_asks_for_is_refused() -> None:
    """In every kind of object of the file: what it would mean nobody can say."""
    holders = {
        tuple(0 if isinstance(step, int) else step for step in path[:-1]): kind
        for kind in ("gram", "finite", "sum")
        for path in places(golden(kind))
        if isinstance(path[-1], str)
    }
    for path, kind in holders.items():
        changed = golden(kind)
        held(changed, path)["more"] = "1"
        with pytest.raises(Refused, match=r"unknown field 'more'|assumptions"):
            check(text_of(changed))


def test_a_number_by_a_page_alone_must_be_one() -> None:
    """Here by the client's own noise, mu = 0.1: delta is 3e-2 at 0.02, and 2e-4 at 0.25."""
    written = golden("gram")
    only = written["witness"]["types"][0]
    points = [{"index": "0", "by": "local"}, {"index": "1", "by": "local"}]
    window = {"step": "0.25", "tilt": "2.5", "cells": "64"}
    own = {**window, "types": [{**only, "points": points}]}
    written["by a page"] = {"epsilon": "0.25", "witness": own}
    assert str(check(text_of(written)).by_page) == "1/4"
    with pytest.raises(Refused, match="only known to be at most"):
        check(text_of(replaced(written, ("by a page", "epsilon"), "0.02")))
    with pytest.raises(Refused, match="by: not local or convex order"):
        check(text_of(replaced(written, ("by a page", "witness"), written["witness"])))


def test_too_much_work_is_refused_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_shuffle.verify.claims.WORK", 1e5)
    for kind in ("krr", "convex"):
        with pytest.raises(Refused, match="too much work"):
            check(text_of(golden(kind)))


def test_printed_digits_and_claims_are_rounded_up() -> None:
    assert Decimal(digits(fmpq(1) + fmpq(49, 10**13))) >= Decimal("1.0000000000049")
    assert digits(fmpq(1, 8)) == "0.125" and digits(fmpq(1, 10**30)) == "1E-30"
    assert digits(fmpq(1, 3)) == "0.333333333334"
    assert rounded_up(0.123456789) == "0.123457"
    assert float(rounded_up(1.0)) == 1
    assert float(rounded_up(1e-7 / 3)) >= 1e-7 / 3
    with pytest.raises(NotApplicableError, match="no certificate was found"):
        facts = golden("sum")["facts"]
        certificate("shuffled", facts, {}, unit="client", client=3, delta=1e-5, start=1.0)


def test_how_the_command_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "claim.json"
    path.write_bytes(b"\xff\xfe")
    assert main([str(path)]) == 1
    assert capsys.readouterr().out.startswith("REFUSED: not JSON")
    for wrong in (str(tmp_path / "nothing.json"), str(tmp_path), "nul\0byte"):
        assert main([wrong]) == 2


def test_a_copy_of_the_folder_works_alone(tmp_path: Path) -> None:
    """Python and python-flint, nothing of this project or of its other dependencies."""
    shutil.copytree(FOLDER, tmp_path / "verify")
    packages = Path(flint.__file__).parents[1]
    for found in (*packages.glob("flint"), *packages.glob("python_flint*")):
        (tmp_path / found.name).symlink_to(found)
    (tmp_path / "claim.json").write_text(text_of(golden("sum")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-S", "-m", "verify", "claim.json"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ACCEPTED: epsilon = ")
    assert "everything held by client 3" in done.stdout and "sha256 " in done.stdout


def test_it_stays_small_and_imports_nothing_else_of_the_project() -> None:
    sizes = []
    for path in sorted(FOLDER.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        sizes.append(len(lines))
        found = [re.match(r"\s*(?:from|import) (\.?)(\w+)", line) for line in lines]
        for own, top in (each.groups() for each in found if each):
            assert own or top in {*sys.stdlib_module_names, "flint"}, (path, top)
    assert max(sizes) <= 330 and sum(sizes) <= 1750


def test_certificates_fit_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/certificate.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    for kind in KINDS:
        validator.validate(golden(kind))
        for name in ("claim", "facts", "assumptions", "witness"):
            assert not validator.is_valid(replaced(golden(kind), (name,), None))
        assert not validator.is_valid(replaced(golden(kind), ("claim", "epsilon"), 1.5))


# --- Mutations: whether they may be true is told without the verifier, by the accountant ----------

SHARES = {"local": 400, "sum": 500, "finite": 400, "krr": 250, "convex": 200, "gram": 250}
"""Of 2,000 mutations."""
STRANGE = ["", "-1", "0", "1e-300", "1e300", "9" * 40, "NaN", "1_000", "any", 3, None, True, [], {}]
FACTORS = [0.25, 0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0, 8.0, -1.0]


def mutated(written: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One change, or two, at random places: claim and facts oftener than the witness."""
    changed = written
    for _ in range(draw.choice((1, 1, 1, 2))):
        everywhere = list(places(changed))
        outside = [path for path in everywhere if path[0] in ("claim", "facts")]
        path = draw.choice(outside if draw.random() < 0.6 else everywhere)
        was = held(changed, path)
        ways = [None, draw.choice(STRANGE), held(changed, draw.choice(everywhere))]
        if isinstance(was, list) and was:
            ways.append([*was, draw.choice(was)])
        elif isinstance(was, str) and was.replace(".", "").isdigit():
            ways += [exact(float(was) * draw.choice(FACTORS)) for _ in range(3)]
            if "." not in was:
                ways += [str(int(was) + 1), str(int(was) - 1), str(2 * int(was))]
        changed = replaced(changed, path, draw.choice(ways))
    return changed


def spent_by(facts: dict[str, Any]) -> Counter[AnyRound]:
    """The rounds as the accountant knows them."""
    spent: Counter[AnyRound] = Counter()
    for own in facts["rounds"]:
        near = [o for o in own["others"] if all(o[x] == own[x] for x in ("scale", "grid"))]
        reports = [
            ClientClass("gaussian", float(own["scale"]), float(each["radius"]),
                        float(own["sensitivity"]), count=int(each.get("count", "1")))
            for each in (own, *near)
        ]  # fmt: skip
        spent[ShuffledRound.of(reports).without(int(own["colluders"]))] += int(own["times"])
    return spent


def accountants_delta(written: dict[str, Any]) -> float:
    """What the accountant proves at the claim's epsilon: exact, but for shuffled reports."""
    claim, facts = written["claim"], written["facts"]
    kind, epsilon = claim["kind"], float(claim["epsilon"])
    if kind in ("local", "sum"):
        return float(gaussian_profile(epsilon, max(mu_of(kind, facts), 1e-15)))
    if kind == "shuffled":
        return float(RoundLibrary().profile(spent_by(facts), [epsilon])[0])
    of, shuffle = facts["randomizer"], {"clients": facts["clients"], "rounds": facts["times"]}
    found = fs.bound(
        method="blanket", randomizer="krr", k=int(of["k"]), epsilon0=float(of["epsilon0"]),
        epsilon=epsilon, **{name: int(count) for name, count in shuffle.items()},
    )  # fmt: skip
    return float(found.to_dict()["delta"])


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        *((kind, 60) for kind in ("local", "sum", "finite")),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in SHARES.items()),
    ],
)
def test_a_mutation_that_makes_the_claim_false_is_refused(kind: str, count: int) -> None:
    """None proves less than the accountant."""
    written, draw, accepted = golden(kind), random.Random(count), 0
    for _ in range(count):
        changed = mutated(written, draw)
        try:
            found = check(json.dumps(changed))
        except Refused:
            continue
        accepted += 1
        claim = changed["claim"]
        assert changed["assumptions"] == written["assumptions"]
        for name in ("kind", "relation", "adversary"):
            assert claim[name] == written["claim"][name]
        assert accountants_delta(changed) <= 1.001 * float(claim["delta"]), changed
        assert float(found.verified) <= float(claim["delta"])
    assert count // 50 < accepted < 3 * count // 4


@pytest.mark.parametrize(
    "text",
    ['{"a": "1", "a": "1"}', '{"b": {"a": "1", "c": [], "a": "2"}}', '{"b": [{"": 1, "": 2}]}'],
)
def test_a_name_that_occurs_twice_is_refused(text: str) -> None:
    """Two readers might believe one each."""
    with pytest.raises(Refused, match="a name occurs twice in one object"):
        parse(text)
    assert parse('{"a": {"a": "1"}, "b": {"a": "2"}}').held == {"a": {"a": "1"}, "b": {"a": "2"}}
