"""Reading CSV files that people made, with Excel or by hand."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from fl_shuffle.errors import ConfigError

FIRST_BYTES = 1 << 20
"""So much is looked at first: a file that is no text is seen there."""
MOST_BYTES = 1 << 32
"""A longer file is no table of clients: a hundred million lines are shorter."""


def read_table(
    path: Path, what: str, *headers: tuple[str, ...]
) -> tuple[tuple[str, ...], Iterator[tuple[str, list[str]]]]:
    """Return the columns of a file, and its rows, each with its place in words.

    Raises `ConfigError`, naming `what` it is, the file and the line, as `read_rows`, for columns
    that are none of these `headers`, no row, and one of another length.
    """
    rows = read_rows(path, what)
    header = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if header not in headers:
        found = ",".join(rows[0]) if rows else "an empty file"
        wanted = f"columns must be {' or '.join(map(','.join, headers))}"
        raise ConfigError(f"{what} {path} line 1: {wanted}, got {found}")
    if len(rows) == 1:
        raise ConfigError(
            f"{what} {path} has no lines below its header; add lines {','.join(header)}"
        )

    def numbered() -> Iterator[tuple[str, list[str]]]:
        for number, row in enumerate(rows[1:], start=2):
            where = f"{what} {path} line {number}"
            if not any(cell.strip() for cell in row):
                raise ConfigError(f"{where} is empty; remove it")
            if len(row) != len(header):
                raise ConfigError(f"{where}: expected {len(header)} values, got {len(row)}")
            yield where, row

    return header, numbered()


def read_rows(path: Path, what: str) -> list[list[str]]:
    """Return the rows of a UTF-8 file, with or without a byte-order mark; blank lines at its end
    left out.

    Raises `ConfigError`, naming `what` it is and the file, where there is none, or it is no text.
    """
    if "\0" in str(path):
        raise ConfigError(f"{what} {str(path)!r}: a file's name must not contain the NUL character")
    try:
        content = content_of(path)
        if b"\0" in content[:FIRST_BYTES]:
            raise ConfigError(f"{what} {path} is not text; save it as CSV (UTF-8)")
        rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    except FileNotFoundError:
        raise ConfigError(f"{what} {path} does not exist") from None
    except OSError as reason:
        raise ConfigError(f"{what} {path} cannot be read: {reason.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not UTF-8 text; save it as UTF-8") from None
    except csv.Error as reason:
        raise ConfigError(f"{what} {path} is not a valid CSV file: {reason}") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    return rows


def content_of(path: Path) -> bytes:
    """Return a file's bytes, as far as it may be a table: not more than the first of one that is no
    text (`/dev/zero`). Raises `OSError`."""
    with path.open("rb") as file:
        content = file.read(FIRST_BYTES)
        return content if b"\0" in content else content + file.read(MOST_BYTES)


def whole_number(cell: str) -> int | None:
    """Return a whole number >= 0 in decimal digits, or None. Python's own `1_0` is none."""
    found = re.fullmatch(r"\+?([0-9]{1,18})", cell.strip())
    return None if found is None else int(found.group(1))


def whole_text(cell: str) -> str | None:
    """Return the decimal digits of a text that is a whole number ("12", "-3", "12.0"), or None.

    Leading zeros are part of a name: "007" is none.
    """
    found = re.fullmatch(r"(0|-?[1-9][0-9]{0,17})(\.0*)?", cell)
    return None if found is None else found.group(1)


def looks_like_number(cell: str) -> bool:
    """Return whether somebody may have meant a number: a mistake in one is then not taken for a
    name."""
    return re.fullmatch(r"[-+0-9_.eE]+", cell) is not None


def real_number(cell: str) -> float | None:
    """Return a number as `float` reads it (infinite and NaN too), or None; `1_0` is none."""
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
