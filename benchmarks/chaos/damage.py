"""Run directories that were damaged, mixed or edited between a crash and going on."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.children import command
from benchmarks.chaos.crashes import crashed
from benchmarks.chaos.federation import Federation
from benchmarks.chaos.tally import Tally
from fl_shuffle.ledger.reader import LedgerRecord

Damage = Callable[[Path, Path], object]
"""Does something to a run directory, given an older copy of it."""


def _edit(section: str, key: str, value: object) -> Damage:
    def edit(run: Path, older: Path) -> None:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        config[section][key] = value
        (run / "config.json").write_text(json.dumps(config), encoding="utf-8")

    return edit


def _sql(statement: str) -> Damage:
    def change(run: Path, older: Path) -> None:
        with sqlite3.connect(run / "ledger.sqlite") as database:
            database.execute(statement)
        database.close()

    return change


def _cut(name: str, share: float) -> Damage:
    def cut(run: Path, older: Path) -> None:
        if (run / name).exists():
            content = (run / name).read_bytes()
            (run / name).write_bytes(content[: int(share * len(content))])

    return cut


def _older(run: Path, older: Path) -> None:
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"):
        (run / name).unlink(missing_ok=True)
        if (older / name).exists():
            shutil.copy(older / name, run / name)


def _without(*names: str) -> Damage:
    def remove(run: Path, older: Path) -> None:
        for name in names:
            (run / name).unlink(missing_ok=True)

    return remove


def _rubbish(name: str, content: bytes) -> Damage:
    def write(run: Path, older: Path) -> None:
        (run / name).write_bytes(content)

    return write


DAMAGES: dict[str, Damage] = {
    "no ledger": _without("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"),
    "no log": _without("ledger.sqlite-wal", "ledger.sqlite-shm"),
    "half a log": _cut("ledger.sqlite-wal", 0.5),
    "an older ledger": _older,
    "half a ledger": _cut("ledger.sqlite", 0.5),
    "no configuration": _without("config.json"),
    "half a configuration": _cut("config.json", 0.5),
    "no metrics": _without("metrics.csv"),
    "half a line of metrics": _cut("metrics.csv", 0.9),
    "metrics that are rubbish": _rubbish("metrics.csv", b"\0\xff,,,\n1,2\n"),
    "a summary that is rubbish": _rubbish("summary.json", b'{"rounds": '),
    "another learning rate": _edit("server", "learning_rate", 0.1),
    "another seed": _edit("run", "seed", 99),
    "another entropy": _edit("run", "entropy", "seeded"),
    "another partition": _edit("data", "partition", "ordered"),
    "another participation": _edit("training", "participation", 0.5),
    "another delta": _edit("privacy", "target_delta", 1e-2),
    "fewer rounds": _edit("run", "rounds", 1),
    "an attempt less": _sql("DELETE FROM reservations WHERE attempt = 1"),
    "a release less": _sql("UPDATE reservations SET released = 0 WHERE attempt = 1"),
    "rounds forgotten": _sql("DELETE FROM rounds"),
    "a checkpoint of rubbish": _sql("UPDATE checkpoint SET state = x'00'"),
    "more noise claimed": _sql("UPDATE classes SET scale = 100 * scale"),
}


def damages(folder: Path, names: Sequence[str] = tuple(DAMAGES)) -> Tally:
    """Each of these damages to a system run that was killed: it is refused in one line, or goes on
    and counts everything. Where it is refused, the files as they were before go on."""
    tally = Tally("damaged or edited directories")
    whole = Federation(folder / "whole", "system")
    crashed(whole, 1)
    shutil.copytree(whole.run, whole.folder / "older")
    crashed(whole, len(LedgerRecord(whole.run / "ledger.sqlite").attempts))
    shutil.copytree(whole.run, whole.folder / "kept")
    kept_witness = (whole.folder / "witness").read_bytes()
    # What is known of the data is forgotten when the run finishes for the first time.
    resume = [*whole.resume(), "--data-unchanged"]
    for name in names:
        shutil.rmtree(whole.run)
        shutil.copytree(whole.folder / "kept", whole.run)
        (whole.folder / "witness").write_bytes(kept_witness)
        DAMAGES[name](whole.run, whole.folder / "older")
        whole.testify()
        ended = command(resume, whole.said)
        problem = tally.said(ended.said)
        if ended.code == 2:
            if len(ended.said.strip().splitlines()) != 1:
                problem = problem or f"not one line: {ended.said!r}"
            shutil.rmtree(whole.run)
            shutil.copytree(whole.folder / "kept", whole.run)
            ended = command(resume, whole.said)
        if ended.code:
            problem = problem or f"exit code {ended.code}: {ended.said[-200:]!r}"
        lost = whole.lost() if whole.finished() else 1
        tally.add(name, lost=lost, uncounted=whole.uncounted(), problem=problem)
    shutil.rmtree(whole.folder)
    return tally


NONSENSE: tuple[Any, ...] = (
    None, "", "x", "nan", -1, 0, 2**62, -1.5, 1e308, float("inf"), b"", b"\0\xff" * 9, "[" * 50_000,
    "9" * 5000, "{}", "[]", "null", '"x"', "NaN", '{"a": {"b": []}}',
)  # fmt: skip


def cells(ledger: Path, folder: Path, seconds: float) -> Tally:
    """Nonsense in one cell of a finished run's ledger at a time, and a report of it; in a random
    order, until the time is up."""
    from fl_shuffle.errors import FlShuffleError
    from fl_shuffle.report import page
    from fl_shuffle.report.record import read_run

    tally = Tally("nonsense in a ledger's cell")
    folder.mkdir()
    place = folder / "ledger.sqlite"
    places = _places(ledger)
    random.Random(2).shuffle(places)
    deadline = time.monotonic() + seconds
    for table, column, row, value in places:
        if time.monotonic() > deadline:
            break
        shutil.copy(ledger, place)
        database = sqlite3.connect(place)
        try:
            key = _key(table)
            database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {key} = ?', (value, row))
            database.commit()
        except sqlite3.IntegrityError:
            continue
        finally:
            database.close()
        problem = ""
        try:
            page.render([read_run(folder)])
        except FlShuffleError as error:
            problem = "" if str(error) else "an error without a word"
        except Exception as error:
            tally.tracebacks += 1
            problem = f"{type(error).__name__}: {error}"
        tally.add(f"{table}.{column} = {str(value)[:30]!r}", problem=problem)
    return tally


def _key(table: str) -> str:
    return "round" if table in ("round_classes", "metrics") else "rowid"


def _places(ledger: Path) -> list[tuple[str, str, int, Any]]:
    database = sqlite3.connect(ledger)
    found = []
    try:
        tables = [name for (name,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'")]  # fmt: skip
        for value in NONSENSE:
            for table in tables:
                columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
                key = _key(table)
                rows = [row for (row,) in database.execute(f'SELECT {key} FROM "{table}"')]
                # Facts are one a row; elsewhere rows are alike.
                for row in rows if table == "meta" else rows[-1:]:
                    found += [(table, column, row, value) for column in columns]
    finally:
        database.close()
    return found
