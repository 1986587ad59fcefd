"""From executed rounds to guarantees: per class, cumulative, and for the most exposed client.

Pure: `preview` makes what a round would cost, without changing anything; `commit` takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle._internal.renamed import (
    RenamedKeys,
    renamed_arguments,
    renamed_attribute,
    warn_renamed,
)
from fl_shuffle.accounting.bounds.gspa import gspa_rest, gspa_shares
from fl_shuffle.accounting.client_classes import NO_NOISE, ClientClass
from fl_shuffle.accounting.columns import (
    SU2025_SOURCE,
    ClientTotals,
    gspa_column,
    larger_column,
    of_declared_training,
    smaller_column,
)
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.lower_bounds.certain_loss import certain_losses
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_lower_column
from fl_shuffle.accounting.rounds.class_table import ClassTable, largest_of_classes
from fl_shuffle.accounting.rounds.events import OLD_COLUMNS, Column, Spend
from fl_shuffle.accounting.rounds.local_guarantees import (
    accounted_locally,
    local_epsilons,
    worst_local_epsilons,
)
from fl_shuffle.accounting.rounds.participation_history import ParticipationHistory
from fl_shuffle.accounting.rounds.renyi_account import RenyiAccount
from fl_shuffle.accounting.rounds.round_library import FEW_BALLS, RoundLibrary, largest_epsilon
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView, as_published_type, kind_alone
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.threat_model import (
    EVERYBODY_HONEST,
    ROUNDED_LESS,
    ThreatModel,
)
from fl_shuffle.accounting.rounds.words import words_for
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError, NotApplicableError

LISTED_CLASSES = 64
"""With more classes than this a round lists only some of the most exposed; the most exposed
client's epsilon and the totals are over every client."""
PUBLISHED_CLASSES = 1000
"""For more kinds of Laplace reports than this the published column is not computed."""
NOT_ASKED_FOR = (
    "not computed: the run releases sums alone, and each of {:,} kinds of reports would take "
    "seconds; `fl-shuffle ledger RUN --recompute --clients` computes it"
)
"""Why nothing is said of shuffled reports in a run whose headline is that of their sums."""


Clients = NDArray[np.int64] | slice
EVERYBODY = slice(None)
SPEND_NAMES = frozenset(
    name for name in (*Spend.__dataclass_fields__, *vars(Spend)) if name[0] != "_"
)
"""What a `Spend` has."""


class Counted(NamedTuple):
    """All that an accountant has counted, or would have counted."""

    mu_squared: float
    histories: ParticipationHistory
    published: ParticipationHistory
    renyi: RenyiAccount
    sums: SumAccount
    taken: NDArray[np.int64]
    """How many reports of each client [n] were released."""


