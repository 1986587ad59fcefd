"""A run and its directory.

RUN/config.json       the configuration as resolved
RUN/ledger.sqlite     every round's privacy, durable before release
RUN/metrics.csv       one line per round
RUN/model.safetensors the final model
RUN/summary.json      the final numbers
RUN/run.log           what the server's side said
RUN/lock              held by the process that has the run open

Everything in it may be published, so nothing in it but the model and what is computed from it may
hang on a record: no digest of the data, nothing that a client logs, and in runs with
operating-system entropy no times. `directory` makes and locks it, `resume` goes on with one,
`events` is what a run tells whoever watches it, `finished` reads back what one left.

The names below are loaded when they are first asked for: reading a run takes neither torch nor
Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.lazy import lazy_names

if TYPE_CHECKING:
    from fl_shuffle.runs.directory import new_directory
    from fl_shuffle.runs.events import (
        Observer,
        Preparing,
        RoundFinished,
        RunEvent,
        RunFinished,
        RunStarted,
        observer_of,
        unobserved,
    )
    from fl_shuffle.runs.facts import DataFacts, RunFacts
    from fl_shuffle.runs.place import RunPlace
    from fl_shuffle.runs.resume import unfinished_config
    from fl_shuffle.runs.run import Run, open_run

__all__ = [
    "DataFacts",
    "Observer",
    "Preparing",
    "RoundFinished",
    "Run",
    "RunEvent",
    "RunFacts",
    "RunFinished",
    "RunPlace",
    "RunStarted",
    "new_directory",
    "observer_of",
    "open_run",
    "unfinished_config",
    "unobserved",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.runs.directory": ("new_directory",),
        "fl_shuffle.runs.events": (
            *("Observer", "Preparing", "RoundFinished", "RunEvent", "RunFinished", "RunStarted"),
            *("observer_of", "unobserved"),
        ),
        "fl_shuffle.runs.facts": ("DataFacts", "RunFacts"),
        "fl_shuffle.runs.place": ("RunPlace",),
        "fl_shuffle.runs.resume": ("unfinished_config",),
        "fl_shuffle.runs.run": ("Run", "open_run"),
    },
)
