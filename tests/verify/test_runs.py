"""Certificates of runs, whose facts the verifier reads in the ledger itself; and of answers."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.client_classes import NOISE_KINDS, ClientClass
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.certificates.verdicts import ACCEPTED, certificate_line, verdict_of
from fl_shuffle.certificates.writing import exact, text_of
from fl_shuffle.cli import main
from fl_shuffle.ledger.store import first_hash, next_hash
from fl_shuffle.verify import ledger
from fl_shuffle.verify.claims import check
from fl_shuffle.verify.ledger import ledger_facts
from fl_shuffle.verify.reading import Refused
from tests.verify.made import ROUND, mu_of, replaced

Capture = pytest.CaptureFixture[str]
CLIENTS, REPORTS = 40, 2
SMALL = {
    "run.rounds": 2,
    "data.clients": CLIENTS,
    "budgets.levels": 2,
    "budgets.low": 20.0,
    "budgets.high": 40.0,
    "training.participation": 0.8,
    "privacy.target_delta": 1e-3,
    "privacy.assumed_honest": 0.9,
    "privacy.release": "sum",
    "privacy.reports_per_round": REPORTS,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fs.simulate(overrides=SMALL, out=folder)
    return folder


@pytest.fixture
def book(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's ledger, to be changed."""
    return Path(shutil.copy(run / "ledger.sqlite", tmp_path / "ledger.sqlite"))


@pytest.fixture(scope="module")
def certified(run: Path) -> dict[str, Any]:
    """Of the run's headline: what its sums say of the most exposed client."""
    return fs.certify(run)


@pytest.mark.parametrize("column", ["sum", "local"])
def test_a_run_is_certified_and_accepted_beside_its_ledger(run: Path, column: str) -> None:
    """As the accountant says it, of clients that were there and that were not: who else was, how
    often, and how many of them are honest, the verifier reads in the ledger."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        spent = dict(database.execute(f"SELECT client_id, {column} FROM client_spend").fetchall())
    assert len(set(spent.values())) > 2, "both levels of budgets, and somebody was absent"
    for client in range(0, CLIENTS, 7):
        written = fs.certify(run, client=client, column=column)
        found = check(text_of(written), run / "ledger.sqlite")
        assert (found.kind, found.client) == (column, str(client))
        claimed, says = float(written["claim"]["epsilon"]), spent[client]
        assert says * (1 - 1e-9) <= claimed <= says * (1 + 2e-5)


def changed(path: Path, statement: str, *, links_too: bool = False) -> None:
    """Change a ledger; with `links_too` as somebody who knows how links are made."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        if links_too:
            meta = {k: json.loads(v) for k, v in database.execute("SELECT key, value FROM meta")}
            kinds = database.execute("SELECT * FROM classes ORDER BY class_id")
            who = database.execute("SELECT class_id FROM clients ORDER BY client_id").fetchall()
            link = first_hash(meta, [ClientClass(*row) for _, *row in kinds], np.array(who)[:, 0])
            rows = database.execute("SELECT * FROM reservations ORDER BY attempt").fetchall()
            for *row, _ in rows:
                link = next_hash(link, tuple(row))
                new = "UPDATE reservations SET hash = ? WHERE attempt = ?"
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
        # As a run of another seed would have it.
        ("UPDATE meta SET value = '2' WHERE key = 'seed'", LINKS),
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
    book: Path, certified: dict[str, Any], statement: str, says: str
) -> None:
    text = text_of(certified)
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


@pytest.mark.parametrize(
    ("where", "to"),
    [
        (("claim", "client"), "39"),
        (("claim", "client"), "10000"),
        (("claim", "client"), "any"),
        ((*ROUND, "others", 0, "count"), "19"),
        ((*ROUND, "times"), "1"),
        ((*ROUND, "scale"), "3"),
        ((*ROUND, "colluders"), "0"),
    ],
)
def test_what_the_ledger_does_not_tell_is_refused(
    run: Path, certified: dict[str, Any], where: tuple[str | int, ...], to: str
) -> None:
    """Another client; of two reports in a round one; above all a report more among the others,
    which no tightness of epsilon would show."""
    with pytest.raises(Refused, match="client|facts: rounds not as the ledger has it"):
        check(text_of(replaced(certified, where, to)), run / "ledger.sqlite")


