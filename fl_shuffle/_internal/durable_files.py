"""Files that are either as they were or as they should be, whenever the process or machine dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fl_shuffle.errors import FlShuffleError, RunError

OWNER_ONLY = 0o600
"""What is in a run's files is its owner's to show."""
PRIVATE_FOLDER = 0o700
"""Only the owner reads or enters."""
UNFINISHED = ".unfinished"
"""Ends the name of a file that is being written; where its process died, it may be deleted."""


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Have `write` fill a new file, for its owner alone to read, and put it at `path` in one step.

    What was there before stays if anything fails; what `write` raises and `OSError` are passed on.
    """
    unfinished = unfinished_name(path)
    unfinished.unlink(missing_ok=True)
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, OWNER_ONLY))
        write(unfinished)
        unfinished.chmod(OWNER_ONLY)
        _sync(unfinished, os.O_RDWR)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a folder outlive the machine; raises `OSError`."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def replace_text(path: Path, text: str) -> None:
    """Put a text file (UTF-8) at `path` in one step; raises `OSError`."""

    def write(unfinished: Path) -> None:
        unfinished.write_text(text, encoding="utf-8", newline="")

    replace_file(path, write)


def open_private(path: Path, mode: str) -> IO[str]:
    """Open a text file that, if it is created here, its owner alone may read."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, OWNER_ONLY)

    return open(path, mode, encoding="utf-8", newline="", opener=private)


@contextmanager
def said_in_one_line(
    path: Path, use: str = "written", kind: type[FlShuffleError] = RunError
) -> Iterator[None]:
    """Raise what goes wrong when a path is put to this use as an error of this kind."""
    try:
        yield
    except FlShuffleError:
        raise
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise kind(f"{path} cannot be {use}: {said}") from None


def unfinished_name(path: Path) -> Path:
    """Return what the file at `path` is called while it is being written."""
    return path.with_name(path.name + UNFINISHED)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
