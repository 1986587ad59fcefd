"""Reading the memory of a process of one's own, to see what it holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

PIECE = 1 << 24
"""Bytes read at a time."""


def found_in_memory(pid: int, needles: Iterable[bytes]) -> set[bytes]:
    """Which of these bytes stand in the memory that a process may write to."""
    wanted, found = set(needles), set()
    overlap = max(map(len, wanted))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            start, end = (int(part, 16) for part in place.split("-"))
            for first in range(start, end, PIECE):
                # A mapping may go away, or may not be readable (that of a device).
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(first)
                    content = memory.read(min(PIECE + overlap, end - first))
                    found |= {needle for needle in wanted - found if needle in content}
    return found
