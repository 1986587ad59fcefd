"""What this process has made for its latest run: its data, its task, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, NamedTuple, TypeVar

Made = TypeVar("Made")


class _Kept(NamedTuple):
    run: Hashable
    content: Hashable
    value: Any


class RunCache:
    """The latest value of each kind, found by what it was made from.

    Many virtual clients of one node share these values, and a sweep computes its features once.
    One value of a kind is kept, since data may fill the memory. Several threads may ask: a value is
    made once, while the others wait.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._kept: dict[str, _Kept] = {}

    def get(
        self,
        kind: str,
        content: Hashable,
        make: Callable[[], Made],
        *,
        run: Hashable = None,
    ) -> Made:
        """Return the kept value of this kind, or make another one and keep that.

        Parameters
        ----------
        kind : str
            The slot. Values of other kinds stay.
        content : Hashable
            All that the value is made from.
        make : Callable
            Makes the value; what it raises is passed on, and nothing is kept.
        run : Hashable, default None
            The run that the value belongs to. None takes the value of whichever run was the latest.
        """
        with self._lock:
            kept = self._kept.get(kind)
            if kept is None or kept.content != content or run not in (None, kept.run):
                # Before the new value is made: both together may not fit into memory.
                self._kept.pop(kind, None)
                kept = self._kept[kind] = _Kept(run, content, make())
            value: Made = kept.value
            return value

    def forget(self) -> None:
        """Drop everything: the next values are made from the files as they are then."""
        with self._lock:
            self._kept.clear()


run_cache = RunCache()
"""That of this process."""
