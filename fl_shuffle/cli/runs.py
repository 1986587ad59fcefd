"""`fl-shuffle runs`: the runs below a folder, side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_shuffle.run_words import terminal_width

SUMMARY = "List runs: what they were, how far they came, what they cost."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", nargs="*", default=["runs"],
        help="folders of runs, or folders that hold some (default: runs)",
    )  # fmt: skip
    parser.add_argument(
        "--format", default="table", choices=("table", "csv", "json"), help="how to print it"
    )
    parser.add_argument(
        "--differences", action="store_true", help="show the settings in which the runs differ"
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report.formats import as_text
    from fl_shuffle.report.many import find_runs, runs_table

    found = find_runs([Path(name) for name in arguments.directory])
    table = runs_table(found, with_settings=arguments.differences)
    print(as_text(table, arguments.format, terminal_width(sys.stdout)))
    return 0
