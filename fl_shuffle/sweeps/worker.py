"""The process that plays a sweep's points, one after another: libraries and data are loaded once.

It reads a point a line, and tells of rounds and ends a line each (JSON). Nothing more to read means
that its parent wants no more of it, or has died: the current run ends as by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_shuffle.errors import FlShuffleError
from fl_shuffle.runs.events import RoundOutcome
from fl_shuffle.sweeps.directory import state_of

PATIENCE_SECONDS = 20.0
"""A run that is to end and does not by then is killed; its ledger stays whole."""


def main() -> None:
    """Play until nothing more is asked for."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a user's module prints is no result
    asked = queue.SimpleQueue[dict[str, Any]]()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()

    def tell(**found: Any) -> None:
        print(json.dumps(found), file=told, flush=True)

    def on_round(outcome: RoundOutcome) -> None:
        tell(round=outcome.round_number)

    try:
        while True:
            point = asked.get()
            tell(error=_play(Path(point["path"]), point["tables"], on_round))
    except KeyboardInterrupt:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # the parent has died
    os._exit(0)


def _listen(asked: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE_SECONDS)
    os._exit(1)


def _play(path: Path, tables: dict[str, Any], on_round: Callable[[RoundOutcome], None]) -> str:
    """Run the point to its end; returns what went wrong, in one line."""
    try:
        from fl_shuffle.api import resume, simulate

        if state_of(path) == "unfinished":
            resume(path, on_round=on_round)
        else:
            simulate(tables, out=path, on_round=on_round)
    except FlShuffleError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a user's module may raise anything; the other points go on
        return f"{type(error).__name__}: {error}"
    return ""
