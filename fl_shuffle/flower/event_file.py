"""Events of a run that another process plays: it appends them to a file, this one reads them.

The file lies in a private folder that its reader makes and removes. It may hold what a run must not
publish, so it is never put into the run directory.
"""

from __future__ import annotations

import fcntl
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fl_shuffle.errors import RunError

EVENTS = "FL_SHUFFLE_EVENTS"
"""The variable that names the file to the processes of a run; nobody who submits one can set it."""
_LENGTH = struct.Struct("<Q")


LEASE = "lease"
"""The file beside it whose lock the reader holds as long as it lives."""


@contextmanager
def lease(folder: Path) -> Iterator[None]:
    """Hold the lease of the folder: who appends events there stops when nobody has it."""
    with (folder / LEASE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_reader(path: Path) -> None:
    """Raise `RunError` if nobody holds the lease beside this file any more."""
    try:
        with path.with_name(LEASE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    except FileNotFoundError:
        pass  # removed, with the folder, behind a reader that is gone
    raise RunError("the command that started this run has ended, and the run with it")


def append_event(path: Path, event: object) -> None:
    """Write one event behind the others. Raises `RunError` if its reader is gone."""
    require_reader(path)
    body = pickle.dumps(event)
    with path.open("ab") as file:
        file.write(_LENGTH.pack(len(body)) + body)


class EventReader:
    """Reads each event of a file once, as it appears."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def unread(self) -> list[Any]:
        """The whole events that were appended since the last call, in order."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        events, start = [], 0
        while start + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, start)
            end = start + _LENGTH.size + length
            if end > len(data):
                break
            events.append(pickle.loads(data[start + _LENGTH.size : end]))
            start = end
        self._position += start
        return events
