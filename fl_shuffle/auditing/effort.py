"""How hard an audit tries: its options, on the command line and in Python, and its clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fl_shuffle.settings_schema import setting, settings_of


@dataclass(frozen=True)
class AuditSettings:
    """How hard to try. `confidence` is that of all of an audit's lower bounds together."""

    trials: int = setting(1000, low=8, high=10**8, metavar="N")
    """number of rounds whose sums are attacked"""
    reports: int = setting(1_000_000, low=1000, high=10**8, metavar="N")
    """number of single reports drawn per data set"""
    confidence: float = setting(0.95, low=0.5, below=1.0, metavar="P")
    """confidence of all lower bounds of an audit together"""
    seconds: float = setting(100.0, above=0.0, metavar="S")
    """time limit in seconds; two runs, the noise test, and one game are exempt"""
    seed: int = setting(0, metavar="N")
    """seed of the canaries"""

    def __post_init__(self) -> None:
        for name, each in settings_of(AuditSettings).items():
            each.check(name, getattr(self, name))


class Clock:
    """Stops long games; what was played until then counts, as time does not depend on results."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, none where the time is used up."""
        return max(0.0, self._end - time.monotonic())
