"""Certificates of runs: the facts come from the ledger, read by the verifier itself."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.certificates.verdicts import certificate_line, verdict_of
from fl_shuffle.certificates.writing import exact, text_of
from fl_shuffle.cli import main
from fl_shuffle.errors import InvalidValueError, NotApplicableError, RunError
from fl_shuffle.ledger.store import first_link, next_link
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.gaussian import Group, Round, fits, hiding_variance, rounds_of
from fl_shuffle.verify.ledger import ledger_facts
from fl_shuffle.verify.reading import Fields, Refused
from tests.verify.made import mu_of

CLIENTS = 40
SMALL = {
    "run.rounds": 2,
    "data.clients": CLIENTS,
    "budgets.levels": 2,
    "budgets.low": 0.2,
    "budgets.high": 0.4,
    "training.participation": 0.8,
    "privacy.target_delta": 1e-3,
    "privacy.assumed_honest": 0.9,
    "privacy.release": "sum",
}


@pytest.fixture(scope="module")
def run(coarse_pairs: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fs.simulate(overrides=SMALL, out=folder)
    return folder


@pytest.fixture
def book(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's ledger, to be changed."""
    return Path(shutil.copy(run / "ledger.sqlite", tmp_path / "ledger.sqlite"))


@pytest.fixture(scope="module")
def certified(run: Path) -> dict[str, dict[str, Any]]:
    return {column: fs.certify(run, column=column) for column in ("sum", "local")}


@pytest.mark.parametrize("column", ["sum", "local"])
def test_a_run_is_certified_and_accepted_beside_its_ledger(
    run: Path, certified: dict[str, dict[str, Any]], column: str
) -> None:
    written = certified[column]
    found = check(text_of(written), run / "ledger.sqlite")
    assert found.kind == column
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        asked = f"SELECT {column} FROM client_spend WHERE client_id = {found.client}"
        ((says,),) = database.execute(asked).fetchall()
    claimed = float(written["claim"]["epsilon"])
    assert says * (1 - 1e-9) <= claimed <= says * (1 + 2e-5)


def test_facts_are_the_attendance_of_the_client(run: Path) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        present: dict[int, set[int]] = {}
        for attempt, client in database.execute("SELECT attempt, client_id FROM attendance"):
            present.setdefault(attempt, set()).add(client)
        class_of = dict(database.execute("SELECT client_id, class_id FROM clients"))
    assert len({len(who) for who in present.values()} | {CLIENTS}) > 1, "nobody was absent"
    for client in range(0, CLIENTS, 7):
        wanted: Counter[tuple[int, int]] = Counter()
        for who in present.values():
            if client in who:
                kinds = Counter(class_of[other] for other in who - {client})
                wanted[tuple(kinds[i] for i in sorted(set(class_of.values())))] += 1  # type: ignore[index]
        facts = ledger_facts(run / "ledger.sqlite", "sum", client)
        found: Counter[tuple[int, ...]] = Counter()
        for each in facts["rounds"]:
            found[tuple(int(g["count"]) for g in each["others"])] += int(each["times"])
            arrived = 1 + sum(int(g["count"]) for g in each["others"])
            assert int(each["colluders"]) == arrived - int(0.9 * arrived)
        assert found == wanted


