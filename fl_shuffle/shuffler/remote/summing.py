"""The exact sum of a round's reports, for a shuffler that releases nothing else.

Reports are whole numbers of public steps: their sum is one of integers, without rounding, the same
in every order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement, report_in_steps, report_of_bytes
from fl_shuffle.shuffler.remote.sealing import SealError, open_sealed
from fl_shuffle.shuffler.remote.store import Adding, Summed


def adding(agreement: Agreement, round_number: int, private: bytes) -> Adding:
    """What opens the reports of a round with the shuffler's key and adds them up.

    A client is left out with all its reports where one of them does not open, or is not what an
    honest client sends (on the grid, within the public bound).
    """
    info = agreement.info(round_number)

    def add(rows: Iterable[tuple[int, list[bytes]]]) -> Summed:
        total = np.zeros(agreement.dimension, dtype=np.int64)
        clients = []
        for client, reports in rows:
            each = [_steps(sealed, agreement, info, private) for sealed in reports]
            good = [steps for steps in each if steps is not None]
            if len(good) == agreement.batches:
                total += sum(good)
                clients.append(client)
        return Summed(clients, total.astype("<i8").tobytes())

    return add


def _steps(
    sealed: bytes, agreement: Agreement, info: bytes, private: bytes
) -> NDArray[np.int64] | None:
    try:
        report = report_of_bytes(open_sealed(sealed, private, info), agreement)
    except SealError:
        return None
    return None if report is None else report_in_steps(report, agreement)


def sum_of_content(content: bytes, agreement: Agreement) -> NDArray[np.float64]:
    """The sum [d] that was released, exact. Raises `RunError` if it is none of this run."""
    if len(content) != 8 * agreement.dimension:
        raise RunError("the shuffler released something that is no sum of this run's reports")
    steps = np.frombuffer(content, dtype="<i8")
    return np.asarray(steps.astype(np.float64) * agreement.step, dtype=np.float64)
