"""What one round's batch is to each class of clients: who hides whom, and why nobody does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.bounds.partial_shuffle.profile import PROFILE_MAX_EPSILON
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.client_classes import AnyRound, ClientClass, DeclaredRound, ShuffledRound
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows
from fl_shuffle.accounting.rounds.coarser import coarser
from fl_shuffle.accounting.rounds.round_library import FEW_BALLS, curve_of
from fl_shuffle.accounting.rounds.words import ColumnWords

MAX_BALLS_TOLD_APART = 20
"""Among clients with the same noise, at most this many pairs of radius and sensitivity are told
apart; similar ones are accounted at the larger values."""
LENGTH_CELL = 1e-3
"""Lengths whose logarithms differ by less are similar in any case, if there are too many."""
LEAST_LENGTH = 1e-300
"""Stands for a length of zero, whose logarithm is infinite."""


SEQUENTIAL = (
    "shuffling adds nothing here: in a sequential schedule the server sees each report in its place"
)
DECLARED_MECHANISM = (
    "as the clients declare: nobody checks what noise their training added, and no theorem hides a "
    "report of an unknown distribution among others, so the shuffler is not counted"
)
COLLUDERS = (
    "shuffling adds nothing here: with this privacy.assumed_honest {:,} of the reports may be "
    "colluders', and what is left does not hide a client; more clients, or more of them honest, "
    "would change that"
)


def _parts(radius: Vector, sensitivity: Vector) -> list[NDArray[np.int64]]:
    """Divide classes into at most `MAX_BALLS_TOLD_APART` parts of similar radius and sensitivity.

    A part is accounted at the largest radius and sensitivity in it. Bounds depend on ratios, so
    within a part both differ by at most a common factor, the smallest for which the parts suffice.
    """
    logs = np.log(np.maximum(np.stack([radius, sensitivity]), LEAST_LENGTH))
    # A million classes have few distinct cells: only those are divided. Each part is
    # a set of cells, so a class may lie one cell further away than the factor says.
    cells = np.floor((logs - logs.min(axis=1, keepdims=True)) / LENGTH_CELL)
    if radius.size <= MAX_BALLS_TOLD_APART:
        return [np.array([i]) for i in range(radius.size)]
    # One representative for each cell; `cells` are whole numbers, so equal rows are equal
    # exactly.
    rows = distinct_rows(*cells)
    places = cells[:, rows.first] * LENGTH_CELL
    low, high = 0.0, float(np.ptp(places, axis=1).max())
    part = np.zeros(rows.first.size, dtype=np.int64)
    # Bisection on the common factor: wider intervals never need more parts.
    while high - low > LENGTH_CELL:
        width = 0.5 * (low + high)
        found = _part_of(places, width)
        if found is None:
            low = width
        else:
            high, part = width, found
    of_class = part[rows.inverse]
    order = np.argsort(of_class, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(of_class[order])) + 1)


def _part_of(places: Vector, width: float) -> NDArray[np.int64] | None:
    """Return the part of each place, shape (places,), in increasing order; None if too many.

    `places` [2, places]: radii in increasing order, and sensitivities. Intervals of `width` are
    taken from the largest radius downwards, and in each of them from the largest sensitivity.
    """
    parts: list[NDArray[np.int64]] = []
    # From the top downwards: a part is accounted at its largest lengths, so intervals end there.
    top = places.shape[1]
    while top > 0:
        start = int(np.searchsorted(places[0], places[0, top - 1] - width))
        order = start + np.argsort(places[1, start:top], kind="stable")
        values, end = places[1, order], top - start
        while end > 0:
            if len(parts) == MAX_BALLS_TOLD_APART:
                return None
            first = int(np.searchsorted(values, values[end - 1] - width))
            parts.append(order[first:end])
            end = first
        top = start
    found = np.empty(places.shape[1], dtype=np.int64)
    for number, members in enumerate(reversed(parts)):
        found[members] = number
    return found


class ShuffledView:
    """Groups of clients with the same noise, and the theorem's view of a round for each of them.

    `account_of[i]` is the group client i is accounted in. Clients with equal noise and scale (and
    grid, if their noise is discrete) hide one another. Where their balls take more than
    `MAX_BALLS_TOLD_APART` sizes, similar ones are accounted together at the largest of their radii
    and sensitivities, which can only raise the bound. Clients of the user's own randomizer hide one
    another where their declared budgets and clips are equal, and the budget is for the whole
    report: unit "client", or one record in each.

    Reports beyond those of `assumed_honest` clients hide nobody: colluders know which
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
        self._unit = unit
        self._sequential = schedule == "sequential"
        self._classes = ClassTable.of(classes)
        self._group_of_class = np.full(len(self._classes), -1, dtype=np.int64)
        self._groups: list[ClientClass] = []
        self._cohort_of: list[slice] = []
        """Of each group: the groups with the same noise."""
        self._add_cohorts(np.bincount(class_of, minlength=len(self._classes)))
        # After the groups of known noise come those of a declared budget.
        self._declared: list[tuple[float, float]] = []
        self._add_declared()
        self.account_of = self._group_of_class[class_of]
        self._whole: tuple[int, ...] = self._counts_of(self.account_of)
        self._lost_of_all = self._lost(len(class_of))

    def _lost(self, arrived: int, unusable: int = 0) -> int:
        """Return how many of the reports that arrived hide nobody: those of colluders, and the
        `unusable` ones, whose senders are unknown: all of them may be honest."""
        if not arrived:
            return 0
        # The client itself is always one of the honest ones.
        return arrived - max(1, honest_reports(self._assumed_honest, arrived) - unusable)

    def _add_cohorts(self, clients: NDArray[np.int64]) -> None:
        """Add groups of those whose noise somebody else has as well; `clients` [classes]."""
        table = self._classes
        unknown = table.is_noise("user") | table.is_noise("declared")
        known = np.flatnonzero(~unknown & (clients > 0))
        alike = table.noise[known], table.scale[known], table.step[known]
        # A report of another kind, scale, or grid can be told apart, so it hides nobody (section
        # 5, "Noise scales"; section 14 for discrete noise).
        cohort = distinct_rows(*alike).inverse
        # A client without company in its cohort keeps its local guarantee: no group is needed.
        shared = np.bincount(cohort, clients[known])[cohort] > 1
        known, cohort = known[shared], cohort[shared]
        # `_parts` and `_part_of` need radii in increasing order within a cohort.
        order = np.lexsort((table.sensitivity[known], table.radius[known], cohort))
        known, cohort = known[order], cohort[order]
        for members in np.split(known, np.flatnonzero(np.diff(cohort)) + 1) if known.size else ():
            parts = [
                members[part] for part in _parts(table.radius[members], table.sensitivity[members])
            ]
            first = len(self._groups)
            own = table[int(members[0])]
            for part in parts:
                self._group_of_class[part] = len(self._groups)
                # The largest of both: what a client of the part can do, a client of these lengths
                # can do.
                radius, sensitivity = table.radius[part].max(), table.sensitivity[part].max()
                self._groups.append(
                    replace(own, radius=float(radius), sensitivity=float(sensitivity))
                )
            self._cohort_of += [slice(first, len(self._groups))] * len(parts)

    def _add_declared(self) -> None:
        """Add groups of equal declared budgets, where the budget is for the whole report."""
        table = self._classes
        usable = table.is_noise("user") & (table.epsilon0 <= PROFILE_MAX_EPSILON)
        if self._unit != "client":
            # Replacing one of several records moves one report within its budget, but two
            # clients' reports may differ in all records: the profile's premise, any two reports,
            # would fail.
            usable &= table.records == 1
        known = np.flatnonzero(usable)
        rows = distinct_rows(table.epsilon0[known], table.delta0[known], table.radius[known])
        self._group_of_class[known] = len(self._groups) + rows.inverse
        self._declared = [
            (float(table.epsilon0[index]), float(table.delta0[index]))
            for index in known[rows.first].tolist()
        ]

    def _counts(self, present: Mask) -> tuple[int, ...]:
        return self._whole if present.all() else self._counts_of(self.account_of[present])

    def _counts_of(self, taking: NDArray[np.int64]) -> tuple[int, ...]:
        counts = np.bincount(taking[taking >= 0], minlength=self._size)
        return tuple(counts.tolist())

    @property
    def kinds(self) -> int:
        """How many kinds of reports are certified one by one."""
        return len(self._groups)

    @cached_property
    def _creditable(self) -> dict[int, AnyRound]:
        """More reports never hide less, so who gets no credit from everybody is not given any."""
        return {} if self._sequential else self._credited()

    @property
    def _size(self) -> int:
        return len(self._groups) + len(self._declared)

    def _kinds(
        self, counts: tuple[int, ...], indices: Sequence[int], lost: int
    ) -> dict[int, AnyRound]:
        """Return what a batch with these counts is to a client of each of these groups, if `lost`
        of the reports are colluders'."""
        batch = [replace(group, count=counts[i]) for i, group in enumerate(self._groups)]
        return {index: self._kind(batch, counts, index, lost) for index in indices}

    def _kind(
        self, batch: Sequence[ClientClass], counts: tuple[int, ...], index: int, lost: int
    ) -> AnyRound:
        if index >= len(self._groups):
            # The client itself is one of the counted reports.
            others = max(0, counts[index] - 1 - lost)
            return DeclaredRound(*self._declared[index - len(self._groups)], others)
        cohort = self._cohort_of[index]
        kind = ShuffledRound.of(batch[cohort], index - cohort.start)
        if cohort.stop - cohort.start > FEW_BALLS:
            # Certifying a curve for each of many balls takes long: with the same others all around
            # that of the largest ball holds for everybody.
            kind = kind.in_smallest_place()
        # Colluders are taken from the smallest balls, because those hide best: any choice of
        # theirs hides no worse.
        return kind.without(lost)

    def _credited(self) -> dict[int, AnyRound]:
        """Return the groups that the theorem gives any credit in the whole batch, and what that is
        to them."""
        counts, lost = self._whole, self._lost_of_all
        sizes = [sum(counts[cohort]) for cohort in self._cohort_of]
        sizes += counts[len(self._groups) :]
        # Somebody else's honest report has to be left beside the client's own.
        hidden = [i for i, size in enumerate(sizes) if counts[i] and size > 1 + lost]
        wholes = self._kinds(counts, hidden, lost)
        return {index: whole for index, whole in wholes.items() if curve_of(whole).credit}

    def round_types(self, present: Mask, unusable: int = 0) -> dict[int, AnyRound]:
        """Group -> how this round looks to its clients, for every group that may ever get credit.

        `unusable` of the reports hide nobody, and whose they are is unknown.

        Such a group is listed in every round, credited or not: its history must be complete. The
        types depend on who is present and on nothing that was asked before.
        """
        counts = self._counts(present)
        lost = self._lost(int(np.count_nonzero(present)), unusable)
        # Groups of which nobody came have no history to extend.
        here = [index for index in self._creditable if counts[index]]
        found = self._kinds(counts, here, lost)
        return {index: coarser(kind, self._creditable[index]) for index, kind in found.items()}

    def no_credit_reason(self, words: ColumnWords) -> str | None:
        """Return why shuffling adds nothing, in words; None where the theorem gives somebody
        credit."""
        if self._creditable:
            return None
        if self._sequential:
            return SEQUENTIAL
        if bool(self._classes.is_noise("declared").any()):
            return DECLARED_MECHANISM
        if bool(self._classes.is_noise("user").all()):
            return words.too_few if self._declared else words.one_of_several
        if not self._groups:
            return (
                "shuffling adds nothing here: every client has a noise scale of its own, and a "
                "report's norm gives its scale away; fewer budget levels (budgets.levels) or "
                "privacy.personalization = 'clipping' would hide clients among one another"
            )
        if self._lost_of_all:
            return COLLUDERS.format(self._lost_of_all)
        remedy = (
            "More clients or lower budgets"
            if self._unit == "client"
            else "A client-level clip (privacy.client_clip_norm), fewer records per client, more "
            "clients or privacy.unit = 'client'"
        )
        far = max(2.0 * group.radius / group.scale for group in self._groups)
        return (
            f"shuffling adds nothing here: other clients' reports are up to {far:.3g} noise "
            f"standard deviations away; the shuffler cannot hide this one. {remedy} would "
            "change that"
        )


def kind_alone(client: ClientClass) -> AnyRound:
    """Return a round in which nobody hides this client: what its own noise does, or is declared to
    do."""
    if client.noise == "user":
        return DeclaredRound(client.epsilon0, client.delta0, 0)
    return ShuffledRound(client.law.noise, client.hiding_scale, client.radius, client.sensitivity)


def as_published_type(client: ClientClass, count: int) -> ShuffledRound | None:
    """Return the round as the papers account it: `count` equal randomizers, every input within one
    unit.

    For Laplace reports only; the papers' FFT bound has no Gaussian case. The premise fails for the
    record unit: another client's mean can lie much further away than one record moves this one's.
    """
    if client.noise != "laplace":
        return None
    # All means within one unit's change: a ball with that diameter, the client's and the others'.
    reach = client.sensitivity / 2.0
    return ShuffledRound(
        client.noise,
        client.scale,
        reach,
        client.sensitivity,
        ((reach, count - 1),) if count > 1 else (),
    )
