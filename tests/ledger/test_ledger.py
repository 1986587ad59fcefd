"""What a run keeps: its ledger, the files that are views of it, and a directory of its own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch, approx

import fl_shuffle as fs
from fl_shuffle._internal.durable_files import UNFINISHED, replace_file, replace_text
from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.ledger import store
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger, first_hash, next_hash
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.report.tables import participation_table
from fl_shuffle.runs import directory
from fl_shuffle.runs.directory import RunDirectory, RunPlace
from fl_shuffle.runs.resume import STATE_VARIABLE, continued_config, recall_data
from fl_shuffle.runs.views import summary_of, summary_text
from fl_shuffle.verify.claims import check
from tests.crashes import SYSTEM, Crash, Crashing, Refused, opened, released, resume
from tests.small_federation import Launch, Play, model_bytes, rows, stored, summary


def dying(*_: Any) -> NoReturn:
    raise Crash


def repeated(folder: Path) -> tuple[Any, Any]:
    """Round 1 of 12 clients is released twice, round 2 once; masks of everybody and of those
    without client 0."""
    everybody, present = np.ones(12, dtype=bool), np.arange(12) > 0
    with opened(folder, 12) as run:
        ledger = run.ledger
        # An attempt that ended before its reports left the shuffler.
        ledger.reserve(1, 12, 99.0)
        assert released(folder) == []
        # A second attempt, released without client 0; then a third, after a crash, with everybody.
        for mask in (present, everybody):
            ledger.reserve(1, 12, 99.0)
            ledger.record(run.accountant.preview(1, mask).spend, mask)
        # Sequential reports are used as they come: reserved is released.
        ledger.reserve(2, 11, 99.0, present)
    return everybody, present


def test_every_release_stays_on_the_bill_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    everybody, present = repeated(folder)
    assert released(folder) == [(1, 2, 11), (1, 3, 12), (2, 4, 11)]
    attempts = LedgerRecord(folder).attempts
    assert [(number, unusable) for number, _, unusable in attempts] == [(1, 0), (1, 0), (2, 0)]
    for (_, found, _), mask in zip(attempts, (present, everybody, present), strict=True):
        assert (found == mask).all()


def test_participation_tells_the_releases_of_a_round_apart(tmp_path: Path) -> None:
    """A client's rows, a round's and all of them number the releases of each round alike."""
    repeated(tmp_path / "run")
    run = read_run(tmp_path / "run")
    rows = [(1, 1, client) for client in range(1, 12)] + [(1, 2, client) for client in range(12)]
    rows += [(2, 1, client) for client in range(1, 12)]
    for client in (None, 0, 11):
        for number in (None, 1, 2):
            table = participation_table(run, client=client, round_number=number)
            found = list(zip(*(column.tolist() for column in table.values()), strict=True))
            assert list(table) == ["round", "attempt", "client"]
            assert found == [
                row for row in rows if client in (None, row[2]) and number in (None, row[0])
            ]
    # And so does the view: of what was reserved and never released nobody is there.
    seen = stored(tmp_path / "run", "SELECT round, client_id FROM participation")
    assert sorted(seen) == sorted((number, client) for number, _, client in rows)


def test_a_release_is_recorded_under_its_own_attempt(tmp_path: Path) -> None:
    """Two writers of one ledger (which the lock prevents): the second one's attempts are its own,
    and the first one releases nothing more."""
    everybody = np.ones(4, bool)
    with opened(tmp_path / "run", 4) as run:
        first = run.ledger
        spend, later = (run.accountant.preview(number, everybody).spend for number in (1, 2))
        first.reserve(1, 4, 1.0)
        second = Ledger(first.path)
        second.reserve(1, 4, 1.0)
        for ledger, known in ((first, [(1, 1, 4)]), (second, [(1, 1, 4), (1, 2, 4)])):
            ledger.record(spend, everybody)
            ledger.flush()
            assert released(tmp_path / "run") == known
        with pytest.raises(RunError, match="another process"):
            first.reserve(2, 4, 1.0)
        with pytest.raises(RunError, match="not the one under way"):
            first.record(later, everybody)
        second.close()


def test_commits_of_a_real_run_outlive_the_machine(tmp_path: Path) -> None:
    """SQLite's own levels: 2 syncs at every commit, 1 at checkpoints, which is enough for rounds
    that are played again from the seed."""
    with opened(tmp_path / "run", 4) as run:
        path = run.ledger.path
        (level,) = run.ledger._db.execute("PRAGMA synchronous").fetchone()
        assert level == 2
    for replayed in (False, True):
        with closing(Ledger(path, replayed=replayed)) as ledger:
            (level,) = ledger._db.execute("PRAGMA synchronous").fetchone()
            assert level == (1 if replayed else 2)


def test_a_whole_file_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """With all of its bytes; and its name is there before anybody is told."""
    done, sync, replace = list[tuple[str, int]](), os.fsync, os.replace

    def synced(descriptor: int) -> None:
        found = os.fstat(descriptor)
        name = "folder" if stat.S_ISDIR(found.st_mode) else "file"
        done.append((name, found.st_size if name == "file" else 0))
        sync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append((f"{source.name} -> {target.name}", 0))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    for text in ("a text", "another"):
        replace_text(tmp_path / "x", text)
        renamed = f"x{UNFINISHED} -> x"
        assert done == [("file", len(text)), (renamed, 0), ("folder", 0)]
        done.clear()


@pytest.mark.parametrize("before", [None, 0o700, 0o755, 0o777])
def test_a_runs_folder_is_its_owners_alone_whoever_made_it(
    tmp_path: Path, before: int | None
) -> None:
    """Also one that stood open, with what is left of a process that died in it."""
    folder = tmp_path / "run"
    if before is not None:
        folder.mkdir()
        (folder / f"ledger.sqlite{UNFINISHED}").touch()
        folder.chmod(before)
    claimed = RunDirectory.claim(folder)
    claimed.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        directory.LOCK: 0o600
    }


def test_a_finished_ledger_holds_nothing_that_was_replaced(tmp_path: Path) -> None:
    """Pages of earlier states would tell how often one was written, so how fast rounds were."""
    everybody, folder = np.ones(4, dtype=bool), tmp_path / "run"
    states = [bytes([number]) * 50_000 for number in range(1, 5)]
    with opened(folder, 4) as run:
        for number, state in enumerate([*states, b"last"], start=1):
            run.ledger.reserve(number, 4, 99.0)
            run.ledger.record(run.accountant.preview(number, everybody).spend, everybody)
            run.ledger.checkpoint(number, state)
        run.ledger.finish(run.accountant.client_totals(), 5, {}, {})
        content = run.ledger.path.read_bytes()
    assert b"last" in content and not any(state[:500] in content for state in states)
    assert stored(folder, "PRAGMA freelist_count") == [(0,)]


def test_an_interrupted_record_is_none(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Ctrl-C between two statements: what is then closed does not hold half a round."""
    everybody, insert = np.ones(4, dtype=bool), store.insert

    def half(database: sqlite3.Connection, table: str, found: Any) -> None:
        insert(database, table, found)
        dying()

    with opened(tmp_path / "run", 4) as run:
        run.ledger.reserve(1, 4, 1.0)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(store, "insert", half)
            run.ledger.record(run.accountant.preview(1, everybody).spend, everybody)
    assert stored(tmp_path / "run", "SELECT * FROM rounds") == []
    assert stored(tmp_path / "run", "SELECT released FROM reservations") == [(0,)]


