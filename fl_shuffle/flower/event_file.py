"""Events of a run that another process plays: it appends them to a file, this one reads them.

The file lies in a private folder that its reader makes and removes. It may hold what a run must not
publish, so it is never put into the run directory.
"""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

EVENTS = "events"
"""The key of Flower's run configuration that names the file."""

_LENGTH = struct.Struct("<Q")


def append_event(path: Path, event: object) -> None:
    """Write one event behind the others."""
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
