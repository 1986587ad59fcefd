"""What a client does with its records before it reports: several steps, in batches or on all.

Nothing here is clipped: the update is clipped as a whole behind it. So the guarantee for a client
does not depend on how it trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.configuration.sections import TrainingSection


@dataclass(frozen=True)
class LocalTraining:
    """Gradient descent of one client from the broadcast parameters.

    Attributes
    ----------
    learning_rate : float
        Of each step.
    steps : int
        Number of steps; unused where `epochs` is above 0.
    epochs : int
        Passes over the client's records; 0 for `steps`.
    batch_size : int
        Records of a step, the last batch of a pass may have fewer; 0 for all records.
    momentum : float
        Share of the past in a step's direction, in [0, 1); 0 for plain gradient descent.
    proximal_mu : float
        Weight of the proximal term mu / 2 |w - w0|^2, whose gradient pulls the client back to the
        broadcast parameters w0 (FedProx, Li et al. 2020); 0 for none.
    """

    learning_rate: float
    steps: int = 1
    epochs: int = 0
    batch_size: int = 0
    momentum: float = 0.0
    proximal_mu: float = 0.0

    @classmethod
    def of(cls, section: TrainingSection) -> LocalTraining:
        """Return what the configuration says."""
        return cls(
            learning_rate=section.local_learning_rate,
            steps=section.local_steps,
            epochs=section.local_epochs,
            batch_size=section.batch_size,
            momentum=section.local_momentum if section.local_optimizer == "momentum" else 0.0,
            proximal_mu=section.proximal_mu,
        )

    def batches(self, records: int, order: np.random.Generator | None) -> Iterator[Ids | None]:
        """Yield the records of each step, as positions among the client's; None for all of them.

        Every pass takes each record once, in an order that `order` draws anew.
        """
        size = min(self.batch_size or records, records)
        in_a_pass = -(-records // size)
        steps = self.epochs * in_a_pass or self.steps
        if size == records:
            yield from (None for _ in range(steps))
            return
        if order is None:
            raise ValueError("batches need a generator that draws their order")
        for step in range(steps):
            place = step % in_a_pass
            if not place:
                shuffled = order.permutation(records)
            yield np.sort(shuffled[place * size : (place + 1) * size])
