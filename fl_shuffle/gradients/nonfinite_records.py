"""Records whose gradient is not finite, or whose label is no class: they count as zero.

Nobody is left out for one. Which reports are missing is public, so a record that could make its
client's report go missing would show itself with certainty. Such a record's share of its client's
mean is zero, and every other record's share keeps its bits: the mean moves as for any other record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class NonfiniteRecords:
    """Number of clients with such a record, and number of such records where that is known.

    For the client's own log only: it depends on the data.
    """

    clients: int = 0
    records: int = 0
    own: int | None = None
    """Of each client's records those behind the first `own` stand for missing ones: never counted.
    """
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, marks: Tensor, sizes: NDArray[np.int64]) -> None:
        """Count the records marked in `marks` [n], of clients with sizes [k] records in order."""
        owners = np.repeat(np.arange(len(sizes)), sizes)
        marked = marks.cpu().numpy()
        if self.own is not None:
            place = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            marked = marked & (place < self.own)
        found = owners[marked]
        with self._lock:
            self.clients += len(np.unique(found))
            self.records += len(found)

    def add_clients(self, count: int) -> None:
        """Count clients whose whole mean is zero."""
        with self._lock:
            self.clients += count


def without_nonfinite_(weights: Tensor, *by_record: Tensor) -> Tensor | None:
    """Set weights [n] that are not finite, and the rows of arrays [n, ...] there, to zero in place.

    Returns the mark [n] of such records, None if there is none.
    """
    if bool(torch.isfinite(weights.sum())):
        return None
    marks = ~torch.isfinite(weights)
    for values in (weights, *by_record):
        values[marks] = 0.0
    return marks
