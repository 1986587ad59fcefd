"""`fl-shuffle report`: one HTML page about a run or several, recomputed from their ledgers."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from fl_shuffle.run_words import tell

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
    parser.add_argument("--open", action="store_true", help="show the page in your browser")
    parser.add_argument("--purpose", metavar="TEXT", help="what the runs were made for")
    for form in ("png", "pdf", "svg"):
        parser.add_argument(
            f"--{form}", metavar="DIR", help=f"write the figures as {form.upper()} there, too"
        )
    parser.add_argument("--csv", metavar="DIR", help="write the figures' numbers there, too")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report.draw import FORMS, write_figures
    from fl_shuffle.report.meaning import Policy
    from fl_shuffle.report.page import render, report_path, write_page
    from fl_shuffle.report.record import read_run

    folders = [Path(name) for name in arguments.run_directory]
    out = None if arguments.out is None else Path(arguments.out)
    policy = None if arguments.policy is None else Policy.parse(arguments.policy)
    path = report_path(folders, out)
    runs = []
    for folder in folders:
        tell(f"counting every client of {folder} again")
        runs.append(read_run(folder))
    tell("writing the page")
    print(f"report: {write_page(render(runs, policy=policy, purpose=arguments.purpose), path)}")
    if arguments.open:
        webbrowser.open(path.resolve().as_uri())
    for form in FORMS:
        asked = getattr(arguments, form)
        for written in write_figures(runs, Path(asked), form) if asked else ():
            print(written)
    return 0
