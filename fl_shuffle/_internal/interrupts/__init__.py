"""Ctrl-C while libraries are loaded: the program ends with one line.

An exception raised there is not ours to catch: libraries swallow it, print it, or abort.
"""

from __future__ import annotations

import gc
import os
import signal
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit code, as of a program that the signal ends."""
LINE = "fl-shuffle: error: interrupted\n"
STDERR = 2
"""The file descriptor: the stream may be anything by then."""


class LeavingAtOnce:
    """Within it Ctrl-C ends the process without clean-up: nothing may be open that wants any.

    A signal that is ignored (nohup, a job in the background) or handled by others stays so, as it
    does in any thread but the main one.
    """

    def __enter__(self) -> None:
        self._before: Any = signal.getsignal(signal.SIGINT)
        self._ours = self._before is signal.default_int_handler and _handled_by(_leave)

    def __exit__(self, *_error: object) -> None:
        if self._ours:
            _handled_by(self._before)


def load(*modules: str) -> None:
    """Import `modules`, which load libraries: nothing of them is garbage, so none is looked for."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with LeavingAtOnce():
            for module in modules:
                import_module(module)
    finally:
        if collecting:
            gc.enable()


def _handled_by(handler: Any) -> bool:
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread
        return False
    return True


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os.write(STDERR, LINE.encode())
    os._exit(INTERRUPTED)
