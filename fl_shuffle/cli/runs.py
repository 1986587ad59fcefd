"""List runs: what they were, how far they came, what they cost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_shuffle.cli.options import flag, option
from fl_shuffle.run_words import terminal_width


def configure(parser: argparse.ArgumentParser) -> None:
    where = "folders of runs, or folders that hold some (default: runs)"
    option(parser, "directory", "DIR", where, nargs="*", default=["runs"])
    forms = ("table", "csv", "json")
    parser.add_argument("--format", default="table", choices=forms, help="how to print it")
    flag(parser, "--differences", "show the settings in which the runs differ")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report.formats import as_text
    from fl_shuffle.report.many import find_runs, runs_table

    found = find_runs([Path(name) for name in arguments.directory])
    table = runs_table(found, with_settings=arguments.differences)
    print(as_text(table, arguments.format, terminal_width(sys.stdout)))
    return 0
