"""Federated learning in the shuffle model of differential privacy.

The names of `fl_shuffle.api` are all that most users need; they are loaded when they are first
asked for.

    >>> import fl_shuffle as fs
    >>> answer = fs.bound(
    ...     randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clients=10_000, delta=1e-6
    ... )
    >>> answer.status
    <Status.PROVEN: 'proven'>
    >>> answer.epsilon < 0.2
    True
"""

from __future__ import annotations

from fl_shuffle._internal.lazy import TYPE_CHECKING, lazy_names
from fl_shuffle.version import __version__ as __version__

if TYPE_CHECKING:
    from fl_shuffle.api import *  # noqa: F403

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.api": (
            "Config", "Cost", "FlShuffleError", "Guarantee", "BoundQuery", "Result", "SolveResult",
            "ComposedRuns", "PrivateEstimate", "SweepResult", "TotalCost", "audit", "bound",
            "bound_many", "calibrate", "certify", "compare", "compose_runs", "cost", "load_model",
            "private_frequencies",
            "private_mean", "resume", "resume_sweep", "simulate", "solve", "sweep",
            "to_dp_accounting",
        )
    },
    renamed={"Question": "BoundQuery", "Solved": "SolveResult"},
)  # fmt: skip
