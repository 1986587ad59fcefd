"""Which clients take part in a round, and in which order: drawn from the run's seed tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import Mask
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.randomizers.seeds import SeedTree


@dataclass(frozen=True)
class Schedule:
    """Each of the `clients` takes part in a round with probability `participation`.

    All of them answer one model; or, `sequential`, one after the other, in uniformly random order,
    the model that the client before has moved. The model is evaluated every `evaluate_every` rounds
    and after the last one.
    """

    clients: int
    seeds: SeedTree
    participation: float = 1.0
    sequential: bool = False
    evaluate_every: int = 1

    def participants(self, number: int, least: int = 1) -> Mask:
        """Return who is asked in a round, a mask [clients].

        Raises `PrivacyBudgetError` if they are fewer than `least` (`privacy.min_reports`): their
        reports could not be released.
        """
        drawn = np.ones(self.clients, dtype=bool)
        if self.participation < 1.0:
            draw = self.seeds.numpy_generator(number, "participation").random(self.clients)
            drawn = draw < self.participation
        count = int(np.count_nonzero(drawn))
        if count < least:
            remedy = "raise it, or " if self.participation < 1.0 else "raise "
            raise PrivacyBudgetError(
                f"round {number}: training.participation = {self.participation:g} drew {count} of "
                f"{self.clients} clients, below privacy.min_reports = {least}; {remedy}data.clients"
            )
        return drawn

    def order(self, number: int, allowed: Mask) -> list[int]:
        """Return the order of a sequential round."""
        draw = self.seeds.numpy_generator(number, "permutation")
        return [int(client) for client in draw.permutation(np.flatnonzero(allowed))]
