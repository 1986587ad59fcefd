"""What Renyi divergences of the shuffled pair say of a run's rounds: the column `rdp`.

In a round every report counts as one of the largest local epsilon among those that arrived, and the
batch as the number of reports that arrived from honest clients. A client's divergences of the
rounds in which it reported add up at every order; `bounds.renyi.rounds_epsilon` converts their sum,
as it does for `fs.bound(method="rdp")`.

Validity. Reports with Laplace noise of one scale are one randomizer: the mean of any of them lies
in the ball of the largest radius, so any two are within the largest epsilon0 of each other, which
is the premise of the theorem (`bounds.renyi`). A client with a smaller ball is a special case of
one with the largest. Where noise scales differ, where a report's budget is for one of several
records, and where reports are used one by one, the premise fails: the number is then that of the
published formula, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fl_shuffle._internal.arrays import Counts, Mask, Vector
from fl_shuffle.accounting.bounds.renyi import (
    CONVERSION,
    RDP_SOURCE,
    PureRound,
    pure_epsilon,
    rounds_divergence,
    rounds_epsilon,
)
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.client_classes import ROUND_EXACT_REPORTS, ClientClass
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows
from fl_shuffle.accounting.rounds.events import Column

RDP_COLUMN_SOURCE = f"{RDP_SOURCE}; rounds add up; converted by {CONVERSION}"
NOT_PURE = "it is for reports with a pure local budget, as Laplace noise gives one"
TOO_LARGE = f"it is evaluated for local budgets up to epsilon0 = {MAX_EPSILON0:g}"
ONE_BY_ONE = (
    "no guarantee: the formula takes the order of the reports for unknown, and in a sequential "
    "schedule the server uses each client's report in its place"
)
OF_SEVERAL_RECORDS = (
    "no guarantee: reports count as if replacing one record were all by which any two of them "
    "differ, and reports of several records differ by more"
)
SEVERAL_RANDOMIZERS = (
    "no guarantee: reports with different noise count as if all had one noise, at the largest "
    "epsilon0"
)
SAME = 1e-9
"""Relative: what a radius and a sensitivity that mean the same may differ by through round-off."""


def counted_reports(reports: int, whole: int) -> int:
    """Return the number of reports that a batch of `reports` honest ones is counted as.

    At most `reports`: fewer reports hide less. Up to `ROUND_EXACT_REPORTS`, and where everybody of
    `whole` is there, it is exact. Otherwise it is a multiple of a power of two that is at most
    the square root of the number, or a hundredth of it if that is more: each distinct number costs
    a divergence at some fifty orders.
    """
    if reports <= ROUND_EXACT_REPORTS or reports == whole:
        return reports
    # The divergence is about proportional to 1/reports: leaving out a share of them costs that
    # share of it.
    unit: int = 2 ** math.floor(math.log2(max(math.sqrt(reports), 0.01 * reports)))
    return unit * (reports // unit)


@dataclass(frozen=True)
class Premise:
    """What the theorem makes of a run's reports.

    `epsilon0` is each class's local budget, shape (classes,), as the theorem needs it. `status` and
    `note` say what the number may claim, and why no more. `reason` says why there is none.
    """

    epsilon0: Vector
    status: Status = Status.AS_PUBLISHED
    note: str = ""
    reason: str | None = None

    @classmethod
    def of(cls, classes: ClassTable, present: Mask, *, schedule: str, unit: str) -> Premise:
        """Return the premise of the classes [classes] that have clients: those in the mask
        `present` [classes]."""
        laplace, user = classes.is_noise("laplace"), classes.is_noise("user")
        pure = laplace | (user & (classes.delta0 == 0.0))
        # Of Laplace noise the move over the scale; of a declared budget epsilon0 itself.
        budget = classes.exposure
        if not pure[present].all():
            return cls(budget, reason=NOT_PURE)
        if not budget[present].max(initial=0.0) <= MAX_EPSILON0:
            return cls(budget, reason=TOO_LARGE)
        if schedule == "sequential":
            return cls(budget, note=ONE_BY_ONE)
        # Equal declared budgets are one randomizer only where clips are equal, too.
        scale = np.where(user, classes.epsilon0, classes.scale)
        radius = np.where(user, classes.radius, 0.0)
        if len(distinct_rows(classes.noise[present], scale[present], radius[present]).first) > 1:
            return cls(budget, note=SEVERAL_RANDOMIZERS)
        if user[present].any():
            whole = unit == "client" or bool((classes.records[present] == 1).all())
            note = "" if whole else OF_SEVERAL_RECORDS
            return cls(budget, Status.PROVEN if whole else Status.AS_PUBLISHED, note)
        # Of any two means in the ball, whichever records differ.
        reach = 2.0 * classes.radius / classes.scale
        if not (reach[present].max() <= budget[present].max() * (1.0 + SAME)):
            return cls(budget, note=OF_SEVERAL_RECORDS)
        # Each class counts by how far any two of its means may be apart. For a class of smaller
        # balls than the largest ones this may be more than one record moves a mean.
        return cls(np.maximum(reach, budget), Status.PROVEN)


@dataclass(frozen=True)
class RenyiAccount:
    """The rounds in which each client reported, as the theorem sees them; immutable.

    Client i has been in `counts[group_of[i], k]` batches like `batches[k]`. `everybody` is the
    number of honest reports if all clients report. Neighbors: replace-one.
    """

    premise: Premise
    class_of: Counts
    assumed_honest: AssumedHonest
    everybody: int
    group_of: Counts
    batches: tuple[PureRound, ...] = ()
    counts: Counts = field(default_factory=lambda: np.zeros((1, 0), dtype=np.int64))

    @classmethod
    def start(
        cls,
        classes: Sequence[ClientClass],
        class_of: Counts,
        *,
        schedule: str,
        unit: str,
        assumed_honest: AssumedHonest = None,
    ) -> RenyiAccount:
        """Return an account with nothing released yet. `class_of[i]` is client i's class."""
        table = ClassTable.of(classes)
        present = np.bincount(class_of, minlength=len(table)) > 0
        premise = Premise.of(table, present, schedule=schedule, unit=unit)
        everybody = honest_reports(assumed_honest, max(1, len(class_of)))
        return cls(premise, class_of, assumed_honest, everybody, np.zeros_like(class_of))

    def after(self, present: Mask, times: int = 1, unusable: int = 0) -> RenyiAccount:
        """Return one more round of `times` batches, each with a report of these clients [n].

        `unusable` of the reports hide nobody, and whose they are is unknown: all of them may be
        honest ones.
        """
        arrived = int(np.count_nonzero(present))
        if self.premise.reason is not None or not arrived:
            return self
        honest = max(1, honest_reports(self.assumed_honest, arrived) - unusable)
        # The theorem has one epsilon0 for all: the largest one that arrived.
        largest = float(self.premise.epsilon0[self.class_of[present]].max())
        batch = PureRound(largest, counted_reports(honest, self.everybody))
        batches, counts = self.batches, self.counts
        if batch not in batches:
            batches = (*batches, batch)
            counts = np.pad(counts, ((0, 0), (0, 1)))
        place = batches.index(batch)
        # Everybody was there: every history grows by the same batch, and no two become distinct.
        if arrived == len(present):
            counts = counts.copy()
            counts[:, place] += times
            return replace(self, batches=batches, counts=counts)
        # Each history splits into those who were there and those who were not.
        keys, inverse = np.unique(2 * self.group_of + present, return_inverse=True)
        counts = counts[keys // 2]
        counts[:, place] += times * (keys % 2)
        # Histories that have become equal are joined again.
        rows = distinct_rows(*counts.T)
        group_of = rows.inverse[inverse.reshape(-1)]
        return replace(self, batches=batches, counts=counts[rows.first], group_of=group_of)

    def column(
        self, delta: float, classes: Mapping[int, int], members: Callable[[int], Counts]
    ) -> Column:
        """Return the column after these rounds: the most exposed client of each of `classes`, and
        of all.

        `members` gives the clients of a class. Raises nothing: where there is no number, the
        column's note says why.
        """
        premise = self.premise
        if premise.reason is not None:
            return Column("rdp", premise.status, RDP_COLUMN_SOURCE, note=premise.reason)
        worst = self.worst(delta)
        epsilon = dict.fromkeys(classes, worst)
        if len(self.counts) > 1:
            epsilon = {
                index: self.worst(delta, np.unique(self.group_of[members(index)]))
                for index in classes
            }
        return Column("rdp", premise.status, RDP_COLUMN_SOURCE, epsilon, premise.note, worst)

    def worst(self, delta: float, groups: Counts | None = None) -> float:
        """Return the largest epsilon at `delta` of the clients of these groups (default: all)."""
        counts = self.counts if groups is None else self.counts[groups]
        epsilon0 = np.array([batch.epsilon0 for batch in self.batches])
        pure, worst = counts @ epsilon0, 0.0
        # The largest sum of local budgets is a good first guess of the most exposed history.
        at = int(np.argmax(pure))
        while pure.size:
            found = rounds_epsilon(self._rounds(counts[at]), delta)
            worst = max(worst, found.epsilon)
            each = np.array([rounds_divergence({batch: 1}, found.order) for batch in self.batches])
            spent = counts @ each
            # Who has no larger divergence at that order costs no more than this client's
            # conversion; and nobody costs more than its own noise allows.
            capped = found.epsilon >= pure_epsilon(self._rounds(counts[at]))
            # A client whose local budgets add up to no more than the largest epsilon so far
            # cannot exceed it.
            left = (pure > worst) & (capped | (spent > spent[at]))
            left[at] = False
            counts, pure, spent = counts[left], pure[left], spent[left]
            at = int(np.argmax(spent)) if spent.size else 0
        return worst

    def _rounds(self, counts: Counts) -> dict[PureRound, int]:
        """Return the batches of a client with these counts [batches]."""
        found = zip(self.batches, counts.tolist(), strict=True)
        return {batch: times for batch, times in found if times}
