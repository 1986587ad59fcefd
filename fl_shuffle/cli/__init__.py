"""The `fl-shuffle` command. Each subcommand is a module with `configure` and `run`; its
docstring is what its help says.

Subcommand modules keep their top-level imports light (no torch, flwr, scipy): help is instant.
"""

from __future__ import annotations

import argparse
import logging
import os
import sqlite3
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from fl_shuffle.cli.renamed import renamed
from fl_shuffle.errors import ConfigError, FlShuffleError, suggestion
from fl_shuffle.interrupts import INTERRUPTED
from fl_shuffle.interrupts.callbacks import interrupts_kept
from fl_shuffle.run_words import say
from fl_shuffle.version import __version__

COMMANDS = {
    "run": {
        "new": "write a Flower app of your own that runs",
        "simulate": "run a federation and account for its privacy, round by round",
        "sweep": "the same over a grid of settings and seeds",
    },
    "read": {
        "runs": "which runs there are, what they cost, how they differ",
        "ledger": "what every round and client cost; CSV, JSON, Parquet",
        "report": "one page about a run, or several; figures for papers",
    },
    "privacy": {
        "bound": "what shuffled reports cost, or what a configuration will",
        "certify": "a certificate of a run's epsilon",
        "verify": "check a certificate without any of our accounting",
        "audit": "try to break the privacy claims",
        "settings": "every setting of a configuration: default, range, meaning",
    },
    "deploy": {"shuffler": "the shuffler as a party of its own"},
}
"""Group -> command -> what it does. Its module here has its name, and is loaded when it is asked
for."""
SUBCOMMANDS = tuple(name for group in COMMANDS.values() for name in group)
FIRST_STEPS = (
    "fl-shuffle simulate runs the quickstart; then fl-shuffle report with the folder it names. "
    "What a command takes: fl-shuffle COMMAND --help."
)
REQUIRED = (
    "torch", "flwr", "numba", "cryptography", "mpmath", "rich", "safetensors", "scipy",
    "matplotlib", "jinja2",
)  # fmt: skip

TYPES = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a count or a share, as 500 or 0.8",
}
"""What `argparse` calls by the name of a function."""
MACHINE = {
    "null byte": "a file's name holds the NUL character, which no name has: leave it out",
    "null character": "a file's name holds the NUL character, which no name has: leave it out",
    "can't start new thread": (
        "the machine starts no more threads: raise its limits of memory (ulimit -v) or processes "
        "(ulimit -u), or lower run.jobs"
    ),
}
"""What Python says of a name or of threads, and what to do about it."""
CLIENT_LOG = "fl_shuffle.client"
"""What clients say, exceptions among it, is logged below this name."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of the command does."""

    def error(self, message: str) -> NoReturn:
        for type_name, wanted in TYPES.items():
            message = message.replace(f"invalid {type_name} value:", f"must be {wanted}, not")
        self.exit(2, f"fl-shuffle: error: {message}; see {self.prog} --help\n")

    def parse_args(self, *given: Any, **named: Any) -> Any:
        """As `argparse` does; of an option that there is not, the nearest that there is."""
        parsed, rest = self.parse_known_args(*given, **named)
        if rest:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            near = suggestion(rest[0].partition("=")[0], options) if rest[0][:1] == "-" else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}" + f"; {near}" * bool(near))
        return parsed


def parser_of(command: str) -> argparse.ArgumentParser:
    """The options of one command, whose module alone is loaded."""
    module = import_module(f"fl_shuffle.cli.{command}")
    parser = _Parser(prog=f"fl-shuffle {command}", description=module.__doc__)
    module.configure(parser)
    parser.add_argument(
        "--verbose", action="store_true", help="show where an error comes from, and its causes"
    )
    parser.set_defaults(run=module.run)
    return parser


def _first_screen() -> list[str]:
    """The commands in groups."""
    width = max(map(len, SUBCOMMANDS))
    lines = ["usage: fl-shuffle COMMAND ...", ""]
    for group, commands in COMMANDS.items():
        heads = [group, *[""] * (len(commands) - 1)]
        for head, (name, summary) in zip(heads, commands.items(), strict=True):
            lines.append(f"{head:<8} {name:<{width}}  {summary}")
    return [*lines, "", *textwrap.wrap(FIRST_STEPS, 80)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 done, 1 a run that failed, 2 bad input, 130 interrupted. Whatever a
    user, a file or the machine can do wrong is one line.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    log = logging.getLogger(CLIENT_LOG)
    level = log.level
    if "numpy" not in sys.modules:
        # `fl_shuffle.threads` says why; in a process of our own, and those that it starts.
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
    """What a command does, or which there are."""
    (command, *rest), note = renamed(words or ["--help"])
    if note:
        say(note, out=sys.stderr)
    if command in ("-h", "--help", "--version"):
        say(*([f"fl-shuffle {__version__}"] if command == "--version" else _first_screen()))
        return 0
    if command not in SUBCOMMANDS:
        hint = suggestion(command, SUBCOMMANDS) or f"there are {', '.join(SUBCOMMANDS)}"
        option = command.startswith("-")
        what = f"option {command!r} without a command" if option else f"command {command!r}; {hint}"
        raise ConfigError(f"no {what}; see fl-shuffle --help")
    parsed = parser_of(command).parse_args(rest)
    if parsed.verbose:
        logging.getLogger(CLIENT_LOG).setLevel(logging.DEBUG)
    code: int = parsed.run(parsed)
    return code


def _line(error: Exception, command: str) -> str:
    """What a user, a file or the machine did wrong, in one line; none of a defect."""
    if isinstance(error, ModuleNotFoundError) and error.name in REQUIRED:
        # The accountant runs without these; an import that fails for another reason is a defect.
        return f"{command} needs {error.name}, which is not installed; pip install fl-shuffle"
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
