"""What a run tells its observer: typed events, in order, to one observer.

The grid carries the observer to the ServerApp; where there is none it tells Flower's log
(`runs/display.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.configuration.sections import Config


def publishes_times(config: Config) -> bool:
    """Return whether a run writes down times.

    How long a client computes may depend on its records.
    """
    return config.run.entropy == "seeded"


@dataclass(frozen=True)
class RoundOutcome:
    """What came of a round.

    Attributes
    ----------
    round_number : int
        Number of the round, from 1.
    spend : Spend
        Cumulative privacy after it.
    dropped : int
        Number of clients that were asked and are not in it.
    seconds : float
        How long it took.
    metrics : dict of str to float
        What was measured after it.
    row : mapping of str
        What of it is published, by the columns of metrics.csv, once it is in the ledger.
    """

    round_number: int
    spend: Spend
    dropped: int
    seconds: float
    metrics: dict[str, float]
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preparing:
    """What is being done before the run directory opens; several of them, or none.

    For the screen of the data's owner: `text` may depend on them, and no file of a run holds it.
    """

    text: str


class Certifying(Preparing):
    """What is computed within a run that may take seconds, once for each kind of round.

    Nothing of it is a result. It depends on no data: the set of clients that take part is public.
    """


@dataclass(frozen=True)
class RunStarted:
    """The run directory is open.

    Attributes
    ----------
    directory : Path
        The run directory.
    config : Config
        The resolved configuration.
    warnings : tuple of str
        What a reader of its numbers must know.
    noise : str
        How much noise a round's mean has, unless a warning says so.
    budgets : str
        How many budgets there are.
    """

    directory: Path
    config: Config
    warnings: tuple[str, ...]
    noise: str = ""
    budgets: str = ""


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


class Watcher:
    """An observer that takes each kind of event by itself; what it does not want passes by."""

    run: RunStarted

    def __call__(self, event: RunEvent) -> None:
        """Hand an event to the method for its kind."""
        if isinstance(event, Certifying):
            self.certify(event.text)
        elif isinstance(event, Preparing):
            self.prepare(event.text)
        elif isinstance(event, RoundFinished):
            self.round(event.outcome)
        elif isinstance(event, RunFinished):
            self.finish(event.summary)
        else:
            self.run = event
            self.start()

    def prepare(self, text: str) -> None:
        """Handle something that is done before the run begins."""

    def certify(self, text: str) -> None:
        """Handle something that is computed within the run and may take seconds."""

    def start(self) -> None:
        """Handle the start: the `run` has begun or was resumed."""

    def round(self, outcome: RoundOutcome) -> None:
        """Handle a finished round."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Handle the end of the run."""

    def close(self) -> None:
        """Release what is held: nothing follows, whatever the run came to. Called once."""


def unobserved(event: RunEvent) -> None:
    """Ignore the event: nobody watches."""


def observer_of(grid: object, otherwise: Observer = unobserved) -> Observer:
    """Return who watches the run that this grid plays; `otherwise` where nobody does."""
    found: Observer | None = getattr(grid, "observer", None)
    return otherwise if found is None else found
