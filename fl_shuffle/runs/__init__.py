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
`events` is what a run tells whoever watches it.
"""

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
