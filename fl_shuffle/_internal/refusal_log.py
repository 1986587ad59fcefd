"""One line in a log for a refused call, however many of its kind come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

SECONDS = 60.0
"""A kind of refusal has one line in this time."""
MOST_KINDS = 1000
"""Further kinds share their lines: the table stays small whatever peers send."""
SHOWN = 300
"""Characters of a line."""


@dataclass
class RefusalLog:
    """Writes refusals to `log`, at most one line for each kind in `SECONDS`; safe to use from
    several threads. The next line of a kind says how many were left out. The caller passes no text
    that depends on records."""

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _last: dict[str, tuple[float, int]] = field(default_factory=dict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    def note(self, kind: str, text: str) -> None:
        """Note a refusal of this kind, in these words."""
        now = self.clock()
        with self._lock:
            kind = kind if kind in self._last or len(self._last) < MOST_KINDS else "others"
            before, hidden = self._last.get(kind, (-float("inf"), 0))
            if now - before < SECONDS:
                self._last[kind] = (before, hidden + 1)
                return
            self._last[kind] = (now, 0)
        more = f" (and {hidden} more like it since the last such line)" if hidden else ""
        self.log.warning("refused: %s%s", one_line(text), more)


def one_line(text: str) -> str:
    """Return the text as one line of printable ASCII, shortened: a peer may have chosen parts of
    it."""
    printable = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    shown = "".join(each if each.isprintable() else "?" for each in printable)
    return shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
