"""What a run tells whoever watches it: typed events, in order, to one observer.

In this process the grid carries the observer to the ServerApp. Where Flower's Ray engine plays a
simulation the ServerApp runs in another process and appends its events to a file, which whoever
started the engine reads (`flower/event_file.py`). Elsewhere it tells Flower's log
(`runs/display.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fl_shuffle.configuration.sections import Config
from fl_shuffle.flower.event_file import EVENTS, append_event
from fl_shuffle.runs.outcome import RoundOutcome


@dataclass(frozen=True)
class Preparing:
    """What is being done before the run directory opens; several of them, or none.

    For the screen of whoever has the data: `text` may hang on them, and no file of a run holds it.
    """

    text: str


@dataclass(frozen=True)
class RunStarted:
    """The run directory is open; `warnings` are what a reader of its numbers must know, `noise` is
    how much of it a round's mean has, unless a warning says so."""

    directory: Path
    config: Config
    warnings: tuple[str, ...]
    noise: str = ""


@dataclass(frozen=True)
class RoundFinished:
    """A round is released and written down."""

    outcome: RoundOutcome


@dataclass(frozen=True)
class RunFinished:
    """The run is over; `summary` is what summary.json holds."""

    summary: dict[str, Any]


RunEvent = Preparing | RunStarted | RoundFinished | RunFinished
Observer = Callable[[RunEvent], None]


def unobserved(event: RunEvent) -> None:
    """Nobody watches."""


def observer_of(grid: object, otherwise: Observer = unobserved) -> Observer:
    """Who watches the run that this grid plays; `otherwise` where nobody does."""
    found: Observer | None = getattr(grid, "observer", None)
    if found is not None:
        return found
    file = os.environ.get(EVENTS, "")
    return partial(append_event, Path(file)) if file else otherwise
