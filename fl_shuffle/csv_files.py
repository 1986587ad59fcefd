"""Reading CSV files that people made, with Excel or by hand."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from fl_shuffle.errors import FlShuffleError

FIRST_BYTES = 1 << 20
"""So much is looked at first: a file that is no text is seen there."""
MOST_BYTES = 1 << 32
"""A longer file is no table of clients: a hundred million lines are shorter."""


def read_rows(path: Path, what: str, error: type[FlShuffleError]) -> list[list[str]]:
    """The rows of a UTF-8 file, with or without a byte-order mark; blank lines at its end left out.

    Raises `error`, naming `what` it is and the file, where there is none, or it is no text.
    """
    if "\0" in str(path):
        raise error(f"{what} {str(path)!r}: no file's name holds the NUL character")
    try:
        content = content_of(path)
    except FileNotFoundError:
        raise error(f"{what} {path} does not exist") from None
    except OSError as reason:
        raise error(f"{what} {path} cannot be read: {reason.strerror}") from None
    if b"\0" in content[:FIRST_BYTES]:
        raise error(f"{what} {path} is not text; save it as CSV (UTF-8)")
    try:
        rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    except UnicodeDecodeError:
        raise error(f"{what} {path} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as reason:
        raise error(f"{what} {path} is no CSV: {reason}") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    return rows


def content_of(path: Path) -> bytes:
    """A file's bytes, as far as it may be a table: not more than the first of one that is no text
    (`/dev/zero`). Raises `OSError`."""
    with path.open("rb") as file:
        content = file.read(FIRST_BYTES)
        return content if b"\0" in content else content + file.read(MOST_BYTES)


def whole_number(cell: str) -> int | None:
    """A whole number >= 0 in decimal digits, or None. Python's own `1_0` is none."""
    found = re.fullmatch(r"\+?([0-9]{1,18})", cell.strip())
    return None if found is None else int(found.group(1))


def looks_like_number(cell: str) -> bool:
    """Whether somebody may have meant a number: a mistake in one is then not taken for a name."""
    return re.fullmatch(r"[-+0-9_.eE]+", cell) is not None


def real_number(cell: str) -> float | None:
    """A number as `float` reads it (infinite and NaN too), or None; `1_0` is none."""
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
