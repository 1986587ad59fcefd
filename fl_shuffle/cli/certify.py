"""`fl-shuffle certify`: a certificate of what a run says of one client."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fl_shuffle._internal.durable_files import said_in_one_line
from fl_shuffle._internal.plugins import require_extra
from fl_shuffle.runs.console_messages import say, tell, waiting


def run(arguments: Namespace) -> int:
    require_extra("flint", "certificates", "certify")
    from fl_shuffle.certificates.runs import certificate_of_run
    from fl_shuffle.certificates.verdicts import ACCEPTED, CERTIFICATE, verdict_of
    from fl_shuffle.certificates.writing import text_of

    directory = Path(arguments.run_directory)
    path = Path(arguments.out) if arguments.out else directory / CERTIFICATE
    tell(f"writing a certificate of {directory}")
    with waiting() as told:
        written, printed = certificate_of_run(
            directory,
            arguments.client,
            arguments.column,
            short=arguments.proof == "convex-order",
            tell=told,
        )
    with said_in_one_line(path):
        path.write_text(text_of(written), encoding="utf-8")
    tell("checking it")
    verdict = verdict_of(path, directory / "ledger.sqlite")
    claim = written["claim"]
    say(
        f"client {claim['client']}, {claim['kind']}: epsilon <= {claim['epsilon']} at delta = "
        f"{float(claim['delta']):g} (the run says {printed:.6g})",
        verdict.replace(ACCEPTED, "certificate accepted: ").rstrip(),
        f"check it: fl-shuffle verify {path} --ledger {directory / 'ledger.sqlite'}",
    )
    return 0 if any(line.startswith(ACCEPTED) for line in verdict.splitlines()) else 1
