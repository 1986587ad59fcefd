"""Where `fl-shuffle` begins: Ctrl-C is one line from here on.

Python's own start and the few lines before this one are out of reach: Ctrl-C there ends the program
with Python's traceback.
"""

from __future__ import annotations

import gc
import sys

from fl_shuffle._internal.interrupts import INTERRUPTED, LINE, LeavingAtOnce


def main() -> int:
    """Run the command line; returns its exit code."""
    try:
        with LeavingAtOnce():
            from fl_shuffle._internal.renamed import show_on_terminal
            from fl_shuffle.cli import main as command
        show_on_terminal()
        code = command()
        # To look for cycles among PyTorch's objects would take the end of the process a second.
        gc.freeze()
        return code
    except KeyboardInterrupt:  # between two handlers
        sys.stderr.write(LINE)
        return INTERRUPTED
