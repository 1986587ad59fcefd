"""A round's sum is prepared once for clients who are asked round after round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl_shuffle.gradients.clipper import ClippedRows, SumOfMeans
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.gradients.softmax_regression import PreparedSum
from fl_shuffle.randomizers.per_client import Ids


def _no_rows(_parameters: Tensor, _clients: Ids, _tally: NonfiniteRecords) -> Tensor:
    raise AssertionError("rows are not needed")


def test_a_sum_is_prepared_once_for_the_same_clients() -> None:
    asked: list[list[int]] = []

    def prepare(clients: Ids) -> PreparedSum:
        asked.append(clients.tolist())
        return lambda parameters, _tally: parameters.double() * len(clients)

    rows = ClippedRows(_no_rows, [], 2)
    total = SumOfMeans(rows, 1.0, 2.0**-40, lambda clients: clients, prepare)
    for _ in range(3):
        for clients in (np.arange(4), np.arange(4, 6)):
            found = total(torch.ones(2), clients)
            assert found.tolist() == [len(clients)] * 2
    assert asked == [[0, 1, 2, 3], [4, 5]]
