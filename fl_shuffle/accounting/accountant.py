"""From executed rounds to guarantees: per class of clients, cumulative, and for the worst client.

Pure: `preview` computes what a round would cost without changing anything; `commit` assigns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.certain_loss import certain_losses
from fl_shuffle.accounting.attacks.sum_attack import SUM_LOWER_SOURCE, sum_lower_column
from fl_shuffle.accounting.bounds.gspa import gspa_rest, gspa_shares
from fl_shuffle.accounting.columns import (
    DECLARED_LOCAL_SOURCE,
    DECLARED_NOTE,
    DECLARED_SOURCE,
    LOCAL_SOURCE,
    LOWER_SOURCE,
    SHUFFLED_SOURCE,
    SPECIFIC_SOURCE,
    ClientTotals,
    gspa_column,
    larger_column,
    of_declared_training,
    of_discrete_noise,
    smaller_column,
)
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable, largest_of_classes
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.accounting.rounds.local_guarantees import (
    accounted_locally,
    local_epsilons,
    worst_local_epsilons,
)
from fl_shuffle.accounting.rounds.participation_history import ParticipationHistory
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, largest_epsilon
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView, as_published_type, kind_alone
from fl_shuffle.accounting.rounds.sum_account import SUM_SOURCE, SumAccount
from fl_shuffle.accounting.rounds.trust import ANALYZED, EVERYBODY_HONEST, Trust
from fl_shuffle.accounting.rounds.worst_client import WorstClient

LISTED_CLASSES = 64
"""With more classes than this a round lists only some of the most exposed; the worst client's
epsilon and the totals are over every client."""
PUBLISHED_CLASSES = 1000
"""For more kinds of Laplace reports than this the published column is not computed."""

Mask = NDArray[np.bool_]
Vector = NDArray[np.float64]


@dataclass
class _After:
    """What is counted if the reports of those `present` [n] are released, too; `unusable` of them
    hide nobody."""

    present: Mask
    unusable: int
    histories: ParticipationHistory
    published: ParticipationHistory
    sums: SumAccount
    spend: Spend | None = None
    """What that says, once it was asked for."""


class Accountant:
    """Counts one run's privacy for every client, in columns.

    `gspa`: Chen, Cao, Ge (AAAI 2024) Theorem 2 with sqrt(T) composition, as published.
    `specific`: the blanket bound of the randomizer (Su, Cheng, Wang 2025), as the papers apply it.
    `local`: the exact guarantee of the client's own noise, whatever the shuffler does; proven.
    `proven`: the smallest proven number: local, or the shuffled bound where the theorem gives one.
    `sum`: proven towards whoever sees sums of reports alone.
    `lower`, `sum_lower`: what a known attack on the reports, or on their sums, certainly achieves
    on data chosen for it; not a part of a round's spend, worked out when asked for.

    Relation: replace-one of one `unit`. Epsilons are in nats at the target `delta`, cumulative over
    the rounds a client's report was released in, with the number of reports that really arrived.
    `library` shares one-round curves, which do not depend on delta, between accountants.
    `dimension` of the reports sharpens `lower` only. `trust` says what is released, hence which
    column is the headline, and how many are honest.
    """

    def __init__(
        self,
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        *,
        unit: str,
        schedule: str,
        delta: float,
        library: RoundLibrary | None = None,
        dimension: int | None = None,
        trust: Trust = EVERYBODY_HONEST,
    ) -> None:
        self._classes = ClassTable.of(classes)
        self._alone = accounted_locally(self._classes)
        self._class_of = class_of
        self._unit = unit
        self._delta = delta
        self._taken = np.zeros(len(class_of), dtype=np.int64)
        self._mu_squared = 0.0
        self._library = RoundLibrary() if library is None else library
        # One run has one randomizer.
        self._declared = bool(self._classes.is_noise("user").any())
        self._trained_privately = bool(self._classes.is_noise("declared").any())
        self._local_source = DECLARED_LOCAL_SOURCE if self._declared else LOCAL_SOURCE
        honest = trust.assumed_honest
        self.trust = trust
        self._times = trust.reports_per_round
        self._view = ShuffledView(
            self._classes, class_of, schedule=schedule, unit=unit, assumed_honest=honest
        )
        self._sums = SumAccount.start(
            self._classes, class_of, schedule=schedule, assumed_honest=honest, dimension=dimension
        )
        self._no_sum = ANALYZED if trust.analyzed else self._sums.reason
        self._no_credit = self._view.no_credit_reason()
        # A sum is computed from the shuffled reports: of Laplace ones the smaller cost holds.
        laplace = self._classes.is_noise("laplace")
        self._smaller = bool(laplace.any()) and self._no_sum is None
        self._histories = self._published = ParticipationHistory(np.zeros_like(class_of))
        self._everybody = np.bincount(class_of, minlength=len(self._classes))
        # The members of class c are clients order[start[c]:start[c + 1]].
        self._by_class = np.argsort(class_of, kind="stable")
        self._class_starts = np.concatenate([[0], np.cumsum(self._everybody)])
        self._dimension = dimension
        self._shares = gspa_shares(self._classes.epsilon0, self._classes.delta0)
        self._publishable = 0 < int(laplace.sum()) <= PUBLISHED_CLASSES
        self._totals: ClientTotals | None = None
        self._after: _After | None = None
        self._before: (
            tuple[float, ParticipationHistory, ParticipationHistory, SumAccount, NDArray[np.int64]]
            | None
        ) = None
        """What had been counted before the round that was counted last."""

    @classmethod
    def of(
        cls,
        tables: Mapping[str, Mapping[str, Any]],
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        dimension: int | None = None,
    ) -> Accountant:
        """That of a run with this resolved configuration, given as nested tables."""
        return cls(
            classes,
            class_of,
            unit=tables["privacy"]["unit"],
            schedule=tables["training"]["schedule"],
            delta=tables["privacy"]["target_delta"],
            dimension=dimension,
            trust=Trust.of(tables),
        )

    def class_counts(self, present: Mask) -> NDArray[np.int64]:
        """How many of each class's reports [classes] a mask of clients [n] holds."""
        if present.all():
            return self._everybody
        return np.bincount(self._class_of[present], minlength=len(self._classes))

    def _members(self, index: int) -> NDArray[np.int64]:
        """The clients of a class."""
        return self._by_class[self._class_starts[index] : self._class_starts[index + 1]]

    def preview(self, round_number: int, present: Mask, unusable: int = 0) -> Spend:
        """The cumulative spend if these clients' reports were released; changes nothing.

        `unusable` of the reports cannot be opened or used. Whose they are is unknown, so they count
        as released, and hide nobody: as colluders' reports do.
        """
        # A round is asked about when it is reserved and again when it is committed.
        after = self._counting(present, unusable)
        if after.spend is not None and after.spend.round_number == round_number:
            return after.spend
        counts = self.class_counts(present)
        mu = self._published_mu(counts)
        total = None if mu is None else math.sqrt(self._mu_squared + mu * mu)
        taken = self._listed(present)
        local = self._local(taken)
        # Where every class is listed, the worst of them is the worst client.
        worst = self._worst_local(present) if len(taken) == LISTED_CLASSES else None
        proven = self._proven_column(after.histories, present, local, worst)
        columns = {
            "gspa": gspa_column(total, self._delta, taken),
            "specific": self._specific_column(after.published, taken),
            "proven": proven,
            "sum": self._sum_column(after, taken, proven),
            "local": Column("local", Status.PROVEN, self._local_source, local, overall=worst),
        }
        if self.trust.discrete:
            columns = of_discrete_noise(columns)
        if self._trained_privately:
            columns, mu, total = of_declared_training(columns), None, None
        reports, release = int(counts.sum()), self.trust.release
        after.spend = Spend(round_number, reports, self._delta, mu, total, columns, release)
        return after.spend

    def commit(self, round_number: int, present: Mask, unusable: int = 0) -> None:
        """Count a round whose reports were released; `unusable` of them hide nobody."""
        self._before = (
            self._mu_squared, self._histories, self._published, self._sums, self._taken
        )  # fmt: skip
        mu = self._published_mu(self.class_counts(present))
        self._mu_squared += 0.0 if mu is None else mu * mu
        after = self._counting(present, unusable)
        self._histories, self._published, self._sums = after.histories, after.published, after.sums
        self._taken = self._with(present)
        self._after = self._totals = None

    def take_back(self) -> None:
        """Forget the round that was counted last, so that it is counted anew; once a round."""
        assert self._before is not None
        self._mu_squared, self._histories, self._published, self._sums, self._taken = self._before
        self._before = self._after = self._totals = None

    def count(self, rounds: Sequence[tuple[int, Mask] | tuple[int, Mask, int]]) -> Spend | None:
        """Record these rounds, each with the clients whose reports were released (and how many of
        the reports were unusable); returns what has been spent after the last one, None of none."""
        spend = None
        for index, (number, present, *unusable) in enumerate(rounds, 1):
            spend = self.preview(number, present, *unusable) if index == len(rounds) else None
            self.commit(number, present, *unusable)
        return spend

    def lower_columns(self) -> dict[str, Column]:
        """What known attacks certainly achieve on all that was released so far: the columns `lower`
        and `sum_lower`."""
        taken = self._listed(np.zeros(len(self._taken), dtype=bool))
        sums = Column("sum_lower", Status.LOWER_BOUND, SUM_LOWER_SOURCE, note=self._no_sum or "")
        if self._no_sum is None:
            sums = sum_lower_column(self._sums, self._delta, taken)
        # A sum is computed from the shuffled reports: an attack on it is one on them.
        columns = {"lower": larger_column(self._lower_column(taken), sums), "sum_lower": sums}
        return of_discrete_noise(columns) if self.trust.discrete else columns

    def client_epsilons_after(self, round_number: int, present: Mask, unusable: int = 0) -> Vector:
        """Every client's own headline epsilon [n] if these clients' reports were released;
        `unusable` of them hide nobody."""
        after = self._counting(present, unusable)
        if self._sums_count:
            sums = after.sums.epsilons(self._delta)
            if not self._smaller:
                return sums
        proven = self._each(self._with(present), after.histories)[0]
        return np.minimum(sums, proven) if self._sums_count else proven

    def client_totals(self) -> ClientTotals:
        """What every client has spent so far."""
        if self._totals is None:
            proven, local = self._each(self._taken, self._histories)
            none = np.full(len(self._taken), math.nan)
            sums = none if self._no_sum is not None else self._sums.epsilons(self._delta)
            sums = np.minimum(sums, proven) if self._smaller else sums
            headline = sums if self._sums_count else proven
            if self._trained_privately:
                proven, headline = none, local
            self._totals = ClientTotals(self._taken // self._times, proven, local, sums, headline)
        return self._totals

    def worst_client(self) -> WorstClient | None:
        """The client with the largest headline epsilon, with its curves.

        None where nothing was released.
        """
        if not self._taken.any():
            return None
        return self.of_client(int(np.argmax(self.client_totals().headline)))

    def of_client(self, index: int) -> WorstClient | None:
        """The same of client `index`; None where none of its reports was released."""
        totals = self.client_totals()
        if not totals.rounds[index]:
            return None
        headline, proven = float(totals.headline[index]), totals.proven
        if self._sums_count and (headline < proven[index] or not self._smaller):
            return self._in_sums(index, headline)
        spent = self._histories.distinct[self._histories.group_of[index]]
        if not spent:
            alone = kind_alone(self._classes[int(self._class_of[index])])
            spent = {alone: int(self._taken[index])}
        profile, trade_off = (
            partial(curve, spent) for curve in (self._library.profile, self._library.trade_off)
        )
        return WorstClient(index, headline, profile, trade_off)

    def _in_sums(self, index: int, epsilon: float) -> WorstClient:
        curve = self._sums.curve(index)
        return WorstClient(index, epsilon, curve.profile, curve.trade_off)

    @property
    def sums_are_bounded(self) -> bool:
        """Whether the column `sum` says something."""
        return self._no_sum is None

    @property
    def _sums_count(self) -> bool:
        """Whether the column `sum` is the headline."""
        return self.trust.release == "sum" and self._no_sum is None

    def _sum_column(self, after: _After, taken: dict[int, int], proven: Column) -> Column:
        if self._no_sum is not None:
            return Column("sum", Status.PROVEN, SUM_SOURCE, note=self._no_sum)
        sums = after.sums
        worst = sums.worst_epsilons(self._delta)
        most = None if proven.overall is None else float(worst.max())
        epsilon = {index: float(worst[index]) for index in taken}
        column = Column("sum", Status.PROVEN, SUM_SOURCE, epsilon, overall=most)
        if self._smaller:
            if most is not None:
                own = sums.epsilons(self._delta)
                most = self._worst_proven(after.histories, after.present, own)
            column = smaller_column(column, proven, most)
        return column

    def _each(
        self, taken: NDArray[np.int64], histories: ParticipationHistory
    ) -> tuple[Vector, Vector]:
        """Every client's proven and local epsilon [n]."""
        local = local_epsilons(self._alone, self._class_of, taken, self._delta)
        shuffled = [
            self._library.epsilon(spent, self._delta) if spent else math.inf
            for spent in histories.distinct
        ]
        return np.minimum(local, np.array(shuffled)[histories.group_of]), local

    def _counting(self, present: Mask, unusable: int) -> _After:
        """Everything with this round added; kept, since preview and commit ask alike."""
        after = self._after
        same = after is not None and after.unusable == unusable
        if after is None or not same or not np.array_equal(after.present, present):
            types = self._view.round_types(present, unusable)
            published = {}
            if self._publishable:
                counts = self.class_counts(present)
                for index in np.flatnonzero(counts).tolist():
                    kind = as_published_type(self._classes[index], int(counts[index]))
                    if kind is not None:
                        published[index] = kind
            after = self._after = _After(
                present.copy(),
                unusable,
                self._histories.after(types, self._view.account_of, present, self._times),
                self._published.after(published, self._class_of, present, self._times),
                self._sums.after(present, self._times, unusable),
            )
        return after

    def _published_mu(self, counts: NDArray[np.int64]) -> float | None:
        """The published parameter of a round whose batches hold `counts` [classes]; None where the
        theorem's sum is empty (one report)."""
        rest = gspa_rest(self._shares, counts)
        return math.sqrt(2.0 * self._times / rest) if rest > 0.0 else None

    def _with(self, present: Mask) -> NDArray[np.int64]:
        """How many reports of each client [n] are released if those of this round are, too."""
        return np.asarray(self._taken + self._times * present)

    def _listed(self, present: Mask) -> dict[int, int]:
        """Class -> the most reports that any of its clients has sent, this round's included."""
        most = largest_of_classes(self._with(present), self._class_of, len(self._classes))
        listed = np.flatnonzero(most)
        if len(listed) > LISTED_CLASSES:
            exposure = self._classes.exposure[listed] * np.sqrt(most[listed])
            last = np.argpartition(exposure, -LISTED_CLASSES)
            listed = np.sort(listed[last[-LISTED_CLASSES:]])
        return {int(index): int(most[index]) for index in listed}

    def _local(self, taken: dict[int, int]) -> dict[int, float]:
        """Class -> the local epsilon of so many reports."""
        indices, rounds = np.array(list(taken.items()), dtype=np.int64).reshape(-1, 2).T
        found = local_epsilons(self._alone, indices, rounds, self._delta)
        return dict(zip(taken, found.tolist(), strict=True))

    def _worst_local(self, present: Mask) -> float:
        taken, everybody = self._with(present), np.zeros_like(self._class_of)
        worst = worst_local_epsilons(self._alone, self._class_of, taken, everybody, 1, self._delta)
        return float(worst[0])

    def _worst_proven(
        self, histories: ParticipationHistory, present: Mask, sums: Vector | None = None
    ) -> float:
        """The largest proven epsilon of all clients: max over histories of min(local, shuffled),
        or of the smaller of that and the client's own in `sums` [n]."""
        groups, taken = len(histories.distinct), self._with(present)
        if sums is None:
            local = worst_local_epsilons(
                self._alone, self._class_of, taken, histories.group_of, groups, self._delta
            )
        else:
            own = local_epsilons(self._alone, self._class_of, taken, self._delta)
            local = np.zeros(groups)
            np.maximum.at(local, histories.group_of, np.minimum(own, sums))
        return largest_epsilon(self._library, histories.distinct, self._delta, local.tolist())

    def _proven_column(
        self,
        histories: ParticipationHistory,
        present: Mask,
        local: dict[int, float],
        worst: float | None,
    ) -> Column:
        note = self._no_credit
        if note is not None:
            return Column("proven", Status.PROVEN, self._local_source, local, note, worst)
        epsilon = dict(local)
        for index, own in local.items():
            if met := histories.of(self._members(index)):
                epsilon[index] = largest_epsilon(self._library, met, self._delta, [own] * len(met))
        worst = None if worst is None else self._worst_proven(histories, present)
        source, note = (DECLARED_SOURCE, DECLARED_NOTE) if self._declared else (SHUFFLED_SOURCE, "")
        return Column("proven", Status.PROVEN, source, epsilon, note, worst)

    def _specific_column(self, histories: ParticipationHistory, taken: dict[int, int]) -> Column:
        epsilon = {}
        for index in taken:
            if met := histories.of(self._members(index)):
                no_limit = [math.inf] * len(met)
                epsilon[index] = largest_epsilon(self._library, met, self._delta, no_limit)
        note = "" if epsilon else "it is published for Laplace reports, not for these"
        if not epsilon and self._classes.is_noise("laplace").any():
            note = f"not computed for more than {PUBLISHED_CLASSES:,} kinds of reports"
        return Column("specific", Status.AS_PUBLISHED, SPECIFIC_SOURCE, epsilon, note)

    def _lower_column(self, taken: dict[int, int]) -> Column:
        local = self._local(taken)
        found = certain_losses(
            self._classes, self._everybody, taken, local, self._delta, self._dimension
        )
        epsilon = {index: value for index, value in found.items() if value > 0.0}
        note = "" if epsilon else "no known attack is certain enough here"
        return Column("lower", Status.LOWER_BOUND, LOWER_SOURCE, epsilon, note)
