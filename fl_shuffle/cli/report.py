"""`fl-shuffle report`: one HTML page about runs, recomputed from their ledgers, or a sweep."""

from __future__ import annotations

import webbrowser
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fl_shuffle.cli.ledger import client_number
from fl_shuffle.errors import ConfigError
from fl_shuffle.report.draw import write_figures
from fl_shuffle.report.meaning import Policy
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.console_messages import tell
from fl_shuffle.sweeps.directory import DESCRIPTION, RUNS
from fl_shuffle.sweeps.results import SweepResult


def run(arguments: Namespace) -> int:
    sweeps = [name for name in arguments.run_directory if (Path(name) / DESCRIPTION).is_file()]
    if sweeps:
        return _sweep(arguments, sweeps[0])
    policy = None if arguments.policy is None else Policy.parse(arguments.policy)
    runs = [read_run(Path(name)) for name in arguments.run_directory]
    for record in runs:
        numbers = (client_number(record, asked) for asked in arguments.client)
        record.followed = tuple(dict.fromkeys(numbers))
    tell("counting every client again, and writing the page")
    out = None if arguments.out is None else Path(arguments.out)
    path = write_report(runs, out, policy=policy, purpose=arguments.purpose)
    return _finish(arguments, path, partial(write_figures, runs))


def _sweep(arguments: Namespace, name: str) -> int:
    """Write the page and the figure of one sweep."""
    if len(arguments.run_directory) > 1:
        raise ConfigError(
            f"{name} is a sweep: report it alone, or name runs in its directory {RUNS}/"
        )
    for option in ("policy", "purpose"):
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} applies to runs, but {name} is a sweep: leave it out")
    if arguments.client:
        raise ConfigError(f"--client applies to runs, but {name} is a sweep: leave it out")
    result = SweepResult(name)
    return _finish(arguments, result.report(arguments.out), result.figures)


def _finish(arguments: Namespace, page: Path, write: Callable[[Path, str], Sequence[Path]]) -> int:
    """Say where the page is, and write the figures in the formats that were asked for."""
    print(f"report: {page}")
    if arguments.open:
        webbrowser.open(page.resolve().as_uri())
    for form in ("png", "pdf", "svg", "csv"):
        asked = getattr(arguments, form)
        for written in write(Path(asked), form) if asked else ():
            print(written)
    return 0
