"""Ctrl-C while a callback of an import or of the garbage collector runs."""

from __future__ import annotations

import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_SECONDS = 0.01
"""After which an interrupt is sent once more that came where Python cannot pass it on."""


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Send again an interrupt in a callback within it, which Python would print and go on."""
    before = sys.unraisablehook

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            before(unraisable)
            return
        left = [False]
        start_new_thread(interrupt, (left,))
        # Python looks for signals where something is called: nothing is from here on.
        left[0] = True

    def interrupt(left: list[bool]) -> None:
        time.sleep(AGAIN_SECONDS)
        while not left[0]:
            time.sleep(AGAIN_SECONDS)
        if sys.unraisablehook is again:  # the command goes on
            os.kill(os.getpid(), signal.SIGINT)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