@dataclass(frozen=True, eq=False)
class Preview:
    """A round that may be counted: its reports, and what would have been counted with them.

    Made by `Accountant.preview`, and counted by `Accountant.commit`. Numbers are computed when they
    are asked for, and once.
    """

    round_number: int
    present: Mask
    unusable: int
    before: Counted
    after: Counted
    accountant: Accountant = field(repr=False)

    def is_of(self, round_number: int, present: Mask) -> bool:
        """Return whether it is this round's, with these reports, all of them usable."""
        same = self.round_number == round_number and not self.unusable
        return same and np.array_equal(self.present, present)

    @cached_property
    def spend(self) -> Spend:
        """The cumulative spend if these clients' reports are released."""
        return self.accountant._spend(self)

    def client_epsilons(self) -> Vector:
        """Return every client's own headline epsilon [n] if these clients' reports are released."""
        return self.accountant._headlines(self.after)

    def __getattr__(self, name: str) -> Any:
        # In version 0.2 a preview was its spend.
        if name in SPEND_NAMES:
            warn_renamed(f"Preview.{name}", f"Preview.spend.{name}")
            return getattr(self.spend, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Accountant:
    """Account for the privacy of a federation, round by round and for every client.

    The accountant counts the rounds in which each client's report was released, together with the
    number of reports that really arrived. `preview` computes what a round would cost and changes
    nothing. `commit` counts the round.

    Parameters
    ----------
    classes : sequence of ClientClass
        Classes of clients with identical randomizers.
    class_ids : ndarray of int64, shape (clients,)
        Index into `classes` for every client.
    unit : {"record", "client"}
        Unit of privacy that neighbors replace.
    schedule : {"aggregate", "sequential"}
        Whether all clients of a round answer the same model, or one after the other.
    delta : float
        Target delta of every epsilon, in (0, 1).
    library : RoundLibrary, optional
        Cache of one-round curves, which do not depend on delta, to share between accountants.
    dimension : int, optional
        Number of coordinates of a report. It sharpens the column `shuffled_lower` only.
    threat_model : ThreatModel, optional
        What is released, hence which column is the headline, and how many clients are honest. By
        default, shuffled reports are seen and all clients are honest.
    every_column : bool, default False
        Whether to certify reports of more than `FEW_BALLS` kinds one by one also where sums are
        released (`NOT_ASKED_FOR`).

    Notes
    -----
    Columns, all in nats at `delta`, cumulative, for replace-one neighbors that differ in one
    `unit`:

    ``local``
        The exact guarantee of the client's own noise, whatever the shuffler does. Proven.
    ``shuffled``
        The smallest proven number against an attacker who sees the shuffled reports: `local`, or
        the shuffled bound where the theorem gives one. Proven.
    ``sum``
        Against an attacker who sees only sums of reports. Proven.
    ``gspa``
        Chen, Cao, Ge (AAAI 2024), Theorem 2, with sqrt(T) composition. As published: no guarantee.
    ``su2025``
        The blanket bound of the randomizer (Su, Cheng, Wang 2025), as the papers apply it.
    ``rdp``
        Renyi divergences of the shuffled pair (Chen, Cao, Ge, ICASSP 2024), of pure reports.
    ``shuffled_lower``, ``sum_lower``
        What a known attack on the reports, or on their sums, certainly achieves on data chosen for
        it. Not a part of a round's spend: call `lower_bounds`.

    Direction of error: every numerical error raises a proven column, and lowers a lower bound.

    Examples
    --------
    500 clients with Gaussian noise. Client 17 drops out of both rounds:

    >>> import numpy as np
    >>> from fl_shuffle.accounting import Accountant, ClientClass
    >>> kind = ClientClass("gaussian", scale=4.0, radius=1.0, sensitivity=2.0)
    >>> accountant = Accountant(
    ...     [kind], np.zeros(500, dtype=np.int64), unit="client", schedule="aggregate", delta=1e-6
    ... )
    >>> arrived = np.arange(500) != 17
    >>> for number in (1, 2):
    ...     preview = accountant.preview(number, arrived)
    ...     accountant.commit(preview)
    >>> round(preview.spend.headline, 3), round(preview.spend.columns["local"].worst, 3)
    (0.129, 3.308)
    >>> accountant.client_totals().rounds[[16, 17]].tolist()
    [2, 0]
    """

    @renamed_arguments(class_of="class_ids", trust="threat_model")
    def __init__(
        self,
        classes: Sequence[ClientClass],
        class_ids: NDArray[np.int64],
        *,
        unit: str,
        schedule: str,
        delta: float,
        library: RoundLibrary | None = None,
        dimension: int | None = None,
        threat_model: ThreatModel = EVERYBODY_HONEST,
        every_column: bool = False,
    ) -> None:
        self._classes = ClassTable.of(classes)
        # Rounded up to few distinct distributions where each costs a convolution.
        self._alone = accounted_locally(self._classes)
        self._class_of = class_ids
        self._unit = unit
        self._delta = delta
        self._library = RoundLibrary() if library is None else library
        # One run has one randomizer.
        self._declared = bool(self._classes.is_noise("user").any())
        self._trained_privately = bool(self._classes.is_noise("declared").any())
        self._words = words_for(declared=self._declared, discrete=threat_model.discrete)
        honest = threat_model.assumed_honest
        self.threat_model = threat_model
        self._times = threat_model.reports_per_round
        self._view = ShuffledView(
            self._classes, class_ids, schedule=schedule, unit=unit, assumed_honest=honest
        )
        sums = SumAccount.start(
            self._classes, class_ids, schedule=schedule, assumed_honest=honest,
            dimension=dimension, words=self._words,
        )  # fmt: skip
        renyi = RenyiAccount.start(
            self._classes, class_ids, schedule=schedule, unit=unit, assumed_honest=honest
        )
        self._no_sum = threat_model.no_sum or sums.reason
        # A sum is computed from the shuffled reports: of Laplace ones the smaller cost holds.
        laplace = self._classes.is_noise("laplace")
        self._smaller = bool(laplace.any()) and self._no_sum is None
        many = self._view.kinds > FEW_BALLS and self._sums_count and not self._smaller
        self.unasked = NOT_ASKED_FOR.format(self._view.kinds) if many else ""
        """Why a run's own column `shuffled` is not computed, in words; empty where it is."""
        self._unasked = "" if every_column else self.unasked
        # Nobody has a round yet: one history, the empty one, for all clients.
        none = ParticipationHistory(np.zeros_like(class_ids))
        taken = np.zeros(len(class_ids), dtype=np.int64)
        self._counted = Counted(0.0, none, none, renyi, sums, taken)
        self._everybody = np.bincount(class_ids, minlength=len(self._classes))
        # The members of class c are clients order[start[c]:start[c + 1]].
        self._by_class = np.argsort(class_ids, kind="stable")
        self._class_starts = np.concatenate([[0], np.cumsum(self._everybody)])
        self._dimension = dimension
        self._shares = gspa_shares(self._classes.epsilon0, self._classes.delta0)
        self._publishable = 0 < int(laplace.sum()) <= PUBLISHED_CLASSES
        # Every client's totals cost a composition for each history: kept until the next round.
        self._totals: ClientTotals | None = None
        self._before: Counted | None = None
        """What had been counted before the round that was counted last."""

    @classmethod
    @renamed_arguments(class_of="class_ids")
    def of(
        cls,
        tables: Mapping[str, Mapping[str, Any]],
        classes: Sequence[ClientClass],
        class_ids: NDArray[np.int64],
        dimension: int | None = None,
        library: RoundLibrary | None = None,
        *,
        every_column: bool = False,
    ) -> Accountant:
        """Return the accountant of a run with this resolved configuration.

        Parameters
        ----------
        tables : mapping of str to mapping
            The configuration as nested tables.
        classes, class_ids, dimension, library, every_column
            As for the class.

        Returns
        -------
        Accountant
            One that counts nothing yet.
        """
        made: type[Accountant] = cls
        if tables["privacy"]["randomizer"] == NO_NOISE:
            from fl_shuffle.accounting.unprotected import Unprotected

            made = Unprotected
        return made(
            classes,
            class_ids,
            unit=tables["privacy"]["unit"],
            schedule=tables["training"]["schedule"],
            delta=tables["privacy"]["target_delta"],
            library=library,
            dimension=dimension,
            threat_model=ThreatModel.of(tables),
            every_column=every_column,
        )

    trust = renamed_attribute("trust", "threat_model")

    def class_counts(self, present: Mask) -> NDArray[np.int64]:
        """Return how many of each class's reports [classes] a mask of clients [n] holds."""
        if present.all():
            return self._everybody
        return np.bincount(self._class_of[present], minlength=len(self._classes))

    def _members(self, index: int) -> NDArray[np.int64]:
        """Return the clients of a class."""
        return self._by_class[self._class_starts[index] : self._class_starts[index + 1]]

    def preview(self, round_number: int, present: Mask, unusable: int = 0) -> Preview:
        """Return what a round would cost if these clients' reports were released; change nothing.

        Parameters
        ----------
        round_number : int
            Number of the round, from 1.
        present : ndarray of bool, shape (clients,)
            Clients whose reports arrived.
        unusable : int, default 0
            Number of reports that cannot be opened or used. Whose they are is unknown, so they
            count as released, and hide nobody: as colluders' reports do.

        Returns
        -------
        Preview
            `spend` is the cumulative spend after the round.
        """
        before, times, counts = self._counted, self._times, self.class_counts(present)
        # The published mu^2 of rounds add up; kept as a square, so that nothing is rounded twice.
        mu = self._published_mu(counts)
        types = {} if self._unasked else self._view.round_types(present, unusable)
        published = {}
        if self._publishable:
            for index in np.flatnonzero(counts).tolist():
                kind = as_published_type(self._classes[index], int(counts[index]))
                if kind is not None:
                    published[index] = kind
        after = Counted(
            before.mu_squared + (0.0 if mu is None else mu * mu),
            # The m reports of a round cost what m rounds of one report cost
            # (docs/research/proofs, section 6).
            before.histories.after(types, self._view.account_of, present, times),
            before.published.after(published, self._class_of, present, times),
            before.renyi.after(present, times, unusable),
            before.sums.after(present, times, unusable),
            np.asarray(before.taken + times * present),
        )
        return Preview(round_number, present.copy(), unusable, before, after, self)

    def _spend(self, preview: Preview) -> Spend:
        """Return what has been spent after the previewed round."""
        after, counts = preview.after, self.class_counts(preview.present)
        mu = self._published_mu(counts)
        total = None if mu is None else math.sqrt(after.mu_squared)
        listed = self._listed(after.taken)
        local = self._local(listed)
        # Where every class is listed, the worst of them is the most exposed client.
        worst = self._worst_local(after.taken) if len(listed) == LISTED_CLASSES else None
        shuffled = self._shuffled_column(after, local, worst)
        columns = {
            "gspa": gspa_column(total, self._delta, listed),
            "su2025": self._su2025_column(after.published, listed),
            "rdp": self._rdp_column(after.renyi, listed),
            "shuffled": shuffled,
            "sum": self._sum_column(after, listed, shuffled),
            "local": Column("local", Status.PROVEN, self._words.local, local, overall=worst),
        }
        if self._trained_privately:
            columns, mu, total = of_declared_training(columns), None, None
        reports, release = int(counts.sum()), self.threat_model.release
        return Spend(preview.round_number, reports, self._delta, mu, total, columns, release)

    def commit(self, preview: Preview | int, present: Mask | None = None) -> None:
        """Count a round whose reports were released.

        Parameters
        ----------
        preview : Preview
            What `preview` returned. A round's number and its clients, as version 0.2 takes them,
            are accepted with a `DeprecationWarning`.
        present : ndarray of bool, shape (clients,), optional
            Only in the form of version 0.2.

        Raises
        ------
        InvalidValueError
            If another round was counted since the preview: that one would be forgotten, or this one
            counted twice.
        """
        if not isinstance(preview, Preview):
            if present is None:
                raise InvalidValueError("preview", preview, "must be what `preview` returned")
            warn_renamed("Accountant.commit(number, present)", "commit(preview(number, present))")
            preview = self.preview(preview, present)
        elif present is not None:
            raise InvalidValueError("present", "given", "must be left out: the preview has clients")
        # By identity: a preview holds the account that it was made from, and accounts are
        # immutable.
        if preview.before is not self._counted:
            raise InvalidValueError(
                "preview",
                f"round {preview.round_number}",
                "is out of date: a later round was counted; call preview again",
            )
        # One step back is kept, and no more: the last round is counted anew where more of its
        # reports turn out to be unusable (`take_back`).
        self._before, self._counted, self._totals = self._counted, preview.after, None

    def take_back(self) -> None:
        """Forget the round that was counted last, so that it is counted anew.

        Raises
        ------
        NotApplicableError
            If nothing was counted since a round was taken back.
        """
        if self._before is None:
            raise NotApplicableError("no round has been counted that could be taken back")
        self._counted, self._before, self._totals = self._before, None, None

    def count(self, rounds: Sequence[tuple[int, Mask] | tuple[int, Mask, int]]) -> Spend | None:
        """Count several rounds whose reports were released.

        Parameters
        ----------
        rounds : sequence of (int, mask) or (int, mask, int)
            Each round's number, the clients whose reports were released, and how many of the
            reports were unusable.

        Returns
        -------
        Spend or None
            What has been spent after the last round; None without any round.
        """
        preview = None
        for number, present, *unusable in rounds:
            preview = self.preview(number, present, *unusable)
            self.commit(preview)
        return None if preview is None else preview.spend

    def lower_bounds(self) -> dict[str, Column]:
        """Return what known attacks certainly achieve on all that was released so far.

        Returns
        -------
        dict of str to Column
            The columns `shuffled_lower` and `sum_lower`. Direction of error: rounded down.
        """
        taken = self._listed(self._counted.taken)
        sums = Column(
            "sum_lower", Status.LOWER_BOUND, self._words.sum_lower, note=self._no_sum or ""
        )
        if self._no_sum is None:
            sums = sum_lower_column(self._counted.sums, self._delta, taken, self._words)
        # A sum is computed from the shuffled reports: an attack on it is one on them.
        shuffled = larger_column(self._shuffled_lower_column(taken), sums)
        return RenamedKeys({"shuffled_lower": shuffled, "sum_lower": sums}, OLD_COLUMNS)

    def lower_columns(self) -> dict[str, Column]:
        """Return the old name of `lower_bounds`."""
        warn_renamed("Accountant.lower_columns", "Accountant.lower_bounds")
        return self.lower_bounds()

    def _headlines(self, counted: Counted) -> Vector:
        """Return every client's own headline epsilon, shape (n,), after this account."""
        if self._sums_count:
            sums = counted.sums.epsilons(self._delta)
            # Of Gaussian reports the sum never costs more than the reports themselves.
            if not self._smaller:
                return sums
        shuffled = self._each(counted)[0]
        # Both are proven for the sum, so the smaller one is.
        return np.minimum(sums, shuffled) if self._sums_count else shuffled

    def client_totals(self) -> ClientTotals:
        """Return what every client has spent so far.

        Returns
        -------
        ClientTotals
            Entries of shape (clients,), epsilons in nats at `delta`.
        """
        if self._totals is None:
            self._totals = self.totals_of(EVERYBODY)
        return self._totals

    def totals_of(self, clients: Clients) -> ClientTotals:
        """Return what some clients have spent so far.

        Parameters
        ----------
        clients : ndarray of int64, shape (n,), or slice
            Numbers of the clients.

        Returns
        -------
        ClientTotals
            Entries of shape (n,), in the order of `clients`.
        """
        shuffled, local = self._each(self._counted, clients)
        none = np.full(len(local), math.nan)
        shuffled = none if self._unasked else shuffled
        sums = (
            none if self._no_sum is not None else self._counted.sums.epsilons(self._delta, clients)
        )
        sums = np.minimum(sums, shuffled) if self._smaller else sums
        headline = sums if self._sums_count else shuffled
        # A report that only declares what its training did is hidden by no theorem: `local` alone
        # is left, as declared.
        if self._trained_privately:
            shuffled, headline = none, local
        # `taken` counts reports, of which a round has `reports_per_round`.
        rounds = self._counted.taken[clients] // self._times
        return ClientTotals(rounds, shuffled, local, sums, headline)

    @property
    def library(self) -> RoundLibrary:
        """The one-round curves that were computed: another accountant of the run may share them."""
        return self._library

    def worst_client(self) -> WorstClient | None:
        """Return the client with the largest headline epsilon, with its curves.

        Returns
        -------
        WorstClient or None
            None where nothing was released.
        """
        if not self._counted.taken.any():
            return None
        return self.of_client(int(np.argmax(self.client_totals().headline)))

    def of_client(self, index: int) -> WorstClient | None:
        """Return the curves of one client, as `worst_client` does for the most exposed one.

        Parameters
        ----------
        index : int
            Number of the client.

        Returns
        -------
        WorstClient or None
            None where none of its reports was released.
        """
        totals = self.client_totals()
        if not totals.rounds[index]:
            return None
        headline, shuffled = float(totals.headline[index]), totals.shuffled
        if self._sums_count and (headline < shuffled[index] or not self._smaller):
            return self._in_sums(index, headline)
        histories = self._counted.histories
        # Empty where the client's group never gets credit: then its own noise is all that counts.
        spent = histories.distinct[histories.group_of[index]]
        if not spent:
            alone = kind_alone(self._classes[int(self._class_of[index])])
            spent = {alone: int(self._counted.taken[index])}
        profile, trade_off = (
            partial(curve, spent) for curve in (self._library.profile, self._library.trade_off)
        )
        return WorstClient(index, headline, profile, trade_off)

    def _in_sums(self, index: int, epsilon: float) -> WorstClient:
        curve = self._counted.sums.curve(index)
        return WorstClient(index, epsilon, curve.profile, curve.trade_off)

    @property
    def sums_are_bounded(self) -> bool:
        """Whether the column `sum` says something."""
        return self._no_sum is None

    @property
    def _sums_count(self) -> bool:
        """Whether the column `sum` is the headline."""
        return self.threat_model.release == "sum" and self._no_sum is None

    def _sum_column(self, after: Counted, taken: dict[int, int], shuffled: Column) -> Column:
        if self._no_sum is not None:
            return Column("sum", Status.PROVEN, self._words.sum, note=self._no_sum)
        sums = after.sums
        worst = sums.worst_epsilons(self._delta)
        most = float(worst.max()) if len(taken) == LISTED_CLASSES else None
        epsilon = {index: float(worst[index]) for index in taken}
        column = Column("sum", Status.PROVEN, self._words.sum, epsilon, overall=most)
        if self._smaller:
            if most is not None:
                own = sums.epsilons(self._delta)
                # The largest of the clients' minima, which is not the minimum of the two largest.
                most = self._worst_shuffled(after, own)
            column = smaller_column(column, shuffled, most)
        return column

    def _each(self, counted: Counted, clients: Clients = EVERYBODY) -> tuple[Vector, Vector]:
        """Return shuffled and local epsilon of each of these clients, two of shape (clients,)."""
        taken, histories = counted.taken, counted.histories
        local = local_epsilons(self._alone, self._class_of[clients], taken[clients], self._delta)
        groups = histories.group_of[clients]
        # Compositions are dear: only those of these clients are computed.
        met = (
            np.arange(len(histories.distinct)) if isinstance(clients, slice) else np.unique(groups)
        )
        # Infinite where a history is empty: the minimum below then leaves the local number.
        shuffled = np.full(len(histories.distinct), math.inf)
        for group in met.tolist():
            if spent := histories.distinct[group]:
                shuffled[group] = self._library.epsilon(spent, self._delta)
        return np.minimum(local, shuffled[groups]), local

    def _published_mu(self, counts: NDArray[np.int64]) -> float | None:
        """Return the published parameter of a round whose batches hold `counts` [classes].

        None where the theorem's sum is empty (one report).
        """
        rest = gspa_rest(self._shares, counts)
        # mu^2 = 2/rest for a batch (Theorem 2), and the batches of a round add up.
        return math.sqrt(2.0 * self._times / rest) if rest > 0.0 else None

    def _listed(self, taken: NDArray[np.int64]) -> dict[int, int]:
        """Return class -> the most reports that any of its clients has sent, of all `taken` [n]."""
        most = largest_of_classes(taken, self._class_of, len(self._classes))
        listed = np.flatnonzero(most)
        if len(listed) > LISTED_CLASSES:
            # mu sqrt(T) orders Gaussian clients by epsilon. For other noise it only chooses which
            # classes are shown: totals are over all.
            exposure = self._classes.exposure[listed] * np.sqrt(most[listed])
            last = np.argpartition(exposure, -LISTED_CLASSES)
            listed = np.sort(listed[last[-LISTED_CLASSES:]])
        return {int(index): int(most[index]) for index in listed}

    def _local(self, taken: dict[int, int]) -> dict[int, float]:
        """Map each class to the local epsilon of this number of reports."""
        indices, rounds = np.array(list(taken.items()), dtype=np.int64).reshape(-1, 2).T
        found = local_epsilons(self._alone, indices, rounds, self._delta)
        return dict(zip(taken, found.tolist(), strict=True))

    def _worst_local(self, taken: NDArray[np.int64]) -> float:
        everybody = np.zeros_like(self._class_of)
        worst = worst_local_epsilons(self._alone, self._class_of, taken, everybody, 1, self._delta)
        return float(worst[0])

    def _worst_shuffled(self, counted: Counted, sums: Vector | None = None) -> float:
        """Return the largest proven epsilon of all clients.

        That is the maximum over histories of min(local, shuffled) or, with `sums` [n], of the
        smaller of that and the client's own in them.
        """
        histories, taken = counted.histories, counted.taken
        groups = len(histories.distinct)
        if sums is None:
            local = worst_local_epsilons(
                self._alone, self._class_of, taken, histories.group_of, groups, self._delta
            )
        else:
            own = local_epsilons(self._alone, self._class_of, taken, self._delta)
            # min(local, sums) of each client, then the largest of each history: within a history
            # `shuffled` is one number, and the minimum with it does not change the order.
            local = np.zeros(groups)
            np.maximum.at(local, histories.group_of, np.minimum(own, sums))
        return largest_epsilon(self._library, histories.distinct, self._delta, local.tolist())

    def _shuffled_column(
        self, counted: Counted, local: dict[int, float], worst: float | None
    ) -> Column:
        words, histories = self._words, counted.histories
        if self._unasked:
            return Column("shuffled", Status.PROVEN, words.shuffled, note=self._unasked)
        # Without credit anywhere the column is that of the client's own noise, with the reason
        # beside it.
        note = self._view.no_credit_reason(words)
        if note is not None:
            return Column("shuffled", Status.PROVEN, words.local, local, note, worst)
        epsilon = dict(local)
        for index, own in local.items():
            # Clients of one class may have met different rounds: the largest epsilon of their
            # histories counts.
            if met := histories.of(self._members(index)):
                epsilon[index] = largest_epsilon(self._library, met, self._delta, [own] * len(met))
        worst = None if worst is None else self._worst_shuffled(counted)
        source, note = words.shuffled, words.shuffled_note
        return Column("shuffled", Status.PROVEN, source, epsilon, note, worst)

    def _su2025_column(self, histories: ParticipationHistory, taken: dict[int, int]) -> Column:
        epsilon = {}
        for index in taken:
            if met := histories.of(self._members(index)):
                # As published: the papers' bound by itself, without the minimum with the local
                # guarantee.
                no_limit = [math.inf] * len(met)
                epsilon[index] = largest_epsilon(self._library, met, self._delta, no_limit)
        note = "" if epsilon else "it is published for Laplace reports, not for these"
        if not epsilon and self._classes.is_noise("laplace").any():
            note = f"not computed for more than {PUBLISHED_CLASSES:,} kinds of reports"
        return Column("su2025", Status.AS_PUBLISHED, SU2025_SOURCE, epsilon, note)

    def _rdp_column(self, account: RenyiAccount, taken: dict[int, int]) -> Column:
        column = account.column(self._delta, taken, self._members)
        conditional = self._declared and column.status is Status.PROVEN
        return replace(column, note=self._words.shuffled_note) if conditional else column

    def _shuffled_lower_column(self, taken: dict[int, int]) -> Column:
        source = self._words.shuffled_lower
        if self.threat_model.rounded:
            return Column("shuffled_lower", Status.LOWER_BOUND, source, note=ROUNDED_LESS)
        local = self._local(taken)
        found = certain_losses(
            self._classes, self._everybody, taken, local, self._delta, self._dimension
        )
        epsilon = {index: value for index, value in found.items() if value > 0.0}
        note = "" if epsilon else "no known attack is certain enough here"
        return Column("shuffled_lower", Status.LOWER_BOUND, source, epsilon, note)