@pytest.mark.parametrize(("kind", "counted"), [("sum", 2), ("shuffled", 2), ("local", 4)])
def test_every_released_attempt_counts(book: Path, kind: str, counted: int) -> None:
    """And for whoever runs the server each that was reserved: its reports may have arrived."""

    def times() -> int:
        return sum(int(each["times"]) for each in ledger_facts(book, kind, 0).facts["rounds"])

    before = times()
    for more, released in ((100, "released"), (1000, "0")):
        columns = f"attempt + {more}, round, expected_reports, epsilon, {released}, present, hash"
        added = f"INSERT INTO reservations SELECT {columns} FROM reservations"
        changed(book, added, links_too=True)
    assert times() == counted * before > 0


def test_no_claim_is_about_discrete_noise() -> None:
    """Its byte in the chain is the accountant's; a claim about its run is refused."""
    assert ledger.NOISE == NOISE_KINDS
    config = {
        "training": {"schedule": "aggregate"},
        "server": {"analyzer": "mean"},
        "privacy": {"randomizer": "discrete-gaussian"},
    }
    for kind in ("local", "sum", "shuffled"):
        with pytest.raises(Refused, match="continuous noise, not discrete"):
            ledger.require_kind(kind, config)


@pytest.mark.parametrize(("bits", "refused"), [(0, False), (4, True)])
def test_no_claim_is_about_sums_of_reports_of_few_bits(bits: int, refused: bool) -> None:
    """Its proof takes a grid that is fine beside the noise. Ledgers before there were such reports
    do not name their bits."""
    config: dict[str, Any] = {
        "training": {"schedule": "aggregate"},
        "server": {"analyzer": "mean"},
        "privacy": {"randomizer": "gaussian", **({"report_bits": bits} if bits else {})},
    }
    for kind in ("local", "shuffled"):
        ledger.require_kind(kind, config)
    if not refused:
        ledger.require_kind("sum", config)
        return
    with pytest.raises(Refused, match="rounded to few bits: no 'sum'"):
        ledger.require_kind("sum", config)


