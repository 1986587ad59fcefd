"""The `fl-shuffle` command. Each subcommand is a module with `SUMMARY`, `configure` and `run`.

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

from fl_shuffle.errors import FlShuffleError
from fl_shuffle.interrupts import INTERRUPTED
from fl_shuffle.interrupts.callbacks import interrupts_kept
from fl_shuffle.simulation.progress import say
from fl_shuffle.version import __version__

SUBCOMMANDS = (
    "new",
    "simulate",
    "sweep",
    "runs",
    "ledger",
    "report",
    "export",
    "estimate",
    "bound",
    "compare",
    "plan",
    "audit",
    "shuffler",
)
ELSEWHERE = {"new": "fl_shuffle.scaffold.command"}
"""Subcommands that live with what they do."""
REQUIRED = ("torch", "flwr", "opacus", "cryptography", "mpmath", "rich", "safetensors", "scipy")

TYPES = {
    "int": "a whole number",
    "float": "a number",
    "count_or_share": "a count or a share, as 500 or 0.8",
}
"""What `argparse` calls by the name of a function."""
CLIENT_LOG = "fl_shuffle.client"
"""What clients say, exceptions among it, is logged below this name."""


class _Help(argparse.HelpFormatter):
    """Cuts lines between words alone: neither `num-partitions` nor `DATE-TIME` at the hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(
            " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
        )

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of the command does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **options})

    def error(self, message: str) -> NoReturn:
        for type_name, wanted in TYPES.items():
            message = message.replace(f"invalid {type_name} value:", f"must be {wanted}, not")
        self.exit(2, f"fl-shuffle: error: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fl-shuffle",
        description="Federated learning in the shuffle model of differential privacy: "
        "simulate and sweep federations, read their ledgers, ask for a privacy bound, plan, audit.",
        epilog="To begin: fl-shuffle simulate, then fl-shuffle report RUN with the run directory "
        "that it names. What a command takes: fl-shuffle COMMAND --help.",
    )
    parser.add_argument("--version", action="version", version=f"fl-shuffle {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        module = import_module(ELSEWHERE.get(name, f"fl_shuffle.cli.{name}"))
        sub = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.configure(sub)
        sub.add_argument(
            "--verbose", action="store_true", help="show where an error comes from, and its causes"
        )
        sub.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 done, 1 a run that failed, 2 bad input, 130 interrupted. Whatever a
    user, a file or the machine can do wrong is one line.
    """
    log = logging.getLogger(CLIENT_LOG)
    level = log.level
    if "numpy" not in sys.modules:
        # `fl_shuffle.threads` says why; in a process of our own, and those that it starts.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        with interrupts_kept():
            return _answered(build_parser().parse_args(arguments))
    except KeyboardInterrupt as interrupt:
        return _said(str(interrupt) or "interrupted", INTERRUPTED)
    finally:
        log.setLevel(level)


def _answered(parsed: argparse.Namespace) -> int:
    if parsed.verbose:
        logging.getLogger(CLIENT_LOG).setLevel(logging.DEBUG)
    try:
        code: int = parsed.run(parsed)
    except FlShuffleError as error:
        return _said(str(error), error.exit_code, verbose=parsed.verbose)
    except sqlite3.Error as error:
        return _said(f"a ledger cannot be used: {error}", 2, verbose=parsed.verbose)
    except ModuleNotFoundError as error:
        # The accountant runs without these; an import that fails for another reason is a defect.
        if error.name not in REQUIRED:
            raise
        needs = f"{parsed.command} needs {error.name}, which is not installed"
        return _said(f"{needs}; pip install fl-shuffle", 2, verbose=parsed.verbose)
    except BrokenPipeError:
        # The reader of our output went away (for example `| head`): not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _said(str(error), 2, verbose=parsed.verbose)
    except RecursionError:
        return _said("the input is nested too deeply", 2, verbose=parsed.verbose)
    except MemoryError as error:
        return _said(f"not enough memory: {error}", 2, verbose=parsed.verbose)
    return code


def _said(text: str, code: int, *, verbose: bool = False) -> int:
    """Print the line; if `verbose`, after the exception that is being handled, with its causes."""
    with suppress(OSError):
        if verbose:
            traceback.print_exc()
        say(f"fl-shuffle: error: {' '.join(text.split())}", out=sys.stderr)
    return code
