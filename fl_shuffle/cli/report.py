"""`fl-shuffle report`: one HTML page about a run or several, recomputed from their ledgers."""

from __future__ import annotations

import webbrowser
from argparse import Namespace
from pathlib import Path

from fl_shuffle.report.draw import write_figures
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.run_words import tell


def run(arguments: Namespace) -> int:
    policy = None if arguments.policy is None else Policy.parse(arguments.policy)
    runs = [read_run(Path(name)) for name in arguments.run_directory]
    tell("counting every client again, and writing the page")
    out = None if arguments.out is None else Path(arguments.out)
    path = write_report(runs, out, policy=policy, purpose=arguments.purpose)
    print(f"report: {path}")
    if arguments.open:
        webbrowser.open(path.resolve().as_uri())
    for form in ("png", "pdf", "svg", "csv"):
        asked = getattr(arguments, form)
        for written in write_figures(runs, Path(asked), form) if asked else ():
            print(written)
    return 0
