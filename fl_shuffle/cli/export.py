"""`fl-shuffle export`: a run's ledger as files that other programs read."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_shuffle.simulation.progress import tell

SUMMARY = "Write a run's ledger as tables: rounds, clients, attendance, notes."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--format", default="csv", choices=("csv", "json", "parquet"), help="default: csv"
    )
    parser.add_argument("--out", metavar="DIR", help="where to (default: RUN/export)")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import RunError
    from fl_shuffle.report.formats import write_table
    from fl_shuffle.report.record import read_run
    from fl_shuffle.report.tables import TABLES

    source = Path(arguments.run_directory)
    tell(f"counting every client of {source} again")
    record = read_run(source)
    folder = Path(arguments.out) if arguments.out else source / "export"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    for name, make in TABLES.items():
        path = folder / f"{name}.{arguments.format}"
        write_table(make(record), path, arguments.format)
        print(path)
    return 0
