"""`fl-shuffle report`: one HTML page about a run or several, recomputed from their ledgers."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "Write the privacy report of a run, or of several side by side, as one HTML page."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", nargs="+", help="folders of runs")
    parser.add_argument(
        "--out", metavar="FILE.html", help="where to write it (default, for one run: in its folder)"
    )
    parser.add_argument(
        "--policy",
        metavar="STRONG,MODERATE",
        help="epsilons up to which your policy calls a guarantee strong, and moderate",
    )
    parser.add_argument("--purpose", metavar="TEXT", help="what the runs were made for")
    parser.add_argument("--png", metavar="DIR", help="write the figures as PNG there, too")
    parser.add_argument("--pdf", metavar="DIR", help="write the figures as PDF there, too")
    parser.add_argument("--csv", metavar="DIR", help="write the figures' numbers there, too")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report import Policy, write_report
    from fl_shuffle.report.plots import FORMS, write_figures
    from fl_shuffle.report.record import read_run

    folders = [Path(name) for name in arguments.run_directory]
    out = None if arguments.out is None else Path(arguments.out)
    policy = None if arguments.policy is None else Policy.parse(arguments.policy)
    path = write_report(folders, out, policy=policy, purpose=arguments.purpose)
    print(f"report: {path}")
    wanted = {form: getattr(arguments, form) for form in FORMS}
    if any(wanted.values()):
        runs = [read_run(folder) for folder in folders]
        for form, folder in wanted.items():
            for written in write_figures(runs, Path(folder), form) if folder else ():
                print(written)
    return 0
