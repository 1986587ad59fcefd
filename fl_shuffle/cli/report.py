"""Write the privacy report of a run, or of several side by side, as one HTML page."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from fl_shuffle.cli.options import flag, option
from fl_shuffle.run_words import tell

FIGURES = {
    **{form: f"write the figures as {form.upper()} there, too" for form in ("png", "pdf", "svg")},
    "csv": "write the figures' numbers there, too",
}


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "run_directory", "RUN", "folders of runs", nargs="+")
    where = "where to write it (default, for one run: in its folder)"
    option(parser, "--out", "FILE.html", where)
    grades = "epsilons up to which your policy calls a guarantee strong, and moderate"
    option(parser, "--policy", "STRONG,MODERATE", grades)
    flag(parser, "--open", "show the page in your browser")
    option(parser, "--purpose", "TEXT", "what the runs were made for")
    for form, help in FIGURES.items():
        option(parser, f"--{form}", "DIR", help)


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.report.draw import write_figures
    from fl_shuffle.report.meaning import Policy
    from fl_shuffle.report.page import write_report
    from fl_shuffle.report.record import read_run

    policy = None if arguments.policy is None else Policy.parse(arguments.policy)
    runs = [read_run(Path(name)) for name in arguments.run_directory]
    tell("counting every client again, and writing the page")
    out = None if arguments.out is None else Path(arguments.out)
    path = write_report(runs, out, policy=policy, purpose=arguments.purpose)
    print(f"report: {path}")
    if arguments.open:
        webbrowser.open(path.resolve().as_uri())
    for form in FIGURES:
        asked = getattr(arguments, form)
        for written in write_figures(runs, Path(asked), form) if asked else ():
            print(written)
    return 0
