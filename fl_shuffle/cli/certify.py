"""`fl-shuffle certify`: a certificate of what a run says of one client."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_shuffle.errors import ConfigError
from fl_shuffle.plugins import require_extra
from fl_shuffle.run_words import say, tell

SUMMARY = (
    "Write a certificate of a finished run's epsilon, which fl-shuffle verify checks without any "
    "of the accounting."
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--client", type=int, metavar="ID", help="whose (default: the most exposed one's)"
    )
    parser.add_argument(
        "--column", choices=("proven", "sum", "local"), help="default: the run's headline"
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="proven by the one-page proof alone: a larger number, sooner checked",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="default: certificate.json in the run's folder"
    )


def run(arguments: argparse.Namespace) -> int:
    require_extra("flint", "certificates", "certify")
    from fl_shuffle.certificates.runs import certificate_of_run
    from fl_shuffle.certificates.verdicts import ACCEPTED, CERTIFICATE, verdict_of
    from fl_shuffle.certificates.writing import text_of

    directory = Path(arguments.run_directory)
    path = Path(arguments.out) if arguments.out else directory / CERTIFICATE
    tell(f"writing a certificate of {directory}")
    written, printed = certificate_of_run(
        directory, arguments.client, arguments.column, short=arguments.short
    )
    try:
        path.write_text(text_of(written), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be written: {error}") from None
    tell("checking it")
    verdict = verdict_of(path, directory / "ledger.sqlite")
    claim = written["claim"]
    say(
        f"client {claim['client']}, {claim['kind']}: epsilon <= {claim['epsilon']} at delta = "
        f"{float(claim['delta']):g} (the run says {printed:.6g})",
        verdict.replace(ACCEPTED, "certificate accepted: ").rstrip(),
        f"check it: fl-shuffle verify {path} --ledger {directory / 'ledger.sqlite'}",
    )
    return 0 if verdict.startswith(ACCEPTED) else 1