def test_what_has_none_is_said(run: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "UPDATE meta SET value = replace(value, '\"gaussian\"', '\"laplace\"')"
    changed(book, other, links_too=True)
    for wrong, why in (
        ([run, "--client", CLIENTS], "must be one of the run's 40 clients"),
        ([run / "nowhere"], "not a run directory"),
        ([run, "--out", run], "cannot be written"),
        ([book.parent], "the run's reports are not Gaussian"),
    ):
        assert main(["certify", *map(str, wrong)]) == 2
        assert why in capsys.readouterr().err


def test_the_report_says_accepted_of_the_very_file_that_was_checked(
    book: Path, certified: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = book.parent, book.with_name("certificate.json")
    link = certified["facts"]["run"]["link"]
    verify = f"fl-shuffle verify {path} --ledger {book}"

    def line(link: str = link) -> str:
        return certificate_line(folder, "gaussian", link)

    assert certificate_line(folder, "laplace", link).startswith("none can be written")
    assert line() == f"none yet: fl-shuffle certify {folder}"
    assert main(["certify", str(folder), "--column", "sum", "--client", "5"]) == 0
    said = capsys.readouterr().out
    for words in ("client 5, sum: epsilon <= ", "certificate accepted: epsilon = ", verify):
        assert words in said
    assert line().startswith("certificate accepted: epsilon = ") and verify in line()
    assert "has not been checked" in line("0" * 64)  # of another ledger, or of this one later
    assert main(verify.split()[1:]) == 0
    assert "facts: as the ledger has them, last link " in capsys.readouterr().out
    path.write_text(text_of(fs.certify(folder, column="local")), encoding="utf-8")
    assert "has not been checked" in line()
    false = replaced(certified, ("claim", "epsilon"), "0.001")
    path.write_text(text_of(false), encoding="utf-8")
    assert verdict_of(path, book).startswith("REFUSED: ")
    assert "has not been checked" in line()


NOBODY = "warning: this run protects nobody: "


@pytest.mark.parametrize(
    ("key", "old", "new", "first"),
    [
        ("config", "", "", f"{NOBODY}its noise comes from a seed (run.entropy = 'seeded')"),
        ("config", '"seeded"', '"system"', "ACCEPTED: "),
        ("config", '"seeded"', '"chosen"', f"{NOBODY}its noise comes from a seed"),
        ("config", '"per-report"', '"per-sum"', f"{NOBODY}no client added noise"),
        ("records_not_covered", "0", "360", "warning: not covered are 360 private records"),
    ],
)
def test_ledger_that_weakens_the_claim_comes_first(
    book: Path, certified: dict[str, Any], capsys: Capture, key: str, old: str, new: str, first: str
) -> None:
    """As a run of that configuration would have it, and a certificate of that run."""
    if old:
        change = f"UPDATE meta SET value = replace(value, '{old}', '{new}') WHERE key = '{key}'"
        changed(book, change, links_too=True)
    if key != "config" or "per-report" in old:
        system = "UPDATE meta SET value = replace(value, '\"seeded\"', '\"system\"')"
        changed(book, system, links_too=True)
    link = ledger_facts(book, "sum", 0).facts["run"]["link"]
    path = book.with_name("certificate.json")
    path.write_text(text_of(replaced(certified, ("facts", "run", "link"), link)), encoding="utf-8")
    assert main(["verify", str(path), "--ledger", str(book)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(first) and sum(x.startswith("ACCEPTED: ") for x in said) == 1
    # The report repeats it.
    assert verdict_of(path, book).splitlines() == said
    line = certificate_line(book.parent, "gaussian", link)
    assert line.startswith("certificate accepted: epsilon = ")
    assert first == "ACCEPTED: " or first in line


def test_ledger_with_words_for_a_number_is_refused(book: Path, certified: dict[str, Any]) -> None:
    """They would be printed before the verdict."""
    words = json.dumps("360\nACCEPTED: epsilon = 0")
    changed(book, f"UPDATE meta SET value = '{words}' WHERE key = 'records_not_covered'")
    with pytest.raises(Refused, match="records_not_covered: not a whole number"):
        check(text_of(certified), book)


def test_ledger_that_never_ends_is_refused(
    book: Path, certified: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view may compute for ever; rows may be endless."""
    monkeypatch.setattr("fl_shuffle.verify.ledger.MOST_STEPS", 3)
    endless = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) "
    changed(book, "ALTER TABLE meta RENAME TO before")
    changed(book, f"CREATE VIEW meta AS {endless} SELECT max(n), 1 FROM x")
    with pytest.raises(Refused, match="cannot be read as a ledger: .*interrupted"):
        check(text_of(certified), book)


def test_several_reports_a_round_are_named(
    run: Path, certified: dict[str, Any], capsys: Capture
) -> None:
    assert check(text_of(certified), run / "ledger.sqlite").batches == REPORTS
    path = run / "several.json"
    path.write_text(text_of(certified), encoding="utf-8")
    main(["verify", str(path), "--ledger", str(run / "ledger.sqlite")])
    assert f"with {REPORTS} reports a round, each in a batch of its own" in capsys.readouterr().out
    silent = replaced(certified, ("facts", "run", "reports_per_round"), None)
    silent["assumptions"] = [each for each in silent["assumptions"] if each["id"] != "batches"]
    check(text_of(silent))
    with pytest.raises(Refused, match="facts: run not as the ledger has it"):
        check(text_of(silent), run / "ledger.sqlite")


def test_a_certificate_that_is_refused_is_exit_code_one(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verdict, code in (("REFUSED: delta", 1), ("accepted", 1), (f"{ACCEPTED}epsilon", 0)):
        monkeypatch.setattr(
            "fl_shuffle.certificates.verdicts.verdict_of", lambda *_, said=verdict: said
        )
        assert main(["certify", str(book.parent), "--column", "local"]) == code
    capsys.readouterr()


def test_a_broken_accountant_is_caught(run: Path, certified: dict[str, Any]) -> None:
    """A round forgotten, delta / 1.01: by the claim; a client too many: by the ledger alone."""
    false = deepcopy(certified)
    claim, rounds, ledger = false["claim"], false["facts"]["rounds"], run / "ledger.sqlite"
    epsilon, delta = float(claim["epsilon"]), float(claim["delta"])
    mu, times = mu_of("sum", false["facts"]), sum(int(each["times"]) for each in rounds)
    assert gaussian_profile(epsilon, mu) == pytest.approx(delta, rel=1e-4)
    for broken in (
        gaussian_epsilon(delta, mu * (1 - 1 / times) ** 0.5),
        gaussian_epsilon(1.01 * delta, mu),
        gaussian_epsilon(delta, mu * (88 / 89) ** 0.5),
    ):
        claim["epsilon"] = exact(float(broken))
        with pytest.raises(Refused, match="only known to be at most"):
            check(text_of(false), ledger)
    # What an accountant of too many would state, and bear out.
    more = replaced(false, (*ROUND, "others", 0, "count"), "23")
    check(text_of(more))
    with pytest.raises(Refused, match="not as the ledger has it"):
        check(text_of(more), ledger)


# --- Answers of `bound` ---------------------------------------------------------------------------

GAUSSIAN = "--clients 200 --delta 1e-4 --randomizer gaussian --unit client --sigma"
RECORDS = "--clients 200 --delta 1e-4 --randomizer gaussian --unit record"
KRR = "--randomizer krr --epsilon0 1 --delta 1e-6"


def drawn(number: int) -> tuple[str, str, float]:
    """The held-out question of this number, at random; its certificate's kind, and how tight."""
    draw = random.Random(f"held out {number}")
    clients = int(10 ** draw.uniform(1.3, 5))
    question = f"--clients {clients} --delta {draw.choice((1, 2, 5))}e-{draw.randint(3, 8)}"
    if number % 3 == 0:
        rounds = draw.choice((1, 1, 1, draw.randint(2, 50)))
        k, epsilon0 = draw.choice((2, 3, 10, 1000)), round(draw.uniform(0.2, 4), 3)
        question += f" --randomizer krr --k {k} --epsilon0 {epsilon0} --rounds {rounds}"
        return question, "finite", 0.005
    unit = draw.choice(("client", f"record --records {draw.randint(2, 60)}"))
    question += f" --randomizer gaussian --sigma {round(draw.uniform(2.5, 30), 3)} --unit {unit}"
    if number % 3 == 1:
        return f"{question} --rounds 1", "shuffled", math.inf
    return f"{question} --release sum --rounds {draw.randint(1, 500)}", "sum", 1e-5


@pytest.mark.parametrize(
    ("question", "kind", "within"),
    [
        (f"{GAUSSIAN} 4 --release sum --rounds 5", "sum", 1e-5),
        # One record of any client: each one's sensitivity is stated.
        (f"{RECORDS} --records 20 --sigma 4 --release sum --rounds 5", "sum", 1e-5),
        (f"{KRR} --k 4 --clients 1000", "finite", 0.005),
        pytest.param(f"{GAUSSIAN} 4", "shuffled", 0.005, marks=pytest.mark.slow),
        # Noise so wide that the page proves more than the Gram order's boxes.
        pytest.param(f"{GAUSSIAN} 400", "shuffled", 0.005, marks=pytest.mark.slow),
        *(pytest.param(*drawn(number), marks=pytest.mark.slow) for number in range(300, 312)),
    ],
)
def test_an_answer_has_a_certificate_that_is_accepted(
    question: str, kind: str, within: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "claim.json", question.split()
    assert main(["bound", *words, "--json", "--certificate", str(file)]) == 0
    printed = float(json.loads(capsys.readouterr().out)["epsilon"])
    written = json.loads(file.read_text(encoding="utf-8"))
    claimed = float(written["claim"]["epsilon"])
    assert written["claim"]["kind"] == kind and file.stat().st_size < 1 << 20
    clients = int(words[words.index("--clients") + 1])
    for each in written["facts"].get("rounds", []):
        assert [other["count"] for other in each["others"]] == [str(clients - 1)]
    # What already holds at epsilon zero is printed, and certified, as zero.
    assert claimed <= (1 + within) * printed if claimed > 0 else printed == 0
    assert kind == "shuffled" or claimed >= 0.999 * printed
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"ACCEPTED: epsilon = {claimed:.6g}")
    assert main(["bound", *words, "--certificate", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_answer_without_one_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claim.json"
    for question in (
        "--randomizer laplace --epsilon0 1 --unit client --clients 100 --delta 1e-4",
        f"{KRR} --k 4 --clients 1000 --participation 0.5",
        "--randomizer oue --k 4 --epsilon0 1 --clients 99 --delta 1e-4",
    ):
        assert main(["bound", *question.split(), "--certificate", str(file)]) == 2
        assert "certificate" in capsys.readouterr().err.strip().splitlines()[-1]
        assert not file.exists()
