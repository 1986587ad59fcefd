"""What was spent: by round, by client, who reported when, and what must be known to read it. As
written in the run's ledger; --recount counts again and says where it differs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fl_shuffle.cli.options import flag, option
from fl_shuffle.run_words import say, tell, terminal_width

if TYPE_CHECKING:
    from fl_shuffle.report.record import RunRecord
    from fl_shuffle.report.tables import Columns

    MakeTable = Callable[[RunRecord], Columns]


SHOWN = 10
"""Clients that are named where the recount differs."""


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "run_directory", "RUN", "folders of runs", nargs="+")
    asked = parser.add_mutually_exclusive_group()
    option(asked, "--client", "ID", "one client's bill and rounds", type=int)
    flag(asked, "--clients", "every client's bill")
    option(asked, "--round", "N", "who reported in a round", type=int)
    flag(asked, "--notes", "the run's warnings and remarks")
    again = "count every client again; exit code 1 where the ledger says something else"
    flag(parser, "--recount", again)
    forms = ("table", "csv", "json", "parquet")
    how = "how to print it (default: table; parquet needs --out)"
    parser.add_argument("--format", default="table", choices=forms, help=how)
    where = "write it there instead of printing it; a folder: all four tables"
    option(parser, "--out", "FILE|DIR", where)


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import ConfigError
    from fl_shuffle.report.formats import as_text, write_table
    from fl_shuffle.report.record import read_run

    client, form, out = arguments.client, arguments.format, arguments.out
    if form == "parquet" and not out:
        raise ConfigError("--format parquet is no text; say where to write it with --out FILE")
    runs = [(path, read_run(path)) for path in map(Path, arguments.run_directory)]
    records = [record for _, record in runs]
    code = _recounted(runs) if arguments.recount else 0
    asked, make = _asked(arguments)
    if out and asked == "rounds" and not Path(out).suffix:  # a folder
        for written in _all_tables(arguments, records):
            print(written)
    elif out:
        write_table(_joined(records, make), Path(out), form)
    elif client is not None and form == "table":
        for path, record in runs:
            say(*_bill(arguments, path, record))
    elif arguments.notes and form == "table":
        for path, record in runs:
            say(*([f"{path}:"] if len(runs) > 1 else []), *map(_remark, record.ledger.notes))
    else:
        print(as_text(_joined(records, make), form, terminal_width(sys.stdout)))
    return code


def _recounted(runs: Sequence[tuple[Path, RunRecord]]) -> int:
    """Say on stderr whether ledgers hold what their rounds give when counted again."""
    code = 0
    for path, record in runs:
        tell(f"counting every client of {path} again")
        differing = record.differing
        said = "counted again: the ledger says the same"
        if len(differing) or not record.agrees:
            code = 1
            which = ", ".join(map(str, differing[:SHOWN].tolist())) or "none"
            more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
            said = (
                "COUNTED AGAIN, THE LEDGER SAYS SOMETHING ELSE: the largest epsilon "
                f"{record.recounted} (recorded {record.recorded}); clients that differ: {which}"
                f"{more}"
            )
        say(f"{path}: {said}", out=sys.stderr)
    return code


def _all_tables(arguments: argparse.Namespace, records: Sequence[RunRecord]) -> list[Path]:
    """Rounds, clients, attendance and notes as files of a folder."""
    from fl_shuffle.report.formats import make_folder, write_table
    from fl_shuffle.report.tables import TABLES

    folder, form = Path(arguments.out), arguments.format.replace("table", "csv")
    make_folder(folder)
    written = []
    for name, make in {**TABLES, "clients": _clients(arguments)}.items():
        written.append(folder / f"{name}.{form}")
        write_table(_joined(records, make), written[-1], form)
    return written


def _asked(arguments: argparse.Namespace) -> tuple[str, MakeTable]:
    """The table that is asked for: its name, and what makes it of a run."""
    from fl_shuffle.report.tables import TABLES, attendance_table

    if arguments.client is not None or arguments.round is not None:
        own = {"client": arguments.client, "round_number": arguments.round}
        return "attendance", partial(attendance_table, **own)
    if arguments.clients:
        return "clients", _clients(arguments)
    name = "notes" if arguments.notes else "rounds"
    return name, TABLES[name]


def _clients(arguments: argparse.Namespace) -> MakeTable:
    from fl_shuffle.report.tables import clients_table

    return partial(clients_table, recount=arguments.recount)


def _joined(records: Sequence[RunRecord], make: MakeTable) -> Columns:
    """One table; with several runs, their names stand in the first column."""
    import numpy as np

    found = [make(record) for record in records]
    if len(found) == 1:
        return found[0]
    sizes = [len(next(iter(table.values()))) for table in found]
    return {"run": np.repeat([record.name for record in records], sizes)} | {
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
        if not math.isnan(own[f"{name}_epsilon"])
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
