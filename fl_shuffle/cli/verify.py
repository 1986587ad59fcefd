"""Check a certificate in ball arithmetic, with nothing of the accounting that wrote it. Exit
code 0: accepted, 1: refused."""

from __future__ import annotations

import argparse

from fl_shuffle.cli.options import option
from fl_shuffle.plugins import require_extra


def configure(parser: argparse.ArgumentParser) -> None:
    option(parser, "certificate", "FILE", "written by certify, or bound --certificate")
    option(parser, "--ledger", "FILE", "the run's ledger.sqlite: the facts must be as it has them")


def run(arguments: argparse.Namespace) -> int:
    require_extra("flint", "certificates", "verify")
    from fl_shuffle.verify.__main__ import main

    ledger = [] if arguments.ledger is None else ["--ledger", arguments.ledger]
    return main([arguments.certificate, *ledger])
