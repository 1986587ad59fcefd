"""`fl-shuffle runs`: the runs below a folder, side by side."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from fl_shuffle.report.formats import as_text
from fl_shuffle.report.many import find_runs, runs_table
from fl_shuffle.runs.console_messages import terminal_width


def run(arguments: Namespace) -> int:
    found = find_runs([Path(name) for name in arguments.directory])
    table = runs_table(found, with_settings=arguments.differences)
    print(as_text(table, arguments.format, terminal_width(sys.stdout)))
    return 0
