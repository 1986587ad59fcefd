"""`fl-shuffle verify`: as `python -m verify` does in a copy of the folder."""

from __future__ import annotations

from argparse import Namespace

from fl_shuffle._internal.plugins import require_extra


def run(arguments: Namespace) -> int:
    require_extra("flint", "certificates", "verify")
    from fl_shuffle.verify.__main__ import main

    ledger = [] if arguments.ledger is None else ["--ledger", arguments.ledger]
    return main([arguments.certificate, *ledger])
