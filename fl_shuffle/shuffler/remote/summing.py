"""The exact sum of a round's reports, for a shuffler that releases nothing else.

Reports are whole numbers of public steps: their sum is one of integers, without rounding, the same
in every order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement, opened_report


def sum_of_usable(
    deliveries: Iterable[tuple[int, list[bytes]]],
    agreement: Agreement,
    round_number: int,
    private: bytes,
) -> tuple[list[int], bytes]:
    """The clients that are in the sum, and the sum as it is released, of (client, its sealed
    reports), opened with the shuffler's key.

    A client is left out with all its reports where one of them does not open, or is not what an
    honest client sends (on the grid, within the public bound).
    """
    total, clients = np.zeros(agreement.dimension, dtype=np.int64), []
    for client, sealed in deliveries:
        each = [opened_report(one, private, agreement, round_number) for one in sealed]
        reports = [report for report in each if report is not None]
        if len(reports) == agreement.batches:
            total += sum((one / agreement.step).astype(np.int64) for one in reports)
            clients.append(client)
    return clients, total.astype("<i8").tobytes()


def sum_of_content(content: bytes, agreement: Agreement) -> NDArray[np.float64]:
    """The sum [d] that was released, exact. Raises `RunError` if it is none of this run."""
    if len(content) != agreement.piece_bytes:
        raise RunError("the shuffler released something that is no sum of this run's reports")
    steps = np.frombuffer(content, dtype="<i8")
    return np.asarray(steps.astype(np.float64) * agreement.step, dtype=np.float64)
