"""The verifier's word on a certificate, kept beside it for the report."""

from __future__ import annotations

import hashlib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

CERTIFICATE = "certificate.json"
ACCEPTED = "ACCEPTED: "


def verdict_of(path: Path, ledger: Path) -> str:
    """Return what `fl-shuffle verify` says of the file beside the ledger; kept as a file of that
    name."""
    from fl_shuffle.verify.__main__ import main

    with redirect_stdout(StringIO()) as said:
        main([str(path), "--ledger", str(ledger)])
    path.with_suffix(".txt").write_text(said.getvalue(), encoding="utf-8")
    return said.getvalue()


def certificate_line(directory: Path, randomizer: str, link: str) -> str:
    """Return a run's certificate in a line of its report; `randomizer` and last `link` are the
    run's.

    "accepted" only where the verifier accepted the very file that is there beside this ledger:
    links are digests of all that it tells.
    """
    path = directory / CERTIFICATE
    command = f"fl-shuffle verify {path} --ledger {directory / 'ledger.sqlite'}"
    if randomizer != "gaussian":
        return "none can be written: of runs, those with continuous Gaussian noise are"
    try:
        held = path.read_bytes()
    except OSError:
        return f"none yet: fl-shuffle certify {directory}"
    digest = hashlib.sha256(held).hexdigest()
    try:
        said = path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        said = []
    checked = [f"facts: as the ledger has them, last link {link}", f"sha256 {digest}"]
    *caveats, claim = said[:-2] or [""]
    if said[-2:] != checked or not claim.startswith(ACCEPTED):
        return f"{CERTIFICATE} has not been checked as it stands: {command}"
    words = "; ".join([claim.removeprefix(ACCEPTED), *caveats])
    return f"certificate accepted: {words}; sha256 {digest}; check it: {command}"
