"""`python -m verify FILE`: ACCEPTED with its epsilon, or the first thing that fails."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .claims import check
from .reading import MOST_BYTES, Refused


@contextmanager
def progress(points: int) -> Iterator[Callable[[int], None] | None]:
    """Show within it on a terminal's line which of the points is checked; None without one."""

    def tell(begun: int) -> None:
        print(f"\rchecking point {begun} of {points}", end="", file=sys.stderr, flush=True)

    if not sys.stderr.isatty():
        yield None
        return
    try:
        yield tell
    finally:
        print("\r" + " " * 40, end="\r", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Return 0 where the certificate is accepted, 1 where it is refused, 2 where it cannot be read.

    Where the ledger says that the run protects nobody, the first line says so.
    """
    parser = argparse.ArgumentParser(prog="verify", description="Check a privacy certificate.")
    parser.add_argument("certificate", help="the JSON file")
    parser.add_argument("--ledger", type=Path, help="the run's ledger.sqlite, to compare with")
    given = parser.parse_args(arguments)
    try:
        with Path(given.certificate).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        print(f"verify: {error}", file=sys.stderr)
        return 2
    try:
        with progress(raw.count(b'"by"')) as told:
            accepted = check(raw.decode("utf-8", "replace"), given.ledger, told)
    except Refused as why:
        print(f"REFUSED: {why}")
        return 1
    for caveat in accepted.caveats:
        print(caveat)
    print(f"ACCEPTED: {accepted.statement()}")
    if given.ledger is not None:
        print(f"facts: as the ledger has them, last link {accepted.link}")
    else:
        print("facts: as the certificate states them, compared with no ledger")
    print(f"sha256 {hashlib.sha256(raw).hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
