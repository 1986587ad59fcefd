"""What the games need from a federation: canaries whose reports come from the real client code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.auditing.order import SeenOrders
from fl_shuffle.randomizer_plan import RandomizerPlan

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Scene:
    """Two neighbouring datasets, known to the adversary but for which of the two it is.

    All means lie on the first axis (a canary's gradient is one coordinate), in units of reports,
    that is after a client's weight. `others` [n] holds everybody's mean, the target's entry unused;
    the target's is `zero` in one dataset and `one` > zero in the other.
    """

    target: int
    others: Vector
    zero: float
    one: float


class CanarySource(Protocol):
    """Reports of canaries, drawn by the code that real clients run."""

    @property
    def plan(self) -> RandomizerPlan:
        """What the adversary knows of the randomizers; the accountant counts with it too."""

    @property
    def dimension(self) -> int:
        """Length of a report."""

    @property
    def scene(self) -> Scene:
        """The datasets."""

    def play(self, number: int) -> tuple[Tensor, Tensor]:
        """Round `number`: all reports float32 [n, d] with the target in dataset zero, and the
        target's report [d] in dataset one with the same noise."""

    def clones(self, number: int, count: int, *, one: bool) -> Tensor:
        """`count` independent reports [count, d] of clients like the target, in either dataset."""

    def orders(self) -> SeenOrders | None:
        """The order in which the run's analyzer gets the reports, in several rounds; None for fewer
        than two clients."""
