"""`fl-shuffle ledger`: what the ledgers of runs say about a client, a round, everybody."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fl_shuffle.run_words import say, tell, terminal_width

if TYPE_CHECKING:
    from fl_shuffle.report.record import RunRecord
    from fl_shuffle.report.tables import Table

SUMMARY = (
    "What was spent: by round, by client, who reported when, and what must be known to read it. As "
    "written in the run's ledger; --recount counts again and says where it differs."
)

SHOWN = 10
"""Clients that are named where the recount differs."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", nargs="+", help="folders of runs")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--client", type=int, metavar="ID", help="one client's bill and rounds")
    asked.add_argument("--clients", action="store_true", help="every client's bill")
    asked.add_argument("--round", type=int, metavar="N", help="who reported in a round")
    asked.add_argument("--notes", action="store_true", help="the run's warnings and remarks")
    parser.add_argument(
        "--recount", action="store_true",
        help="count every client again; exit code 1 where the ledger says something else",
    )  # fmt: skip
    parser.add_argument(
        "--format", default="table", choices=("table", "csv", "json", "parquet"),
        help="how to print it (default: table; parquet needs --out)",
    )  # fmt: skip
    parser.add_argument(
        "--out",
        metavar="FILE|DIR",
        help="write it there instead of printing it; a folder: all four tables",
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import ConfigError
    from fl_shuffle.report.formats import as_text, write_table
    from fl_shuffle.report.record import read_run

    if arguments.format == "parquet" and not arguments.out:
        raise ConfigError("--format parquet is no text; say where to write it with --out FILE")
    paths = [Path(name) for name in arguments.run_directory]
    records = [read_run(path) for path in paths]
    code = _recounted(paths, records) if arguments.recount else 0
    if arguments.out and _is_folder(arguments):
        for written in _all_tables(arguments, records):
            print(written)
        return code
    table = _joined(records, [_asked(arguments, record) for record in records])
    if arguments.out:
        write_table(table, Path(arguments.out), arguments.format)
    elif arguments.client is not None and arguments.format == "table":
        for path, record in zip(paths, records, strict=True):
            say(*_bill(arguments, path, record))
    elif arguments.notes and arguments.format == "table":
        for path, record in zip(paths, records, strict=True):
            say(*([f"{path}:"] if len(paths) > 1 else []), *map(_remark, record.ledger.notes))
    else:
        print(as_text(table, arguments.format, terminal_width(sys.stdout)))
    return code


def _recounted(paths: Sequence[Path], records: Sequence[RunRecord]) -> int:
    """Say on stderr whether ledgers hold what their rounds give when counted again."""
    code = 0
    for path, record in zip(paths, records, strict=True):
        tell(f"counting every client of {path} again")
        differing = record.differing
        if record.agrees and not len(differing):
            said = "counted again: the ledger says the same"
        else:
            code = 1
            which = ", ".join(map(str, differing[:SHOWN].tolist())) or "none"
            said = (
                f"COUNTED AGAIN, THE LEDGER SAYS SOMETHING ELSE: the largest epsilon "
                f"{record.recounted} (recorded {record.recorded}); clients that differ: {which}"
                + (f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else "")
            )
        say(f"{path}: {said}", out=sys.stderr)
    return code


def _is_folder(arguments: argparse.Namespace) -> bool:
    """Whether --out names a folder: nothing single is asked for, and the name has no ending."""
    single = arguments.client is not None or arguments.round is not None
    return not (single or arguments.clients or arguments.notes or Path(arguments.out).suffix)


def _all_tables(arguments: argparse.Namespace, records: Sequence[RunRecord]) -> list[Path]:
    """Rounds, clients, attendance and notes as files of a folder."""
    from fl_shuffle.errors import RunError
    from fl_shuffle.report.formats import write_table
    from fl_shuffle.report.tables import TABLES

    folder, form = Path(arguments.out), arguments.format
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    form = "csv" if form == "table" else form
    written = []
    for name, make in TABLES.items():
        written.append(folder / f"{name}.{form}")
        asked = _clients(arguments) if name == "clients" else make
        write_table(_joined(records, [asked(record) for record in records]), written[-1], form)
    return written


def _asked(arguments: argparse.Namespace, record: RunRecord) -> Table:
    from fl_shuffle.report import tables

    if arguments.client is not None:
        return tables.attendance_table(record, client=arguments.client)
    if arguments.round is not None:
        return tables.attendance_table(record, round_number=arguments.round)
    if arguments.clients:
        return _clients(arguments)(record)
    return tables.notes_table(record) if arguments.notes else tables.rounds_table(record)


def _clients(arguments: argparse.Namespace) -> Callable[[RunRecord], Table]:
    from fl_shuffle.report.tables import clients_table, recounted_clients_table

    return recounted_clients_table if arguments.recount else clients_table


def _joined(records: Sequence[RunRecord], found: Sequence[Table]) -> Table:
    """One table; with several runs, their names stand in the first column."""
    import numpy as np

    if len(found) == 1:
        return found[0]
    lengths = [len(next(iter(table.values()))) for table in found]
    names = np.repeat(np.array([record.name for record in records]), lengths)
    return {"run": names} | {
        name: np.concatenate([table[name] for table in found]) for name in found[0]
    }


def _bill(arguments: argparse.Namespace, path: Path, record: RunRecord) -> list[str]:
    """What one client spent in one run, in words."""
    from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
    from fl_shuffle.report.tables import attendance_table

    client = arguments.client
    rounds = attendance_table(record, client=client)["round"].tolist()
    own = {name: values[client] for name, values in _clients(arguments)(record).items()}
    meta = record.ledger.meta
    columns = [
        f"{name} {own[f'{name}_epsilon']:.4g}"
        for name in ("proven", "sum", "local")
        if own[f"{name}_epsilon"] == own[f"{name}_epsilon"]
    ]
    if record.config["privacy"]["release"] == "sum":
        removed = add_remove_of(record.config, own["sum_epsilon"], record.delta)
        columns += [] if removed is None else [f"{removed:.4g} is {ADD_REMOVE_WORDS}"]
    when = str(meta["started"]) + (f" to {meta['finished']}" if meta.get("finished") else "")
    return [
        f"{path}: client {client}, {when}",
        f"  asked for (epsilon, delta) = ({own['epsilon0']:.4g}, {own['delta0']:.2g}) a report; "
        f"{own['noise']} noise of scale {own['scale']:.4g} on {own['records']} records",
        f"  reported in {own['rounds']} rounds: {_spans(rounds)}",
        f"  spent, at delta = {own['delta']:g}: epsilon {', '.join(columns)}",
    ]


def _remark(note: tuple[int, str, str]) -> str:
    """A warning, an assumption or a remark of a run, and the round it belongs to."""
    number, kind, text = note
    said = text if text.startswith(kind) else f"{kind}: {text}"
    return f"round {number}, {said}" if number else said


def _spans(rounds: Sequence[int]) -> str:
    """Numbers in runs: 1-3, 5."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans) or "none"
