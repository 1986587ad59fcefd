"""The shuffler of a simulation in which no client makes a report (`run.noise`).

What leaves it has the distribution of the sum of the reports that the present clients would have
sent; the noise of all of them is drawn here, as one vector. Nobody is protected by it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch

from fl_shuffle._internal.arrays import Ids, Mask
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.shuffler.local import LocalShuffler, ReceivedReports, Reports, Shuffled, SummedBatch

PURPOSE = "pooled noise"
"""That of a round's generator: another word would give other noise to the same seed."""
SENT_REPORTS = "sent reports where a sum without noise is wanted"


@dataclass
class AggregateShuffler(LocalShuffler):
    """Adds up the nodes' sums of clipped means, and `noise` to the sum of a round."""

    _: KW_ONLY
    noise: AggregateNoise

    def open(self, round_number: int, asked: Mask) -> AggregateBatch:
        """See `Shuffler`."""
        return AggregateBatch(self, round_number, len(asked))


class AggregateBatch(SummedBatch):
    """A sum of clipped means, which gets the noise of all of its clients' reports as it leaves."""

    _shuffler: AggregateShuffler

    def add(self, answer: ReceivedReports, clients: Ids, position: int) -> Mask:
        """See `Batch`: reports have their noise already, and are left out."""
        if isinstance(answer, Reports):
            self.reasons[SENT_REPORTS] += len(clients)
            return np.zeros(len(clients), dtype=bool)
        return super().add(answer, clients, position)

    def release(self) -> Shuffled:
        """See `Batch`."""
        exact = super().release()
        assert exact.total is not None
        draws = self._shuffler.seeds.numpy_generator(self._number, PURPOSE)
        noisy = self._shuffler.noise.add_to(exact.total.numpy(), self._present, draws)
        return Shuffled(exact.count, total=torch.from_numpy(noisy))
