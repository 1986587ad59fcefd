"""Reports read back: every number on a page or in a table is the ledger's; several runs; many
clients; pictures; what cannot be read."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch, TempPathFactory

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.cli.ledger import _recounted, _spans
from fl_shuffle.configuration.sections import Config
from fl_shuffle.report import page as pages
from fl_shuffle.report.figures import LABELS, clients_distribution, run_figures
from fl_shuffle.report.formats import as_text, numeric, write_table
from fl_shuffle.report.history import QUANTILES
from fl_shuffle.report.many import differences, seed_groups
from fl_shuffle.report.meaning import Policy, best_guess, who_looks
from fl_shuffle.report.record import read_run
from fl_shuffle.report.tables import TABLES, clients_table
from fl_shuffle.runs.console_messages import odds_factor
from tests.crashes import Crashing
from tests.processes import printed
from tests.report.reading import Page
from tests.small_federation import Launch

SETTINGS = {
    "run.rounds": 2, "data.clients": 40, "training.participation": 0.6, "budgets.levels": 2,
    "run.jobs": 1, "privacy.unit": "client", "privacy.randomizer": "laplace",
}  # fmt: skip
COLUMNS = ["gspa", "su2025", "rdp", "shuffled", "sum", "local", "shuffled_lower", "sum_lower"]
ROUNDS = f"SELECT round, num_reports, {', '.join(COLUMNS)} FROM rounds ORDER BY round"
BILLS = """SELECT client_id, rounds, shuffled, sum, local, epsilon0, delta0, scale, radius, records
FROM client_spend JOIN clients USING (client_id) JOIN classes USING (class_id)"""


def simulated(folder: Path, **more: object) -> Path:
    settings = {**SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}
    fs.simulate("configs/digits_record.toml", overrides=settings, out=folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="module")
def runs(run: Path) -> list[Path]:
    """Two seeds of one federation, and the sums of another with tighter budgets."""
    tight = {"budgets__high": 0.8, "privacy__release": "sum", "privacy__randomizer": "gaussian"}
    two = simulated(run.parent / "two", run__seed=2)
    return [run, two, simulated(run.parent / "tight", **tight)]


def page(folders: Sequence[Path], out: Path, *options: str) -> Page:
    assert main(["report", *map(str, folders), "--out", str(out), *options]) == 0
    return Page(out.read_text(encoding="utf-8"))


def require_the_ledger(shown: Page, folder: Path, prefix: str) -> None:
    """Every number of a run's sections, compared with the run's own SQLite file."""
    with sqlite3.connect(folder / "ledger.sqlite") as database:
        bills = {client: bill for client, *bill in database.execute(BILLS)}
        rounds = database.execute(ROUNDS).fetchall()
    read, headline = shown.clients(prefix), 2 if fs.Result(folder).headline == "sum" else 1
    assert read == bills and len(bills) == 40
    assert list(read.values()) == sorted(read.values(), key=lambda row: -row[headline])
    assert shown.table(f"{prefix}clients-table").rows == [
        [client, *row] for client, row in read.items()
    ]
    assert shown.table(f"{prefix}rounds").rows == list(map(list, rounds))
    last = {column: value for column, value in zip(COLUMNS, rounds[-1][2:], strict=True) if value}
    bounds = shown.table(f"{prefix}bounds").rows
    assert [row[0] for row in bounds] == COLUMNS
    assert {row[0]: row[1] for row in bounds if row[1]} == pytest.approx(last, rel=1e-12)
    spent = shown.table(f"{prefix}spend")
    for name in ("shuffled", "sum"):
        at, own = spent.heads.index(LABELS[name]), 2 + COLUMNS.index(name)
        assert [row[at] for row in spent.rows] == [row[own] for row in rounds]
    shares = shown.table(f"{prefix}quantiles").rows
    assert [row[0] for row in shares] == ["shuffled", "sum", "local"]
    for (_, *values), own in zip(shares, np.array(list(bills.values())).T[1:], strict=False):
        assert values == pytest.approx(np.quantile(own, (0.1, 0.5, 0.9, 0.99, 1.0)).tolist())


def test_every_number_of_the_page_is_the_ledgers(run: Path, tmp_path: Path) -> None:
    shown = page([run], tmp_path / "page.html", "--policy", "0.1,100", "--purpose", "a <b> test")
    require_the_ledger(shown, run, "")
    result = fs.Result(run)
    worst = read_run(run).worst
    assert worst is not None
    profile = shown.table("profile")
    at = profile.heads.index(LABELS["shuffled"])
    seen = [(row[0], row[at]) for row in profile.rows if row[at] is not None]
    assert len(seen) > 20
    assert all(delta == worst.profile([epsilon])[0] for epsilon, delta in seen)
    local = result.summary["columns"]["local"]["epsilon"]
    assert shown.data == {
        "headline": result.epsilon, "local": pytest.approx(local, rel=1e-12),
        "sum": pytest.approx(result.sum_epsilon, rel=1e-12),
        "accuracy": pytest.approx(result.accuracy),
    }  # fmt: skip
    assert "a <b> test" in shown.text and "Grades follow the policy" in shown.text
    assert list(shown.data)[:2] == ["headline", "local"]
    assert "no guarantee for real data" in shown.text and "Read and accepted" not in shown.text
    assert str(result.summary["description"])[1:] in shown.text and shown.count["figure"] == 6
    assert "each of 40 clients was computed again" in shown.text


@pytest.mark.slow
def test_several_runs_side_by_side(runs: list[Path], tmp_path: Path) -> None:
    shown = page(runs, tmp_path / "page.html", "--policy", "0.1,100")
    results = [fs.Result(folder) for folder in runs]
    overview = shown.table("overview")
    assert overview.heads[4:] == [*COLUMNS, "policy", "policy, operator of the server"]
    for (_, *row, grade, operators), result in zip(overview.rows, results, strict=True):
        local = result.summary["columns"]["local"]["epsilon"]
        assert operators == Policy(0.1, 100).grade(local)
        bounds = [result.summary["columns"][name]["epsilon"] for name in COLUMNS]
        assert row[:3] == pytest.approx([100 * result.accuracy, result.epsilon, result.delta])
        assert row[3:] == [each and pytest.approx(each) for each in bounds]
        assert grade == "moderate"
    learnt = shown.table("together-accuracy")
    both = np.array([100 * result.metrics["accuracy"] for result in results[:2]])
    at = learnt.heads.index(f"1: {runs[0].name}, mean of 2 seeds")
    assert [row[at] for row in learnt.rows] == pytest.approx(both.mean(axis=0))
    assert [row[at + 1] for row in learnt.rows] == pytest.approx(both.std(axis=0, ddof=1))
    for number, folder in enumerate(runs, start=1):
        require_the_ledger(shown, folder, f"run{number}-")
    (seeds,) = shown.table("seeds").rows
    last = both[:, -1]
    assert seeds[1:] == [2, pytest.approx(last.mean()), pytest.approx(last.std(ddof=1))]
    assert "budgets.high" in shown.text and "add up" in shown.text


MANY = {
    "data__source": "benchmarks.jobs:records",
    "data__records_per_client": 1,
    "data__features": "none",
}


def test_many_clients_are_shown_page_by_page(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    clients = 3_000
    folder = simulated(tmp_path / "run", data__clients=clients, **MANY)
    shown, totals = page([folder], tmp_path / "page.html"), read_run(folder).totals
    assert (tmp_path / "page.html").stat().st_size < 200_000
    listed, first = shown.clients(), shown.table("clients-table")
    assert sorted(listed) == list(range(clients)) and "not listed" not in shown.text
    at = first.heads.index("shuffled") - 1
    assert [row[at] for row in listed.values()] == np.sort(totals.headline)[::-1].tolist()
    assert all(row[at] == totals.shuffled[client] for client, row in listed.items())
    assert first.rows == [[client, *row] for client, row in listed.items()][:50]
    assert f"{clients - 50:,} more rows are on the screen" in shown.text

    # Where they do not fit the least exposed are left out, and the page says how to see them.
    monkeypatch.setattr(pages, "CLIENT_BYTES", 10_000)
    shown = Page(pages.render([read_run(folder)]))
    kept = shown.clients()
    count = len(kept)
    assert 500 < count < clients
    # Who is exposed alike may stand in any order.
    assert all(listed[client] == row for client, row in kept.items())
    assert [row[at] for row in kept.values()] == [row[at] for row in listed.values()][:count]
    assert f"{count:,} of {clients:,} clients, the most exposed first" in shown.text
    assert f"{clients - count:,} less exposed clients are not listed" in shown.text
    assert clients_table(read_run(folder))["shuffled_epsilon"].tolist() == totals.headline.tolist()


@pytest.mark.slow
def test_pictures_and_numbers_for_papers(run: Path, tmp_path: Path) -> None:
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml", "csv": b"round"}
    forms = [part for form in starts for part in (f"--{form}", str(tmp_path / form))]
    page([run], tmp_path / "page.html", *forms)
    for form, start in starts.items():
        names = {path.stem for path in (tmp_path / form).iterdir()}
        assert names == {"spend", "history", "clients", "profile", "trade-off", "accuracy"}
        assert (tmp_path / form / f"spend.{form}").read_bytes().startswith(start)
    (spend, *_) = run_figures(read_run(run))
    with (tmp_path / "csv" / "spend.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in spend.table().items():
        assert [float(row[name] or "nan") for row in rows] == pytest.approx(values, nan_ok=True)


def test_a_run_that_released_nothing(launch: Launch, tmp_path: Path) -> None:
    assert launch("none", "privacy.target_epsilon=0.001") == 1
    shown = page([tmp_path / "none"], tmp_path / "page.html")
    assert "nothing has been spent" in shown.text and "svg" not in shown.count
    assert "above the target" in shown.text


def test_seeds_are_those_that_differ_in_nothing_else_that_counts() -> None:
    """Where a run lies, where its data do and how many threads it had change no number."""
    one, other = Config().to_dict(), Config().to_dict()
    other["run"] |= {"out": "elsewhere", "jobs": 3}
    other["data"] |= {"root": "/mnt/data"}
    assert differences([one, other, one]) == {}
    other["run"]["seed"] = 9
    assert differences([one, other]) == {"run.seed": [one["run"]["seed"], 9]}
    alike, apart, third = (SimpleNamespace(config=each) for each in (one, other, other))
    third.config = {**other, "server": {**other["server"], "learning_rate": 0.125}}
    runs: Any = [alike, apart, third]
    assert seed_groups(runs) == [[alike, apart], [third]]


def test_shares_of_clients_are_of_all_of_them() -> None:
    """Also of those whose epsilon is infinite, for whom there is no place on the axis."""
    proven = {
        "shuffled": np.array([2.0, 1.0, math.inf, 2.0]), "local": np.full(4, math.inf)
    }  # fmt: skip
    config = {"privacy": {"randomizer": "gaussian"}}
    run: Any = SimpleNamespace(proven_columns=proven, config=config, delta=1e-5)
    shown, nobody = clients_distribution(run).lines
    assert (shown.x.tolist(), shown.y.tolist()) == ([1.0, 2.0], [25.0, 75.0])
    assert not nobody.x.size and shown.steps


def test_a_policy_grades_by_its_two_limits() -> None:
    policy = Policy.parse("1, 8")
    assert [policy.grade(value) for value in (0.5, 1.0, 1.1, 8.0, 8.1, math.inf)] == [
        "strong", "strong", "moderate", "moderate", "weak", "weak",
    ]  # fmt: skip


LOOKS = {
    ("server", "reports", "shuffled"): ["shuffled", "local", "sum"],
    ("server", "sum", "sum"): ["sum", "local", "shuffled"],
    # Nothing is proven of the sums.
    ("server", "sum", "shuffled"): ["shuffled", "local"],
    ("separate", "reports", "shuffled"): ["shuffled", "local", "sum"],
    ("separate", "sum", "sum"): ["sum", "local", "shuffled"],
    ("server", "reports", "local"): ["local"],
}


@pytest.mark.parametrize("model", LOOKS, ids="-".join)
def test_who_looks_names_and_grades_each_attacker(model: tuple[str, str, str]) -> None:
    """The attacker of the headline first; the operator of a server that shuffles is second."""
    shuffler, release, headline = model
    said: Any = {"shuffled": 1.0, "sum": 0.5, "local": 40.0}
    said |= {"sum": None} if release == "sum" and headline == "shuffled" else {}
    columns = {name: SimpleNamespace(worst=value) for name, value in said.items()}
    privacy = {"release": release, "shuffler": shuffler}
    run: Any = SimpleNamespace(
        config={"privacy": privacy},
        spend=SimpleNamespace(columns=columns, headline_column=headline),
    )
    looks = who_looks(run, Policy(0.75, 2.0))
    assert [each.column for each in looks] == LOOKS[model]
    grades = {"shuffled": "moderate", "sum": "strong", "local": "weak"}
    assert [each.grade for each in looks] == [grades[name] for name in LOOKS[model]]
    assert [each.epsilon for each in looks] == [said[name] for name in LOOKS[model]]
    operator = "the operator of this server, which also shuffles"
    assert [each.who == operator for each in looks[1:2]] == [shuffler == "server"][: len(looks) - 1]
    assert all(each.grade == "" for each in who_looks(run, None))


def test_page_draws_quantiles_and_the_clients_asked_for(run: Path, tmp_path: Path) -> None:
    spent = fs.Result(run).ledger.history()
    shown = page([run], tmp_path / "page.html", "--client", "7", "--client", "12")
    (drawn,) = [each for each in run_figures(read_run(run)) if each.name == "history"]
    assert [line.label for line in drawn.lines] == list(QUANTILES)
    table = shown.table("history")
    assert table.heads == ["round", *QUANTILES, "client 7", "client 12"]
    rows = np.array(table.rows, dtype=float).T
    np.testing.assert_array_equal(rows[0], spent.round_numbers)
    wanted = np.quantile(spent.epsilon, list(QUANTILES.values()), axis=1)
    np.testing.assert_allclose(rows[1:6], wanted, rtol=1e-9)
    np.testing.assert_allclose(rows[6:], spent.epsilon[:, [7, 12]].T, rtol=1e-9)
    assert fs.Result(run).report(tmp_path / "other.html", clients=[7, 12]).read_text() == (
        (tmp_path / "page.html").read_text()
    )


def test_odds_and_guesses_are_what_the_definition_allows() -> None:
    """Randomized response with epsilon = ln 3, and a mechanism that fails with probability 1/10."""

    class Response:
        client, epsilon = 0, math.log(3.0)

        def profile(self, epsilons: Sequence[float]) -> np.ndarray:
            return np.maximum(0.0, 0.75 - np.exp(np.asarray(epsilons)) * 0.25)

        def trade_off(self, type_one: Sequence[float]) -> np.ndarray:
            raise NotImplementedError

    assert best_guess(Response()) == pytest.approx(0.75)
    assert odds_factor(math.log(3.0), 0.0) == pytest.approx(3.0)
    # Evidence of probability 1/100 without, 1/100 + 1/10 with: eleven times as probable.
    assert odds_factor(0.0, 0.1) == pytest.approx(11.0)


READ = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
import fl_shuffle as fs
from fl_shuffle.cli import main

run, page = sys.argv[2:]
for more in "--round 2 --format csv", "--notes", "--clients", f"--out {run}/tables":
    assert main(["ledger", run, *more.split()]) == 0, more
assert main(["runs", run]) == main(["runs", run, "--differences"]) == 0
assert "fl_shuffle.accounting.accountant" not in sys.modules
assert main(["ledger", run, "--client", "3", "--recompute"]) == 0
assert main(["report", run, run, "--out", page]) == 0
result = fs.Result(run)
print(result.ledger.client(3).epsilon, result.metrics["round"], result.report(page))
"""
"""Every way to read a run. What was written down alone is there without the accountant, too."""

