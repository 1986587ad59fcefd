"""What one round's batch is to each class of clients: who hides whom, and why nobody does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.rounds.declared_round import DeclaredRound
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import RoundKind, RoundType
from fl_shuffle.accounting.rounds.sum_account import AssumedHonest, honest_reports
from fl_shuffle.accounting.tolerances import TOLERANCES

Mask = NDArray[np.bool_]


SEQUENTIAL = (
    "shuffling adds nothing here: in a sequential schedule the server sees each report in its place"
)
ONE_OF_SEVERAL = (
    "shuffling adds nothing here: the randomizer's law is not known to the accountant, and the "
    "budget it declares is for one of several records: other clients' reports may differ by more"
)
TOO_FEW_DECLARED = (
    "shuffling adds nothing here: the randomizer's law is not known to the accountant, only the "
    "declared budgets are, and too few clients share one or it is too large; fewer budget levels "
    "(budgets.levels), smaller budgets or more clients would change that"
)
COLLUDERS = (
    "shuffling adds nothing here: with this privacy.assumed_honest {:,} of the reports may be "
    "colluders', and what is left does not hide a client; more clients, or more of them honest, "
    "would change that"
)


class ShuffledView:
    """Groups of clients with the same noise, and the theorem's view of a round for each of them.

    `account_of[i]` is the group client i is accounted in. Clients with equal noise and scale hide
    one another. Where their balls take more than `max_balls_told_apart` sizes, similar ones are
    accounted together at the largest of their radii and sensitivities, which can only raise the
    bound. Clients of the user's own randomizer hide one another where their declared budgets and
    clips are equal, and the budget is for the whole report: unit "client", or one record in each.

    Reports beyond those of `assumed_honest` clients hide nobody: whoever colludes can tell which
    they are, and a bound with fewer reports is one. For each client those are left out that would
    hide it best: of its own kind of noise, in the smallest balls.
    """

    def __init__(
        self,
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        *,
        schedule: str,
        unit: str,
        assumed_honest: AssumedHonest = None,
    ) -> None:
        self._assumed_honest = assumed_honest
        self._sequential = schedule == "sequential"
        members: dict[tuple[str, float], list[int]] = defaultdict(list)
        declared: dict[tuple[float, float, float], list[int]] = defaultdict(list)
        most = TOLERANCES.profile_max_epsilon
        for index, client in enumerate(classes):
            if client.noise != "user":
                members[client.noise, client.scale].append(index)
            elif (unit == "client" or client.records == 1) and client.epsilon0 <= most:
                declared[client.epsilon0, client.delta0, client.radius].append(index)
        group_of_class = np.full(len(classes), -1, dtype=np.int64)
        self._groups: list[ReportClass] = []
        for (noise, scale), indices in members.items():
            ordered = sorted(indices, key=lambda i: (classes[i].radius, classes[i].sensitivity))
            for part in np.array_split(ordered, min(len(ordered), TOLERANCES.max_balls_told_apart)):
                group_of_class[part] = len(self._groups)
                radius = max(classes[i].radius for i in part)
                sensitivity = max(classes[i].sensitivity for i in part)
                self._groups.append(ReportClass(noise, scale, radius, sensitivity, 0))
        # After the groups of known noise come those of a declared budget.
        self._declared: list[tuple[float, float]] = []
        for (epsilon0, delta0, _), indices in declared.items():
            group_of_class[indices] = len(self._groups) + len(self._declared)
            self._declared.append((epsilon0, delta0))
        self.account_of = group_of_class[class_of]
        self._classes = tuple(classes)
        everybody = np.ones(len(class_of), dtype=bool)
        self._whole = self._counts(everybody)
        self._lost_of_all = self._lost(len(class_of))
        # More reports never hide less, so who gets no credit from everybody is not given any.
        self._creditable = () if self._sequential else self._credited()

    def _lost(self, arrived: int) -> int:
        """How many of so many reports may be colluders'."""
        return arrived - honest_reports(self._assumed_honest, arrived) if arrived else 0

    def _counts(self, present: Mask) -> tuple[int, ...]:
        taking = self.account_of[present]
        counts = np.bincount(taking[taking >= 0], minlength=self._size)
        return tuple(counts.tolist())

    @property
    def _size(self) -> int:
        return len(self._groups) + len(self._declared)

    def _kind(self, counts: tuple[int, ...], index: int, lost: int) -> RoundKind:
        """What a batch with these counts is to a client of group `index`, if `lost` of the reports
        are colluders'."""
        if index < len(self._groups):
            return RoundType.of(self._batch(counts), index).without(lost)
        others = max(0, counts[index] - 1 - lost)
        return DeclaredRound(*self._declared[index - len(self._groups)], others)

    def _batch(self, counts: tuple[int, ...]) -> list[ReportClass]:
        return [
            ReportClass(g.noise, g.scale, g.radius, g.sensitivity, count)
            for g, count in zip(self._groups, counts[: len(self._groups)], strict=True)
        ]

    def _credited(self) -> tuple[int, ...]:
        """The groups that the theorem gives any credit in the whole batch."""
        counts = self._whole
        cohort: dict[tuple[str, float], int] = defaultdict(int)
        for group, count in zip(self._groups, counts[: len(self._groups)], strict=True):
            cohort[group.noise, group.scale] += count
        sizes = [cohort[group.noise, group.scale] for group in self._groups]
        sizes += counts[len(self._groups) :]
        return tuple(
            index
            for index, (size, count) in enumerate(zip(sizes, counts, strict=True))
            if count
            and size > 1 + self._lost_of_all
            and self._kind(counts, index, self._lost_of_all).curve().credit
        )

    def round_types(self, present: Mask) -> dict[int, RoundKind]:
        """Group -> how this round looks to its clients, for every group that may ever get credit.

        Such a group is listed in every round, credited or not: its history must be complete. The
        types depend on who is present and on nothing that was asked before.
        """
        if not self._creditable:
            return {}
        counts, lost = self._counts(present), self._lost(int(present.sum()))
        types: dict[int, RoundKind] = {}
        for index in self._creditable:
            if counts[index]:
                kind = self._kind(counts, index, lost)
                whole = self._kind(self._whole, index, self._lost_of_all)
                if isinstance(kind, DeclaredRound):
                    types[index] = kind.lessened()
                elif isinstance(whole, RoundType):
                    types[index] = kind.lessened(whole)
        return types

    def no_credit_reason(self) -> str | None:
        """Why shuffling adds nothing, in words; None where the theorem gives somebody credit."""
        if self._creditable:
            return None
        if self._sequential:
            return SEQUENTIAL
        if not self._groups:
            return TOO_FEW_DECLARED if self._declared else ONE_OF_SEVERAL
        cohorts: dict[tuple[str, float], int] = defaultdict(int)
        for client in self.account_of.tolist():
            if 0 <= client < len(self._groups):
                group = self._groups[client]
                cohorts[group.noise, group.scale] += 1
        if max(cohorts.values()) == 1:
            return (
                "shuffling adds nothing here: every client has a noise scale of its own, and a "
                "report's norm gives its scale away; fewer budget levels (budgets.levels) or "
                "privacy.personalization = 'clipping' would hide clients among one another"
            )
        if self._lost_of_all:
            return COLLUDERS.format(self._lost_of_all)
        far = max(2.0 * group.radius / group.scale for group in self._groups)
        return (
            f"shuffling adds nothing here: other clients' reports are up to {far:.3g} noise widths "
            "away; the shuffler cannot hide this one. A client-level clip (privacy.client_clip), "
            "fewer records per client, more clients or privacy.unit = 'client' would change that"
        )


def as_published_type(client: ClientClass, count: int) -> RoundType | None:
    """The round as the papers account it: `count` equal randomizers, every input within one unit.

    For Laplace reports only; the papers' FFT bound has no Gaussian case. The premise fails for the
    record unit: another client's mean can lie much further away than one record moves this one's.
    """
    if client.noise != "laplace":
        return None
    reach = client.sensitivity / 2.0
    return RoundType(
        client.noise,
        client.scale,
        reach,
        client.sensitivity,
        ((reach, count - 1),) if count > 1 else (),
    )
