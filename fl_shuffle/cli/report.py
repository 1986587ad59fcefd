"""`fl-shuffle report`: one HTML page about a run, recomputed from its ledger."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Write a run's privacy report: one HTML page with tables and figures."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN_DIR", help="a run's folder")
    parser.add_argument(
        "--out", metavar="FILE.html", help="where to write it (default RUN_DIR/report.html)"
    )


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report import write_report

    out = None if arguments.out is None else Path(arguments.out)
    print(f"report: {write_report(Path(arguments.run_directory), out)}")
    return 0
