"""`fl-shuffle ledger`: what the ledgers of runs say about a client, a round, everybody."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fl_shuffle.simulation.progress import say, tell, terminal_width

if TYPE_CHECKING:
    from fl_shuffle.report.record import RunRecord
    from fl_shuffle.report.tables import Table

SUMMARY = "Ask the ledgers of runs: what a client has spent and when, who was in a round."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", nargs="+", help="folders of runs")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--client", type=int, metavar="ID", help="one client's bill and rounds")
    asked.add_argument("--clients", action="store_true", help="every client's bill")
    asked.add_argument("--round", type=int, metavar="N", help="who reported in a round")
    asked.add_argument("--notes", action="store_true", help="the run's warnings and remarks")
    parser.add_argument(
        "--format", default="table", choices=("table", "csv", "json", "parquet"),
        help="how to print it (default: table; parquet needs --out)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import ConfigError
    from fl_shuffle.report.formats import as_text, write_table
    from fl_shuffle.report.record import read_run

    if arguments.format == "parquet" and not arguments.out:
        raise ConfigError("--format parquet is no text; say where to write it with --out FILE")
    paths = [Path(name) for name in arguments.run_directory]
    records = []
    for path in paths:
        tell(f"counting every client of {path} again")
        records.append(read_run(path))
    table = _joined(paths, [_asked(arguments, record) for record in records])
    if arguments.out:
        write_table(table, Path(arguments.out), arguments.format)
        return 0
    if arguments.client is not None and arguments.format == "table":
        for path, record in zip(paths, records, strict=True):
            say(*_bill(path, record, arguments.client))
        return 0
    print(as_text(table, arguments.format, terminal_width(sys.stdout)))
    return 0


def _asked(arguments: argparse.Namespace, record: RunRecord) -> Table:
    from fl_shuffle.report import tables

    if arguments.client is not None:
        return tables.attendance_table(record, client=arguments.client)
    if arguments.round is not None:
        return tables.attendance_table(record, round_number=arguments.round)
    if arguments.clients:
        return tables.clients_table(record)
    return tables.notes_table(record) if arguments.notes else tables.rounds_table(record)


def _joined(paths: Sequence[Path], found: Sequence[Table]) -> Table:
    """One table; with several runs, their names stand in the first column."""
    import numpy as np

    if len(found) == 1:
        return found[0]
    lengths = [len(next(iter(table.values()))) for table in found]
    names = np.repeat(np.array([path.resolve().name for path in paths]), lengths)
    return {"run": names} | {
        name: np.concatenate([table[name] for table in found]) for name in found[0]
    }


def _bill(path: Path, record: RunRecord, client: int) -> list[str]:
    """What one client spent in one run, in words."""
    from fl_shuffle.report.tables import attendance_table, clients_table

    rounds = attendance_table(record, client=client)["round"].tolist()
    own = {name: values[client] for name, values in clients_table(record).items()}
    meta = record.ledger.meta
    columns = [
        f"{name} {own[f'{name}_epsilon']:.4g}"
        for name in ("proven", "sum", "local")
        if own[f"{name}_epsilon"] == own[f"{name}_epsilon"]
    ]
    when = str(meta["started"]) + (f" to {meta['finished']}" if meta.get("finished") else "")
    return [
        f"{path}: client {client}, {when}",
        f"  asked for (epsilon, delta) = ({own['epsilon0']:.4g}, {own['delta0']:.2g}) a report; "
        f"{own['noise']} noise of scale {own['scale']:.4g} on {own['records']} records",
        f"  reported in {own['rounds']} rounds: {_spans(rounds)}",
        f"  spent, at delta = {own['delta']:g}: epsilon {', '.join(columns)}",
    ]


def _spans(rounds: Sequence[int]) -> str:
    """Numbers in runs: 1-3, 5."""
    spans: list[list[int]] = []
    for number in rounds:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans) or "none"
