"""A preview changes no number, whoever reports in the end."""

from __future__ import annotations

import numpy as np

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import ClientClass


def test_a_preview_for_others_leaves_no_numbers_behind() -> None:
    classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in (2.0, 2.2)]
    everybody, most = np.ones(40, dtype=bool), np.arange(40) >= 3
    plain, ahead = (
        Accountant(
            classes, most.astype(np.int64), unit="client", schedule="sequential",
            delta=1e-5, dimension=3,
        )
        for _ in range(2)
    )  # fmt: skip
    ahead.preview(1, everybody)
    for one in (plain, ahead):
        # The class that an attack serves best stays away.
        one.commit(1, most)
    assert ahead.preview(2, most) == plain.preview(2, most)
    assert ahead.lower_columns() == plain.lower_columns()
    assert plain.lower_columns()["lower"].epsilon[1] > 0.5