def changed(path: Path, statement: str, *, links_too: bool = False) -> None:
    """Change a ledger; with `links_too` as somebody who knows how links are made."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        if links_too:
            meta = {k: json.loads(v) for k, v in database.execute("SELECT key, value FROM meta")}
            kinds = database.execute(
                "SELECT noise, scale, radius, sensitivity, epsilon0, delta0, records "
                "FROM classes ORDER BY class_id"
            )
            who = database.execute("SELECT class_id FROM clients ORDER BY client_id").fetchall()
            link = first_link(meta, [ClientClass(*row) for row in kinds], np.array(who)[:, 0])
            rows = database.execute("SELECT * FROM reservations ORDER BY attempt").fetchall()
            for *row, _ in rows:
                link = next_link(link, tuple(row))
                new = "UPDATE reservations SET link = ? WHERE attempt = ?"
                database.execute(new, (link, row[0]))
        database.commit()


LINKS = "does not fit its link"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE meta SET value = replace(value, '0.9', '0.95') WHERE key = 'config'", LINKS),
        ("UPDATE classes SET scale = 2 * scale", LINKS),
        ("UPDATE reservations SET present = NULL WHERE attempt = 1", LINKS),
        ("DELETE FROM reservations WHERE attempt = 1", LINKS),
        ("UPDATE meta SET value = '5' WHERE key = 'schema'", "schema"),
        ("UPDATE reservations SET present = x'00'", "present"),
        ("UPDATE classes SET scale = 'wide'", "not a number"),
        ("UPDATE classes SET noise = 'laplace'", "not Gaussian"),
        ("UPDATE clients SET client_id = 1000 WHERE client_id = 3", "clients"),
        ("DELETE FROM clients WHERE client_id = (SELECT max(client_id) FROM clients)", "not all"),
        ("UPDATE classes SET class_id = 2 + class_id", "classes: not numbered"),
        ("DROP TABLE classes", "cannot be read"),
        ("UPDATE meta SET value = replace(value, '\"aggregate\"', '\"sequential\"')", "single"),
        ("UPDATE meta SET value = replace(value, '\"gaussian\"', '\"krr\"')", "not Gaussian"),
    ],
)
def test_a_ledger_that_was_changed_is_refused(
    book: Path, certified: dict[str, dict[str, Any]], statement: str, says: str
) -> None:
    text = text_of(certified["sum"])
    changed(book, statement)
    with pytest.raises(Refused, match=says):
        check(text, book)
    if says == LINKS:
        changed(book, "UPDATE meta SET value = value", links_too=True)
        with pytest.raises(Refused, match="not as the ledger has it"):
            check(text, book)
    book.write_bytes(b"no database")
    for path in (book, book.with_name("nowhere")):
        with pytest.raises(Refused, match="cannot be read"):
            check(text, path)


@pytest.mark.parametrize("column", ["sum", "local"])
def test_another_run_or_client_is_refused(
    run: Path, book: Path, certified: dict[str, dict[str, Any]], column: str
) -> None:
    # As a run of another seed would have it: all its links are others.
    changed(book, "UPDATE meta SET value = '2' WHERE key = 'seed'", links_too=True)
    client = int(certified[column]["claim"]["client"])
    with pytest.raises(Refused):
        check(text_of(certified[column]), book)
    for wrong in (client + 1, 10_000, "any"):
        false = deepcopy(certified[column])
        false["claim"]["client"] = str(wrong)
        with pytest.raises(Refused):
            check(text_of(false), run / "ledger.sqlite")


@pytest.mark.parametrize("name", ["count", "times", "scale", "colluders"])
def test_a_fact_that_the_ledger_does_not_tell_is_refused(
    run: Path, certified: dict[str, dict[str, Any]], name: str
) -> None:
    """Above all one report more: no tightness of epsilon would show it."""
    false = deepcopy(certified["sum"])
    first = false["facts"]["rounds"][0]
    holder = first["others"][0] if name == "count" else first
    change = {"count": 1, "times": -1, "colluders": -1}.get(name)
    before = float(holder[name])
    holder[name] = str(int(before) + change) if change else exact(before / 2)
    if holder[name] == "0":
        del false["facts"]["rounds"][0]
    with pytest.raises(Refused, match="facts: rounds not as the ledger has it"):
        check(text_of(false), run / "ledger.sqlite")


@pytest.mark.parametrize(("kind", "counted"), [("sum", 2), ("shuffled", 2), ("local", 4)])
def test_every_released_attempt_counts(book: Path, kind: str, counted: int) -> None:
    """And for whoever runs the server each that was reserved: its reports may have arrived."""

    def times() -> int:
        return sum(int(each["times"]) for each in ledger_facts(book, kind, 0)["rounds"])

    before = times()
    for more, released in ((100, "released"), (1000, "0")):
        columns = f"attempt + {more}, round, expected_reports, epsilon, {released}, present, link"
        added = f"INSERT INTO reservations SELECT {columns} FROM reservations"
        changed(book, added, links_too=True)
    assert times() == counted * before > 0


def test_words_of_the_commands(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, book = tmp_path / "claim.json", run / "ledger.sqlite"
    assert main(["certify", str(run), "--column", "sum", "--client", "5", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for words in ("client 5, sum: epsilon <= ", "certificate accepted: epsilon = ", "sha256 "):
        assert words in said
    assert f"fl-shuffle verify {out} --ledger {book}" in said
    assert main(["verify", str(out), "--ledger", str(book)]) == 0
    assert "facts: as the ledger has them, last link " in capsys.readouterr().out
    for wrong, why in (
        ([tmp_path], "not a run directory"),
        ([run, "--out", tmp_path], "cannot be wr"),
    ):
        assert main(["certify", *map(str, wrong)]) == 2
        assert why in capsys.readouterr().err


def test_what_has_no_certificate_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="client"):
        fs.certify(run, client=CLIENTS)
    with pytest.raises(RunError):
        fs.certify(tmp_path)
    laplace = Path(shutil.copytree(run, tmp_path / "laplace"))
    other = "UPDATE meta SET value = replace(value, '\"gaussian\"', '\"laplace\"')"
    changed(laplace / "ledger.sqlite", other, links_too=True)
    with pytest.raises(NotApplicableError, match="Gaussian"):
        fs.certify(laplace)


@pytest.mark.parametrize("colluders", [0, 1, 4, 9])
def test_the_sum_counts_what_the_accountant_counts(colluders: int) -> None:
    """V of every client against the package, steps far apart among them."""
    scale = np.array([1.0, 0.9, 3000.0, 2.0e5])
    grid = np.array([2.0**-16, 2.0**-16, 2.0**-4, 4.0])
    counts = np.array([3, 4, 2, 1])
    for own in range(4):
        others = [
            {"scale": exact(s), "radius": "1", "grid": exact(g), "count": str(n - (i == own))}
            for i, (s, g, n) in enumerate(zip(scale, grid, counts.tolist(), strict=True))
            if n - (i == own)
        ]
        entry = {"times": "1", "noise": "gaussian", "scale": exact(scale[own]), "radius": "1"}
        entry |= {"sensitivity": "1", "grid": exact(grid[own]), "colluders": str(colluders)}
        facts = {"dimension": "9", "rounds": [{**entry, "others": others}]}
        (each,) = rounds_of(Fields(facts, "facts"))
        found = hiding_variance(each)
        assert int(found.p) / int(found.q) == pytest.approx(mu_of("sum", facts) ** -2, rel=1e-12)


def test_colluders_are_those_in_the_smallest_balls() -> None:
    def groups(colluders: int) -> list[tuple[float, int]]:
        others = tuple(Group(1, r, 1, n) for r, n in ((3, 2), (1, 4), (2, 1)))  # type: ignore[arg-type]
        each = Round(1, 3, 1, 1, 6, others, colluders)  # type: ignore[arg-type]
        return [(float(r), n) for r, n in each.hiding()]

    assert groups(0) == [(1, 4), (2, 1), (3, 2)]
    assert groups(4) == [(2, 1), (3, 2)]
    assert groups(6) == [(3, 1)]
    assert groups(7) == groups(100) == []
    own = Round(1, 1, 1, 1, 1, (), 0)  # type: ignore[arg-type]
    assert not fits(own, Group(8, 1, 1, 1))  # type: ignore[arg-type]


def test_the_report_says_accepted_of_the_very_file_that_was_checked(
    book: Path, certified: dict[str, dict[str, Any]]
) -> None:
    folder, path = book.parent, book.with_name("certificate.json")
    link = certified["sum"]["facts"]["run"]["link"]

    def line(link: str = link) -> str:
        return certificate_line(folder, "gaussian", link)

    assert certificate_line(folder, "laplace", link).startswith("none can be written")
    assert line() == f"none yet: fl-shuffle certify {folder}"
    path.write_text(text_of(certified["sum"]), encoding="utf-8")
    assert "has not been checked" in line()
    assert verdict_of(path, book).startswith("ACCEPTED: ")
    assert line().startswith("certificate accepted: epsilon = ")
    assert f"fl-shuffle verify {path} --ledger " in line()
    assert "has not been checked" in line("0" * 64)  # of another ledger, or of this one later
    path.write_text(text_of(certified["local"]), encoding="utf-8")
    assert "has not been checked" in line()
    false = deepcopy(certified["sum"])
    false["claim"]["epsilon"] = "0.001"
    path.write_text(text_of(false), encoding="utf-8")
    assert verdict_of(path, book).startswith("REFUSED: ")
    assert "has not been checked" in line()


def test_a_broken_accountant_is_caught(run: Path, certified: dict[str, dict[str, Any]]) -> None:
    """A round forgotten, delta / 1.01: by the claim; a client too many: by the ledger alone."""
    written = certified["sum"]
    claim = written["claim"]
    epsilon, delta = float(claim["epsilon"]), float(claim["delta"])
    mu = mu_of("sum", written["facts"])
    assert gaussian_profile(epsilon, mu) == pytest.approx(delta, rel=1e-4)
    times = sum(int(r["times"]) for r in written["facts"]["rounds"])
    broken = {
        "a round forgotten": gaussian_epsilon(delta, mu * (1 - 1 / times) ** 0.5),
        "delta / 1.01": gaussian_epsilon(delta * 1.01, mu),
        "a client too many": gaussian_epsilon(delta, mu * (88 / 89) ** 0.5),
    }
    for name, found in broken.items():
        false = deepcopy(written)
        false["claim"]["epsilon"] = exact(float(found))
        with pytest.raises(Refused, match="only known to be at most"):
            check(text_of(false), run / "ledger.sqlite")
        if name == "a client too many":
            for r in false["facts"]["rounds"]:
                r["others"][0]["count"] = str(int(r["others"][0]["count"]) + 2)
            check(text_of(false))  # what such an accountant would state, and bear out
            with pytest.raises(Refused, match="not as the ledger has it"):
                check(text_of(false), run / "ledger.sqlite")


@pytest.mark.slow
def test_a_certificate_counts_every_report(tmp_path: Path) -> None:
    tables = {"run.rounds": 2, "data.clients": 20, "privacy.reports_per_round": 3}
    fs.simulate(overrides=tables, out=tmp_path / "run")
    ledger = tmp_path / "run" / "ledger.sqlite"
    rounds = ledger_facts(ledger, "local", 0)["rounds"]
    assert [each["times"] for each in rounds] == ["6"]
    written = text_of(fs.certify(tmp_path / "run", column="local", client=0))
    assert check(written, ledger).kind == "local"
    # What one report a round would spend is no claim about this run.
    fewer = written.replace('"times":"6"', '"times":"2"')
    assert fewer != written
    with pytest.raises(Refused):
        check(fewer, ledger)
