"""The accountant of a run without privacy: it counts who reported, and nothing is claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.accountant import (
    EVERYBODY,
    Accountant,
    Clients,
    Counted,
    Preview,
    Releases,
)
from fl_shuffle.accounting.client_classes import NOISE_KINDS, ClientClass
from fl_shuffle.accounting.columns import ClientTotals
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import NotApplicableError

NO_PRIVACY = "no clipping and no noise (privacy.randomizer = 'none'): epsilon is infinite"
SPENT = ("gspa", "su2025", "rdp", "shuffled", "sum", "local")
ATTACKS = ("shuffled_lower", "sum_lower")


class Unprotected(Accountant):
    """Counts attendance in a run whose reports have neither a clip nor noise.

    Every client that has reported has an infinite epsilon, at every delta below 1: its report is
    its update. No column has a number, and their status is `none`.
    """

    def __init__(
        self, classes: Sequence[ClientClass], class_ids: NDArray[np.int64], **settings: Any
    ) -> None:
        table, nothing = ClassTable.of(classes), np.zeros(len(classes))
        # All that is kept of a class is who belongs to it: no method below reads its noise.
        attending = replace(
            table,
            noise=np.full(len(table), NOISE_KINDS.index("declared"), dtype=np.int8),
            scale=np.ones(len(table)), radius=nothing, sensitivity=nothing, epsilon0=nothing,
        )  # fmt: skip
        super().__init__(attending, class_ids, **settings)
        self._no_sum = NO_PRIVACY

    def preview(self, round_number: int, present: Mask, unusable: int = 0) -> Preview:
        """See `Accountant`."""
        before = self._counted
        after = before._replace(taken=np.asarray(before.taken + self._times * present))
        return Preview(round_number, present.copy(), unusable, before, after, self)

    def _spend(self, preview: Preview) -> Spend:
        columns, reports = _columns(SPENT), int(np.count_nonzero(preview.present))
        number, release = preview.round_number, self.threat_model.release
        return Spend(number, reports, self._delta, None, None, columns, release)

    def _headlines(self, counted: Counted) -> Vector:
        return np.where(counted.taken > 0, math.inf, 0.0)

    @property
    def releases(self) -> Releases:
        """See `Accountant`: no column has a number."""
        columns = dict.fromkeys(("shuffled", "sum", "local", "gspa"), NO_PRIVACY)
        return super().releases._replace(headline="none", reasons=columns)

    def lower_bounds(self) -> dict[str, Column]:
        """See `Accountant`: no attack is needed where the updates are there to read."""
        return _columns(ATTACKS)

    def totals_of(self, clients: Clients = EVERYBODY) -> ClientTotals:
        """See `Accountant`: no column has a number."""
        taken = self._counted.taken[clients]
        none = np.full(len(taken), math.nan)
        headline = np.where(taken > 0, math.inf, 0.0)
        return ClientTotals(taken // self._times, none, none, none, headline)

    def worst_client(self) -> WorstClient | None:
        """Return nobody: there is no curve to show."""
        return None

    def of_client(self, index: int) -> WorstClient | None:
        """Raise `NotApplicableError`: no privacy loss distribution holds."""
        raise NotApplicableError(f"client {index}: {NO_PRIVACY}")


def _columns(names: Sequence[str]) -> dict[str, Column]:
    return {name: Column(name, Status.NONE, NO_PRIVACY, note=NO_PRIVACY) for name in names}