DAMAGED = {
    "metrics": "INSERT INTO metrics VALUES (1, 'accuracy ', 'a lot')",
    "started": "UPDATE meta SET value = '\"then\"' WHERE key = 'started'",
    "finished": "UPDATE meta SET value = '\"soon\"' WHERE key = 'finished'",
    "libraries": "UPDATE meta SET value = '{\"numpy\": 2}' WHERE key = 'libraries'",
}
"""What somebody may have done to a ledger."""


def test_a_changed_client_is_reported(
    run: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    def said(*options: str, code: int = 0) -> tuple[list[dict[str, str]], str]:
        assert main(["ledger", str(copy), "--clients", "--format", "csv", *options]) == code
        printed = capsys.readouterr()
        return list(csv.DictReader(io.StringIO(printed.out))), printed.err

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    written, _ = said()
    counted, verdict = said("--recompute")
    assert counted == written and "the ledger says the same" in verdict
    with sqlite3.connect(copy / "ledger.sqlite") as database:
        database.execute("UPDATE client_spend SET shuffled = 2 * shuffled WHERE client_id = 7")
        database.execute("UPDATE rounds SET shuffled = shuffled / 2 WHERE round = 2")
    database.close()
    doubled, verdict = said()
    assert verdict == ""
    assert float(doubled[7]["shuffled_epsilon"]) == 2.0 * float(written[7]["shuffled_epsilon"])
    counted, verdict = said("--recompute", code=1)
    assert counted == written and "SOMETHING ELSE" in verdict and "differ: 7" in verdict
    # One of several is enough, wherever it stands.
    for folders in ([run, copy], [copy, run]):
        assert main(["ledger", *map(str, folders), "--recompute"]) == 1
        verdict = capsys.readouterr().err
        assert "the ledger says the same" in verdict and "differ: 7" in verdict
    shown = pages.render([read_run(copy)])
    assert "1 clients, counted again" in shown and "(the first is client 7)" in shown
    assert "the ledger records epsilon" in shown
    assert main(["ledger", str(copy), "--client", "7"]) == 0
    assert f"shuffled {float(doubled[7]['shuffled_epsilon']):.4g}" in capsys.readouterr().out


@pytest.mark.parametrize("many", [0, 1, 10, 11, 300])
def test_of_many_clients_that_differ_the_first_ten_are_named(
    many: int, capsys: CaptureFixture[str]
) -> None:
    """How many more there are is counted; a run whose largest epsilon alone differs has none."""
    found: Any = SimpleNamespace(
        directory="run", differing=np.arange(many), agrees=False, recounted=2.5, epsilon=2.0
    )
    assert _recounted(found) == 1
    named = ", ".join(map(str, range(min(many, 10)))) or "none"
    more = f" and {many - 10} more" if many > 10 else ""
    said = capsys.readouterr().err
    assert said.endswith(f"epsilon 2.5 (recorded 2.0); clients that differ: {named}{more}\n")


def test_reading_takes_neither_torch_nor_flower(run: Path, tmp_path: Path) -> None:
    missing = "torch,torchvision,flwr,grpc,ray,numba,pandas,safetensors"
    shown = tmp_path / "page.html"
    said = printed(sys.executable, "-c", READ, missing, str(run), str(shown))
    assert shown.is_file() and str(shown) in said
    bill = fs.Result(run).ledger.client(3)
    assert f"reported in {bill.rounds} rounds" in said
    assert f"shuffled {bill.epsilon:.4g}" in said
    assert said.startswith("round,attempt,client\n") and "\nassumption: " in said
    assert "after each round, counted again" in said


def numbers(cells: Iterable[Any]) -> list[float]:
    return [np.nan if cell is None or cell == "" else float(cell) for cell in cells]


def test_numbers_survive_csv_and_json(run: Path, tmp_path: Path) -> None:
    texts = ['100 % "of" it,\nonce', "", "nan"]
    odd = {"x": np.array([np.nan, np.inf, 1.5]), "%s": np.array(texts), "n": [None, -2, 3]}
    for table in (odd, *(make(read_run(run)) for make in TABLES.values())):
        named = json.loads(as_text(table, "json"))
        read = list(csv.DictReader(io.StringIO(as_text(table, "csv"))))
        for name, values in table.items():
            for shown in ([row[name] for row in read], [row[name] for row in named]):
                if isinstance(values, np.ndarray) and values.dtype.kind == "U":
                    assert shown == list(values)
                else:
                    np.testing.assert_array_equal(numbers(shown), numbers(values))
    write_table(odd, tmp_path / "t.csv", "csv")
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o600
    assert as_text({"x": np.empty(0)}, "json") == "[]"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("ledger run --client 40", "client = 40"),
        ("ledger run --round 9", "round = 9"),
        ("ledger run --format parquet", "--out FILE"),
        ("ledger run --format parquet --out table", "pip install 'pyarrow>=15'"),
        ("ledger run --out /dev/null/x", "cannot be used"),
        ("ledger nowhere", "not a run directory"),
        ("runs nowhere", "is not a directory"),
        ("runs empty", "there is no run"),
        ("report broken", "ledger"),
        ("report metrics", "metrics"),
        ("report started", "started of meta"),
        ("report finished", "finished of meta"),
        ("report libraries", "libraries of meta"),
        ("report run --out nowhere/page.html", "cannot be written"),
        ("report run run", "--out"),
        ("report run --policy 8,1", "STRONG <= MODERATE"),
        ("report run --policy a,b", "--policy"),
        ("report run --client 40", "client = 40"),
        ("report run --csv run/ledger.sqlite", "as a folder"),
    ],
)
def test_bad_input_is_one_line(
    command: str,
    text: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: MonkeyPatch,
    capsys: CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_shuffle._internal.plugins.installed", lambda library: False)
    shutil.copytree(run, "run")
    for name, change in DAMAGED.items():
        shutil.copytree(run, name)
        with sqlite3.connect(Path(name, "ledger.sqlite")) as database:
            database.execute(change)
        database.close()
    for name in ("broken", "empty"):
        Path(name).mkdir()
    Path("broken", "ledger.sqlite").write_text("not a database, but long enough to look")
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


def listed(folder: Path, capsys: CaptureFixture[str], *options: str) -> dict[str, dict]:
    capsys.readouterr()
    assert main(["runs", str(folder), "--format", "csv", *options]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {Path(row["run"]).name: row for row in rows}


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_an_interrupted_run_shows_what_it_cost_so_far(
    release: str, crash: Crashing, launch: Launch, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    wanted = f"privacy.release={release}"
    assert launch("whole", wanted, "run.rounds=2") == 0
    crash(2, wanted, name="stopped")
    crash(0, wanted, name="begun")
    rows, whole = listed(tmp_path, capsys), fs.Result(tmp_path / "whole")
    shown = [(name, row["state"], row["rounds"]) for name, row in sorted(rows.items())]
    begun, stopped = ("begun", "unfinished", "0/3"), ("stopped", "unfinished", "2/3")
    assert shown == [begun, stopped, ("whole", "finished", "2/2")]
    for name in ("whole", "stopped"):
        assert float(rows[name]["epsilon"]) == whole.epsilon
        assert float(rows[name]["accuracy"]) == whole.accuracy
        assert float(rows[name]["local"]) == whole.summary["columns"]["local"]["epsilon"]
    assert (rows["begun"]["epsilon"], rows["begun"]["accuracy"]) == ("", "")
    assert whole.headline == ("sum" if release == "sum" else "shuffled")
    rows = listed(tmp_path, capsys, "--differences")
    assert [json.loads(rows[name]["run.rounds"]) for name in ("whole", "begun")] == [2, 3]
    assert "run.out" not in rows["whole"] and "privacy.release" not in rows["whole"]


def test_columns_of_numbers_alone_are_numeric() -> None:
    """A number that is missing is none; Python calls what is true or false a whole number."""
    table = {
        "whole": [1, None, 3],
        "real": np.array([1.0, np.nan]),
        "flags": [True, False],
        "flags of NumPy": np.array([True]),
        "some flags": [1, True],
        "texts": ["1"],
        "some texts": [1.0, "-"],
    }
    assert dict(zip(table, numeric(table), strict=True)) == {
        "whole": True, "real": True, "flags": False, "flags of NumPy": False, "some flags": False,
        "texts": False, "some texts": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rounds", "said"),
    [([], "none"), ([4], "4"), ([1, 2, 3], "1-3"), ([1, 3, 4, 7, 9, 10, 11], "1, 3-4, 7, 9-11")],
)
def test_rounds_in_a_row_are_one_span(rounds: list[int], said: str) -> None:
    assert _spans(rounds) == said
