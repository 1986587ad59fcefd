"""The `fl-shuffle` command: what a user, a file or the machine can do wrong is one line.

What can be said is in `parsers`; what a command does in the module of its name."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from fl_shuffle._internal.interrupts import INTERRUPTED
from fl_shuffle._internal.interrupts.callbacks import interrupts_kept
from fl_shuffle._internal.plugins import requirements
from fl_shuffle.cli.parsers import SUBCOMMANDS, first_screen, parser_of
from fl_shuffle.cli.renamed import renamed
from fl_shuffle.errors import ConfigError, FlShuffleError, suggestion
from fl_shuffle.runs.console_messages import say
from fl_shuffle.version import __version__

REQUIRED = (
    "torch", "flwr", "numba", "cryptography", "mpmath", "rich", "safetensors", "scipy",
    "matplotlib", "jinja2",
)  # fmt: skip
MACHINE = {
    "embedded null": "a file's name holds the NUL character, which no name has: leave it out",
    "can't start new thread": (
        "the machine starts no more threads: raise its limits of memory (ulimit -v) or processes "
        "(ulimit -u), or lower run.jobs"
    ),
}
"""What Python says of a name or of threads, and what to do about it."""
CLIENT_LOG = "fl_shuffle.client"
"""What clients say, exceptions among it, is logged below this name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 done, 1 a run that failed, 2 bad input, 130 interrupted. Whatever a
    user, a file or the machine can do wrong is one line.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    log = logging.getLogger(CLIENT_LOG)
    level = log.level
    if "numpy" not in sys.modules:
        # `_internal.threads` says why; in a process of our own, and those that it starts.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with interrupts_kept():
            return _answered(words)
    except BrokenPipeError:
        # The reader of our output went away (for example `| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        return _said(str(interrupt) or "interrupted", INTERRUPTED)
    except Exception as error:
        line = _line(error, " ".join(words[:1]))
        if not line:
            raise
        if log.level == logging.DEBUG:
            traceback.print_exc()
        return _said(line, getattr(error, "exit_code", 2))
    finally:
        log.setLevel(level)


def _answered(words: Sequence[str]) -> int:
    """Return what a command does, or which there are."""
    (command, *rest), note = renamed(words or ["--help"])
    if note:
        say(note, out=sys.stderr)
    if command in ("-h", "--help", "--version"):
        say(*([f"fl-shuffle {__version__}"] if command == "--version" else first_screen()))
        return 0
    if command not in SUBCOMMANDS:
        hint = suggestion(command, SUBCOMMANDS) or f"there are {', '.join(SUBCOMMANDS)}"
        option = command.startswith("-")
        what = f"option {command!r} without a command" if option else f"command {command!r}; {hint}"
        raise ConfigError(f"no {what}; see fl-shuffle --help")
    arguments = parser_of(command).parse_args(rest)
    if arguments.verbose:
        logging.getLogger(CLIENT_LOG).setLevel(logging.DEBUG)
    code: int = import_module(f"fl_shuffle.cli.{command}").run(arguments)
    return code


def _line(error: Exception, command: str) -> str:
    """Return what a user, a file or the machine did wrong, in one line; none of a defect."""
    if isinstance(error, ModuleNotFoundError) and error.name in REQUIRED:
        # The accountant runs without these; an import that fails for another reason is a defect.
        listed = [each for each in requirements() if re.match(rf"{error.name}\b", each)]
        wanted = repr(listed[0]) if listed else error.name
        return f"{command} needs {error.name}, which is not installed; pip install {wanted}"
    if isinstance(error, sqlite3.Error):
        return f"a ledger cannot be used: {error}"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if isinstance(error, FlShuffleError | OSError) and not isinstance(error, BrokenPipeError):
        return str(error)
    # Python's own, of names and threads; anything else of these kinds is a defect.
    own = isinstance(error, ValueError | RuntimeError)
    return next((line for text, line in MACHINE.items() if own and text in str(error)), "")


def _said(text: str, code: int) -> int:
    with suppress(OSError):
        say(f"fl-shuffle: error: {' '.join(text.split())}", out=sys.stderr)
    return code
