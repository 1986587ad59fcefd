"""Federated learning in the shuffle model of differential privacy.

The names below are all that most users need; they are loaded when they are first asked for.

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

from fl_shuffle.lazy import TYPE_CHECKING, lazy_names
from fl_shuffle.version import __version__

if TYPE_CHECKING:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.question import Question
    from fl_shuffle.api.bounds import Solved, bound, compare, solve, to_dp_accounting
    from fl_shuffle.api.certificates import certify
    from fl_shuffle.api.costs import Cost, cost
    from fl_shuffle.api.results import Result
    from fl_shuffle.api.runs import resume, simulate
    from fl_shuffle.api.sweeps import sweep
    from fl_shuffle.auditing.audit import audit
    from fl_shuffle.configuration.sections import Config
    from fl_shuffle.errors import FlShuffleError
    from fl_shuffle.sweeps.results import SweepResult

__all__ = [
    "Config",
    "Cost",
    "FlShuffleError",
    "Guarantee",
    "Question",
    "Result",
    "Solved",
    "SweepResult",
    "__version__",
    "audit",
    "bound",
    "certify",
    "compare",
    "cost",
    "resume",
    "simulate",
    "solve",
    "sweep",
    "to_dp_accounting",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "fl_shuffle.accounting.guarantee": ("Guarantee",),
        "fl_shuffle.accounting.queries.question": ("Question",),
        "fl_shuffle.auditing.audit": ("audit",),
        "fl_shuffle.api.bounds": ("Solved", "bound", "compare", "solve", "to_dp_accounting"),
        "fl_shuffle.api.certificates": ("certify",),
        "fl_shuffle.api.costs": ("Cost", "cost"),
        "fl_shuffle.api.results": ("Result",),
        "fl_shuffle.api.runs": ("resume", "simulate"),
        "fl_shuffle.api.sweeps": ("sweep",),
        "fl_shuffle.configuration.sections": ("Config",),
        "fl_shuffle.errors": ("FlShuffleError",),
        "fl_shuffle.sweeps.results": ("SweepResult",),
    },
)
