"""Run directories that were damaged, mixed or edited between a crash and going on."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.chaos.children import command
from benchmarks.chaos.crashes import crashed
from benchmarks.chaos.federation import Federation
from benchmarks.chaos.tally import Tally
from fl_shuffle.ledger.reader import LedgerRecord

Damage = Callable[[Path, Path], object]
"""Does something to a run directory, given an older copy of it."""


def _change(name: str, change: Callable[[bytes], bytes]) -> Damage:
    """A file's content, if it is there, other than it was."""

    def write(run: Path, older: Path) -> None:
        if (run / name).exists():
            (run / name).write_bytes(change((run / name).read_bytes()))

    return write


def _cut(name: str, share: float) -> Damage:
    return _change(name, lambda content: content[: int(share * len(content))])


def _rubbish(name: str, content: bytes) -> Damage:
    return _change(name, lambda _: content)


def _edit(section: str, key: str, value: object) -> Damage:
    def edited(content: bytes) -> bytes:
        config = json.loads(content)
        config[section][key] = value
        return json.dumps(config).encode()

    return _change("config.json", edited)


def _sql(statement: str) -> Damage:
    def change(run: Path, older: Path) -> None:
        with closing(sqlite3.connect(run / "ledger.sqlite")) as database, database:
            database.execute(statement)

    return change


def _without(*names: str) -> Damage:
    def remove(run: Path, older: Path) -> None:
        for name in names:
            (run / name).unlink(missing_ok=True)

    return remove


LOG = ("ledger.sqlite-wal", "ledger.sqlite-shm")
LEDGER = ("ledger.sqlite", *LOG)


def _older(run: Path, older: Path) -> None:
    _without(*LEDGER)(run, older)
    for name in LEDGER:
        if (older / name).exists():
            shutil.copy(older / name, run / name)


DAMAGES: dict[str, Damage] = {
    "no ledger": _without(*LEDGER),
    "no log": _without(*LOG),
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
    witnessed = whole.witness.read_bytes()
    # What is known of the data is forgotten when the run finishes for the first time.
    resume = [*whole.resume(), "--data-unchanged"]
    for name in names:
        shutil.rmtree(whole.run)
        shutil.copytree(whole.folder / "kept", whole.run)
        whole.witness.write_bytes(witnessed)
        DAMAGES[name](whole.run, whole.folder / "older")
        whole.testify()
        ended = command(resume, whole.said)
        problem = tally.wrong(ended, 0, 2)
        if ended.code == 2:
            if len(ended.said.strip().splitlines()) != 1:
                problem = problem or f"not one line: {ended.said!r}"
            shutil.rmtree(whole.run)
            shutil.copytree(whole.folder / "kept", whole.run)
            problem = problem or tally.wrong(command(resume, whole.said), 0)
        tally.add(name, lost=whole.lost(), uncounted=whole.uncounted(), problem=problem)
    shutil.rmtree(whole.folder)
    return tally
