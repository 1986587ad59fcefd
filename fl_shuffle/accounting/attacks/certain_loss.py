"""What rounds certainly cost a client: the better of the two attacks on whole batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.likelihood_ratio import population_epsilon
from fl_shuffle.accounting.attacks.recognition import recognition_epsilon
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass

NEARLY_LOCAL = 0.95
"""Recognition that reaches this share of the local epsilon leaves nothing for another attack."""


class CertainLoss:
    """A lower bound on epsilon at `delta` of any client of a population. Relation: replace-one.

    `counts[j]` clients of class j report in every round at most: fewer hide less. `dimension` of
    the reports sharpens the bound. Nothing is claimed for randomizers without a known law.
    """

    def __init__(
        self,
        classes: Sequence[ClientClass],
        counts: NDArray[np.int64],
        dimension: int | None,
        delta: float,
    ) -> None:
        self._classes, self._counts = ClassTable.of(classes), counts
        self._delta, self._dimension = delta, dimension

    def epsilon(
        self, index: int, rounds: int, *, local: float, recognition_only: bool = False
    ) -> float:
        """For a client of class `index` over `rounds` rounds; 0 where nothing is certain.

        Recognition is tried first; the likelihood ratio where that leaves room below `local`, the
        client's local epsilon.
        """
        kinds = self._classes
        client = (kinds, self._counts, index, rounds, self._delta)
        best = recognition_epsilon(*client, self._dimension)
        unknown = bool((kinds.is_noise("user") | kinds.is_noise("declared")).any())
        if recognition_only or unknown or best >= NEARLY_LOCAL * local:
            return best
        return max(best, population_epsilon(*client, self._dimension or 1))


def most_exposed(classes: ClassTable, rounds: dict[int, int]) -> int | None:
    """The class, of those with `rounds` taken, whose own noise protects it least; None of none."""
    exposure = classes.exposure
    return max(rounds, key=lambda i: exposure[i] * rounds[i] ** 0.5, default=None)