@pytest.mark.parametrize(
    "place",
    ["runs.resume.remember_data", "ledger.store.create_tables", "ledger.store.insert",
     "ledger.store.fill"],
)  # fmt: skip
def test_killed_while_the_ledger_is_made(
    place: str, tmp_path: Path, launch: Launch, monkeypatch: MonkeyPatch
) -> None:
    """Nothing has begun, the directory can be used again."""

    def leave(path: Path, write: Callable[[Path], None]) -> None:
        """As a killed process would: nothing is tidied up."""
        try:
            replace_file(path, write)
        finally:
            path.with_name(path.name + UNFINISHED).write_bytes(b"SQLite format 3\0 and no more")
            path.with_name(path.name + UNFINISHED + "-journal").write_bytes(b"")

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(f"fl_shuffle.{place}", dying)
        patch.setattr(store, "replace_file", leave)
        launch("run")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()
    with pytest.raises(RunError, match="stopped before it began"):
        RunDirectory.at(RunPlace(tmp_path / "run", "yes"), tmp_path)
    assert launch("run") == 0
    assert not list((tmp_path / "run").glob(f"*{UNFINISHED}*"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def half(unfinished: Path) -> None:
        unfinished.write_text("aft")
        raise Crash

    with pytest.raises(Crash):
        replace_file(path, half)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["file"]
    replace_text(path, "after")
    assert path.read_text() == "after" and path.stat().st_mode & 0o777 == 0o600


def test_torn_files_lose_nothing(crash: Crashing, refused: Refused, play: Play) -> None:
    """Nobody reads what is not the ledger; a summary that was lost is written again."""
    run, whole = crash(2), play("whole")
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"seed": 5', '"seed": 6'))
    (run / "metrics.csv").write_text("round,n_rep")
    assert resume(run) == 0
    assert model_bytes(run) == model_bytes(whole)
    assert (run / "config.json").read_text() == config
    told = [[{**row, "seconds": ""} for row in rows(folder)] for folder in (run, whole)]
    assert told[0] == told[1] and len(told[0]) == 3
    final = summary(run)
    (run / "summary.json").write_text('{"rounds": 3, "proven')
    assert "finished" in refused(run)
    assert summary(run) == final
    assert final["ledger_hash"] == LedgerRecord(run).hash


@pytest.mark.parametrize(
    "kind",
    [
        ("run.entropy=seeded", "run.evaluate_every=2"),
        (SYSTEM, "privacy.release=sum", "training.participation=0.7"),
        ("run.entropy=seeded", "privacy.target_epsilon=0.001"),
    ],
)
def test_the_files_are_what_the_ledger_says(
    kind: tuple[str, ...], launch: Launch, tmp_path: Path
) -> None:
    assert launch("run", *kind) in (0, 1)
    run = tmp_path / "run"
    view = RunView(run)
    for known, line in zip(view.lines, rows(run), strict=True):
        for name in view.columns:
            value = known.get(name)
            wanted = "" if value is None else approx(value, abs=1e-6)
            assert (float(line[name]) if line[name] else "") == wanted
    assert json.loads(summary_text(summary_of(view))) == summary(run)
    assert view.config == json.loads((run / "config.json").read_text())


def test_nobody_misses_them(play: Play, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """Result, `runs`, report and ledger after all of them are gone: the same numbers."""
    run = play("run", SYSTEM)
    before = fs.Result(run)
    table, page = dict(before.metrics), write_report([read_run(run)]).read_text()
    for name in ("metrics.csv", "summary.json", "config.json"):
        (run / name).unlink()
    after = fs.Result(run)
    assert after.summary == before.summary and after.config == before.config
    np.testing.assert_equal(dict(after.metrics), table)
    assert write_report([read_run(run)]).read_text() == page
    capsys.readouterr()
    assert main(["runs", str(tmp_path)]) == 0
    assert "finished" in capsys.readouterr().out
    assert main(["ledger", str(run), "--client", "3"]) == 0


def test_participation_has_the_bit_order_that_is_documented(play: Play) -> None:
    """Client k is bit 7 - k % 8 of byte k // 8, as numpy.packbits has it."""
    run = play("run", "training.participation=0.5")
    seen = set(stored(run, "SELECT round, client_id FROM participation"))
    wanted = {
        (number, client)
        for number, bits in stored(run, "SELECT round, present FROM reservations")
        for client in range(12)
        if bits is None or bits[client // 8] & (128 >> client % 8)
    }
    assert seen == wanted and len(wanted) < 36


ROUND_CLASSES = """
CREATE TABLE round_classes (
    round INTEGER NOT NULL, class_id INTEGER NOT NULL, n_reports INTEGER NOT NULL, gspa REAL,
    specific REAL, proven REAL, sum REAL, local REAL, lower REAL, sum_lower REAL,
    PRIMARY KEY (round, class_id)
) WITHOUT ROWID"""


NAMES_OF_0_2 = (
    ("rounds", "num_reports", "n_reports"), ("rounds", "shuffled", "proven"),
    ("rounds", "shuffled_lower", "lower"), ("rounds", "su2025", "gspa_specific"),
    ("client_spend", "shuffled", "proven"), ("reservations", "hash", "link"),
)  # fmt: skip
ATTENDANCE_OF_0_2 = """
CREATE VIEW attendance AS
    SELECT round, attempt, client_id FROM reservations CROSS JOIN clients
    WHERE released AND (present IS NULL OR 1 & (
        instr('123456789ABCDEF', substr(hex(substr(present, client_id / 8 + 1, 1)),
            client_id % 8 / 4 + 1, 1)) >> (3 - client_id % 4)))"""


def by_old_names(told: dict[str, Any]) -> dict[str, Any]:
    """A summary, or an outcome, as version 0.2 has it."""
    columns = {"shuffled": "proven", "shuffled_lower": "lower", "su2025": "specific"}
    names = {
        "shuffled_epsilon": "proven_epsilon", "min_reports_per_round": "fewest_reports",
        "description": "in_plain_words", "tightness": "proven_over_lower",
        "ledger_hash": "ledger_link",
    }  # fmt: skip
    found = {names.get(name, name): value for name, value in told.items()}
    for name in ("columns", "epsilon_quantiles"):
        found[name] = {columns.get(key, key): value for key, value in found[name].items()}
    if "headline" in found:
        found["headline"] = columns.get(found["headline"], found["headline"])
    return found


def as_version_0_2(run: Path, schema: int = 6, **facts: Any) -> None:
    """Make a ledger what version 0.2 would have written, or one with these facts (None: without),
    of this schema."""
    known = LedgerRecord(run / "ledger.sqlite")
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database, database:
        for view in ("attendance", "participation"):
            database.execute(f"DROP VIEW {view}")
        database.execute("ALTER TABLE rounds DROP COLUMN rdp")
        for table, new, old in NAMES_OF_0_2:
            database.execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
        database.execute(ATTENDANCE_OF_0_2)
        database.execute(ROUND_CLASSES)
        listed = "INSERT INTO round_classes (round, class_id, n_reports) SELECT round, 0, 1"
        database.execute(f"{listed} FROM rounds")
        meta = {k: json.loads(v) for k, v in database.execute("SELECT key, value FROM meta")}
        meta["link"] = meta.pop("hash")
        meta |= {**facts, "schema": schema}
        for name in ("outcome", "summary"):
            if meta.get(name):
                meta[name] = by_old_names(meta[name])
        meta = {key: value for key, value in meta.items() if value is not None}
        meta["link"] = link = first_hash(meta, known.classes, known.class_of)
        database.execute("DELETE FROM meta")
        fill = [(key, json.dumps(value)) for key, value in meta.items()]
        database.executemany("INSERT INTO meta VALUES (?, ?)", fill)
        for *row, _ in database.execute("SELECT * FROM reservations ORDER BY attempt").fetchall():
            link = next_hash(link, tuple(row))
            database.execute("UPDATE reservations SET link = ? WHERE attempt = ?", (link, row[0]))


def as_version_0_1(run: Path) -> None:
    """Make a ledger what version 0.1 would have written."""
    config = json.loads((run / "config.json").read_text())
    config["app"] = {
        "server": "fl_shuffle.apps.server:app", "client": "fl_shuffle.apps.client:app",
    }  # fmt: skip
    gone = ("outcome", "metrics", "unit", "release", "assumed_honest", "delta", "report_grid")
    final = json.loads((run / "summary.json").read_text())
    as_version_0_2(run, 5, config=config, summary=final, **dict.fromkeys(gone))
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database, database:
        database.execute("DROP TABLE metrics")


def test_a_run_of_version_0_1_is_read_and_not_gone_on_with(play: Play) -> None:
    run = play("run")
    now = fs.Result(run)
    table, accuracy = dict(now.metrics), read_run(run).accuracy
    as_version_0_1(run)
    old = fs.Result(run)
    assert old.summary == now.summary and old.config == now.config
    for name, values in table.items():
        np.testing.assert_allclose(old.metrics[name], values, rtol=1e-9)
    assert read_run(run).agrees and read_run(run).accuracy == approx(accuracy, rel=1e-9)
    assert main(["report", str(run)]) == main(["ledger", str(run), "--client", "3"]) == 0
    with pytest.raises(RunError, match="schema 5"):
        Ledger(run / "ledger.sqlite")


LAPLACE = ("privacy.randomizer=laplace", "budgets.distribution=constant", "budgets.epsilon=1.0")


def shown(run: Path) -> list[dict[str, str]]:
    """The lines of metrics.csv but for times."""
    return [{**row, "seconds": ""} for row in rows(run)]


def test_a_finished_run_of_version_0_2_is_read_as_it_is(play: Play) -> None:
    run = play("run", *LAPLACE)
    now = fs.Result(run)
    as_version_0_2(run)
    before = (run / "ledger.sqlite").read_bytes()
    old = fs.Result(run)
    for name in set(now.metrics) - {"rdp_epsilon"}:
        np.testing.assert_array_equal(old.metrics[name], now.metrics[name])
    assert np.isnan(old.metrics["rdp_epsilon"]).all()
    assert old.epsilon == now.epsilon and main(["ledger", str(run)]) == 0
    assert (run / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize(("reports", "entropy"), [(LAPLACE, "seeded"), ((), "system")])
def test_a_run_of_version_0_2_goes_on_as_if_it_were_of_this_one(
    reports: tuple[str, ...], entropy: str, crash: Crashing, tmp_path: Path
) -> None:
    """The new column of old rounds is what this version would have written, and the chain stays
    the old one, also where rounds are added."""
    settings = (*reports, f"run.entropy={entropy}", "training.participation=0.7")
    run = crash(2, *settings)
    shutil.copytree(run, tmp_path / "new")
    links = stored(run, "SELECT hash FROM reservations")
    as_version_0_2(run)
    assert stored(run, "SELECT link FROM reservations") != links
    old = stored(run, "SELECT attempt, released, link FROM reservations WHERE released")
    assert resume(run, "--set", "run.rounds=4") == 0
    assert resume(tmp_path / "new", "--data-unchanged", "--set", "run.rounds=4") == 0
    now = stored(run, "SELECT attempt, released, hash FROM reservations WHERE released")
    assert now[: len(old)] == old and len(now) >= 4
    columns = [name for name in rows(run)[0] if name.endswith("epsilon")]
    if entropy == "seeded":
        assert shown(run) == shown(tmp_path / "new")
    else:  # who reports is drawn anew
        for ours, theirs in zip(rows(run)[:2], rows(tmp_path / "new")[:2], strict=True):
            assert [ours[name] for name in columns] == [theirs[name] for name in columns]
    assert [bool(row["rdp_epsilon"]) for row in rows(run)] == [bool(reports)] * 4
    assert not stored(run, "SELECT name FROM sqlite_master WHERE name = 'round_classes'")
    assert LedgerRecord(run).meta["schema"] == 7 and read_run(run).agrees
    if not reports:
        claim = fs.certify(run, client=3, column="local")
        assert check(json.dumps(claim), run / "ledger.sqlite").client == "3"


@pytest.mark.parametrize("at", ["DROP TABLE", "INSERT OR REPLACE INTO meta", "COMMIT"])
def test_an_upgrade_is_whole_or_none(at: str, crash: Crashing, monkeypatch: MonkeyPatch) -> None:
    run = crash(2, *LAPLACE)
    as_version_0_2(run)
    before = list(contents(run))

    class Dying(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
            if statement.startswith(at):
                raise Crash
            return super().execute(statement, *given)

        def executemany(self, statement: str, *given: Any) -> sqlite3.Cursor:
            if statement.startswith(at):
                raise Crash
            return super().executemany(statement, *given)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(store.sqlite3, "connect", partial(sqlite3.connect, factory=Dying))
        resume(run)
    assert list(contents(run)) == before
    assert resume(run) == 0 and LedgerRecord(run).meta["schema"] == 7
    assert [bool(row["rdp_epsilon"]) for row in rows(run)] == [True] * 3


def contents(run: Path) -> Iterator[tuple[Any, ...]]:
    """Everything in a ledger."""
    yield from stored(run, "SELECT name, sql FROM sqlite_master ORDER BY name")
    for (table,) in stored(run, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        yield from stored(run, f"SELECT * FROM {table}")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_runs_started_in_the_same_second(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "stamp", lambda: "now")
    made = [RunDirectory.create(tmp_path / "runs").path for _ in range(3)]
    assert [path.name for path in made] == ["now", "now-2", "now-3"]


def test_a_second_process_is_turned_away(
    launch: Launch, crash: Crashing, refused: Refused, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    """Whether it begins a run there or goes on with one."""
    told = f"in use by process {os.getpid()};"
    taken = RunDirectory.claim(tmp_path / "run")
    assert launch("run") == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    taken.close()
    run = crash(1)
    taken = RunDirectory.at(RunPlace(run, "yes"), tmp_path)
    assert told in refused(run)
    taken.close()
    before = (run / "ledger.sqlite").read_bytes()
    assert launch("run", "run.seed=8") == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (run / "ledger.sqlite").read_bytes() == before
    assert resume(run) == 0


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for name, words in (("file", "is a file"), ("full", "not empty")):
        with pytest.raises(RunError, match=words):
            RunDirectory.claim(tmp_path / name)
    with pytest.raises(RunError, match="cannot be used"):
        RunDirectory.create(tmp_path / "file")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "broken" / "ledger.sqlite").write_text("")
    with pytest.raises(RunError, match="not a readable ledger"):
        continued_config(tmp_path / "broken")


def test_where_a_run_goes_travels_as_flower_configuration(tmp_path: Path) -> None:
    for place in (RunPlace(), RunPlace(tmp_path), RunPlace(tmp_path, "data-unchanged")):
        assert RunPlace.of(place.run_config()) == place
    assert RunPlace.of({"resume": ""}) == RunPlace()
    told = r"^--run-config resume='yes' needs .*: add run-directory='FOLDER' to --run-config"
    with pytest.raises(ConfigError, match=told):
        RunPlace.of({"resume": "yes"})
    told = r"^--run-config resume = 'maybe': must be one of no, yes, data-unchanged"
    for folder in ("x", ""):
        with pytest.raises(InvalidValueError, match=told):
            RunPlace.of({"resume": "maybe", "run-directory": folder})


def test_folders_are_refused_in_the_words_of_who_named_them(tmp_path: Path) -> None:
    """`flwr run` has neither --out nor --resume."""
    run, empty = tmp_path / "run", tmp_path / "empty"
    run.mkdir(), empty.mkdir()
    (run / "ledger.sqlite").write_text("")
    for place, here, by_flower in (
        (RunPlace(run), r"^--out .*run already holds a run; .* or --resume it$",
         r"^--run-config run-directory='.*run' already holds a run; .* or add resume='yes' "),
        (RunPlace(empty, "yes"), r"^--resume .*empty: there is no .* start it with --out$",
         r"^--run-config run-directory='.*empty': there is no .* start it without resume$"),
    ):  # fmt: skip
        for flwr, told in ((False, here), (True, by_flower)):
            with pytest.raises(RunError, match=told):
                RunDirectory.at(place, tmp_path, flwr=flwr)


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_only_the_owner_may_read_a_run(
    entropy: str, play: Play, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    seen: set[str] = set()
    rounds = Schedule.participants

    def looking(self: Schedule, number: int, least: int) -> object:
        for path in (tmp_path / "run").iterdir():
            seen.add(path.name)
            assert mode(path) == 0o600, path
        return rounds(self, number, least)

    monkeypatch.setattr(Schedule, "participants", looking)
    umask = os.umask(0)
    try:
        run = play("run", f"run.entropy={entropy}")
        assert main(["report", str(run)]) == 0
    finally:
        os.umask(umask)
    assert {"ledger.sqlite-wal", "ledger.sqlite-shm"} <= seen
    assert mode(run) == 0o700 and {mode(path) for path in run.iterdir()} == {0o600}


def test_data_that_cannot_be_compared_must_be_vouched_for(
    crash: Crashing, refused: Refused, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """As on another machine: the state folder does not know the run. What is known of its data is
    private, and stays in that folder: rounds may be added to a finished run."""
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    run = crash(1)
    [known] = (tmp_path / "state" / "data").iterdir()
    assert mode(known) == 0o600 and mode(known.parent) == 0o700 and recall_data(known.name)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "elsewhere"))
    error = refused(run)
    for words in ("cannot be verified here", "--data-unchanged", STATE_VARIABLE):
        assert words in error
    assert resume(run, "--data-unchanged") == 0
    assert sum("without a check that the data" in text for text in summary(run)["warnings"]) == 1
    crash(1, name="known")
    assert resume(tmp_path / "known") == 0
    assert len(list((tmp_path / "elsewhere" / "data").iterdir())) == 1
    assert recall_data("../../etc/passwd") is None
    # Without a home folder it is the same line.
    for name in (STATE_VARIABLE, "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda user: {}[user])
    assert "cannot be verified here" in refused(crash(1, name="homeless"))


@pytest.mark.parametrize(
    ("headline", "column"),
    [("sum", "sum_lower"), ("shuffled", "shuffled_lower"), ("local", "shuffled_lower")],
)
def test_the_attack_beside_the_headline_is_one_on_what_was_released(
    headline: str, column: str
) -> None:
    """One on shuffled reports may reach more than is claimed of sums."""
    view: Any = SimpleNamespace(headline=headline, spent=lambda name: name)
    lower: Any = RunView.lower
    assert lower.fget(view) == column
