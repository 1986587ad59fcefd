"""Reading the memory of another process of this user, to see what it holds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

PIECE = 1 << 24
"""Bytes read at a time."""
OWN = re.compile(r"^(?:Private_Clean|Private_Dirty|Swap): +(\d+) kB", re.MULTILINE)
"""What a process shares with nobody, in the kernel's account of a mapping."""


def found_in_memory(pid: int, needles: Iterable[bytes]) -> set[bytes]:
    """Which of these bytes stand in the memory that a process may write to.

    Mappings in which it has written nothing are left out: in a forked process they hold what its
    parent had.
    """
    wanted, found = set(needles), set[bytes]()
    overlap = max(map(len, wanted))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end in _written(pid):
            for first in range(start, end, PIECE):
                # A mapping may go away, or may not be readable (that of a device).
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    memory.seek(first)
                    content = memory.read(min(PIECE + overlap, end - first))
                    found |= {needle for needle in wanted - found if needle in content}
    return found


def _written(pid: int) -> Iterator[tuple[int, int]]:
    text = Path(f"/proc/{pid}/smaps").read_text()
    for part in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", text):
        place, rights = part.split(maxsplit=2)[:2]
        if rights.startswith("rw") and any(int(size) for size in OWN.findall(part)):
            start, end = (int(edge, 16) for edge in place.split("-"))
            yield start, end
