"""The process that plays a sweep's points, one after another: libraries and data are loaded once.

It reads a point a line, and tells of rounds and ends a line each (JSON). Nothing more to read means
that whoever asks wants no more of it, or has died: what is being played ends as by Ctrl-C.
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

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.runs.events import RoundFinished, RunEvent
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

    try:
        while True:
            point = asked.get()
            tell(error=_play(Path(point["path"]), point["tables"], tell))
    except KeyboardInterrupt:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # whoever asked has died
    os._exit(0)


def _listen(asked: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE_SECONDS)
    os._exit(1)


def _play(path: Path, tables: dict[str, Any], tell: Callable[..., None]) -> str:
    """Run the point to its end; returns what went wrong, in one line."""

    def observe(event: RunEvent) -> None:
        if isinstance(event, RoundFinished):
            tell(round=event.outcome.round_number)

    try:
        from fl_shuffle.runs.directory import RunPlace
        from fl_shuffle.runs.resume import unfinished_config
        from fl_shuffle.simulation.launch import simulate
        from fl_shuffle.threads import one_thread

        resumed = state_of(path) == "unfinished"
        config = unfinished_config(path) if resumed else parse_config(tables)
        with one_thread():
            simulate(config, RunPlace(path, "yes" if resumed else "no"), observe)
        over = state_of(path) == "finished"
        return "" if over else "the run ended without a result; see its run.log"
    except FlShuffleError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a user's module may raise anything; the other points go on
        return f"{type(error).__name__}: {error}"
