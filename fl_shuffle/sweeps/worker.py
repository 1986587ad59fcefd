"""The process that runs a sweep's points, one after another: JSON lines in, JSON lines out.

In:  {"run": FOLDER, "config": {...}}
Out: {"event": "round", "round": t, "rounds": T}, then {"event": "finished"} or
     {"event": "failed", "error": TEXT}

A process of its own, so that a run that dies takes no other with it; one for many runs, so that
libraries and data are loaded once.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError


def serve(tasks: TextIO, answers: TextIO) -> None:
    """Run every task of `tasks` until it ends."""
    for line in tasks:
        try:
            answer = _play(json.loads(line), answers)
        except FlShuffleError as error:
            answer = {"event": "failed", "error": " ".join(str(error).split())}
        except Exception as error:
            # A user's module may raise anything; the other points go on.
            answer = {"event": "failed", "error": f"{type(error).__name__}: {error}"}
        _say(answers, answer)


def _play(task: Mapping[str, Any], answers: TextIO) -> dict[str, Any]:
    from fl_shuffle.runs import RoundFinished, RunEvent, RunFinished, RunPlace, unfinished_config
    from fl_shuffle.simulation.launch import simulate
    from fl_shuffle.sweeps.directory import state_of
    from fl_shuffle.threads import one_thread

    path = Path(task["run"])
    resumed = state_of(path) == "unfinished"
    config = unfinished_config(path) if resumed else parse_config(task["config"])
    finished = False

    def observe(event: RunEvent) -> None:
        nonlocal finished
        if isinstance(event, RoundFinished):
            number = event.outcome.round_number
            _say(answers, {"event": "round", "round": number, "rounds": config.run.rounds})
        finished = finished or isinstance(event, RunFinished)

    with one_thread():
        simulate(config, RunPlace(path, "yes" if resumed else "no"), observe)
    if not finished:
        return {"event": "failed", "error": "the run ended without a result; see its run.log"}
    return {"event": "finished"}


def _say(answers: TextIO, message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    out = sys.stdout
    sys.stdout = sys.stderr  # what a user's module prints is no answer
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        serve(sys.stdin, out)
    except KeyboardInterrupt:
        sys.exit(130)  # the sweep was stopped; the run can be resumed
