"""Attacks on single reports, on shuffled batches, and on sums, drawn by the real client code.

Each draws what is released in two worlds that differ in the target's data alone, turns what it sees
into lower bounds on epsilon, and holds these against the accountant's columns that speak of such an
adversary. Two tests make bounds of what is seen: its *measured distribution* (`Dichotomy`), and
where it is Gaussian in either world its mu.

**Batches** are attacked without playing any: where the target's report is recognized, or hides
among reports alike, the exact arithmetic of the shuffle turns the distribution of one report into
that of the batch.

**Sums** are attacked on what is published of every round. Every model is a function of the sums
before it, so who sees the sums sees no less than who sees the sequence of models; and a sum is a
function of the shuffled reports, so what it gives away the reports do, too. The adversary knows
every input but the target's and the noise of those who collude with it; all of that it subtracts.
What is left of a sum is the target's mean, which moves by its weighted sensitivity along the first
axis, and the noise of the honest clients: a Gaussian statistic where their noise is, with

    mu = (one - zero) / sqrt(sum over honest j of w_j^2 sigma_j^2)

a round. Where noise is pooled (`run.noise`) no report exists, and this is the one game that there
is; the claims are those of the reports that the sums stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.auditing.canaries import Canaries, position_error, size_error
from fl_shuffle.auditing.confidence import Dichotomy, mu_lower
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Finding, FindingPoint
from fl_shuffle.configuration.sections import Config
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.discrete import DISCRETE
from fl_shuffle.shuffler.local import LocalShuffler, Reports

Plays = NDArray[np.float64]
"""A statistic [2, k] in either dataset; play k of both shares its noise."""

OWN_LAW = (
    "a user's own randomizer has no known distribution: only its declared local budget is tested"
)
DISCRETE_LAW = (
    "single reports with discrete noise are tested against their local guarantee alone: attacks "
    "on their batch and on several rounds need continuous noise"
)
ALIKE = "noise scales or clips too alike to tell reports apart: the batch is attacked by its sum"

FIRST_REPORTS = 1 << 40
"""The round number of the first bulk draw, apart from those of plays: its noise is independent."""
VALUES_PER_CALL = 1 << 22
"""Reports are drawn in pieces of this many numbers (16 MiB of float32)."""
MOST_TRAINING = 4096
"""Number of games, and at most half of all, that only place the thresholds."""
LEVELS = 9
"""Quantiles on each side of the median that become thresholds."""
MOST_OWN = 1 << 15
"""Reports whose width is measured: to about one in a hundred."""
FEWEST_PLAYS = 8
"""Number of rounds that are executed whatever the clock shows."""
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many; fewer prove nothing of interest."""
CERTAIN = 1e-8
"""Reports are called recognized if the chance of any mistake in a round is below this."""

BY_SIZE = "budget class recognized by the size of a report"
BY_POSITION = "report recognized by its position"
SUMS = "sums of the reports, all else known"
ABSENT_SUMS = "sums of the reports of half the clients, the others absent"
ONE_LAW = "exact confidence bounds of both laws"
EXACT_BATCH = "measured distribution of a report, exact distribution of the shuffled batch"


class Claims:
    """What is claimed of the target of `source`: (column, rounds, delta) -> epsilon, None where
    empty.

    Those clients report in every round that are `present`. `no_sum` says why the column `sum` says
    nothing; empty where it does. `library` keeps one-round curves.
    """

    def __init__(
        self, config: Config, source: Canaries, library: RoundLibrary | None = None
    ) -> None:
        self._plan, self._target = source.claimant
        self._present, self._dimension = source.present, source.scene.dimension
        self._config, self._library = config, library or RoundLibrary()
        # What is played, and counted, are batches: a round may have several.
        self._trust = replace(ThreatModel.of(config.to_dict()), reports_per_round=1)
        self._sums = SumAccount.start(
            self._plan.classes, self._plan.class_of, schedule=config.training.schedule,
            assumed_honest=self._trust.assumed_honest, dimension=self._dimension,
        )  # fmt: skip
        self.no_sum = self._trust.no_sum or self._sums.reason or ""
        self._counted = cache(self._count)

    def __call__(self, column: str, rounds: int, delta: float) -> float | None:
        """Return the account after this number of rounds."""
        if column == "sum":  # alone, for the other columns take their time
            account = self._sums
            for _ in range(rounds):
                account = account.after(self._present)
            return account.curve(self._target).epsilon(delta)
        accountant, spend = self._counted(rounds, delta)
        own, listed = int(self._plan.class_of[self._target]), spend.columns[column]
        if column == "gspa" or own in listed.epsilon or not listed.epsilon:
            return listed.epsilon.get(own, listed.worst)
        # A round lists only the most exposed classes; a client's own spend is complete.
        return float(getattr(accountant.client_totals(), column)[self._target])

    def _count(self, rounds: int, delta: float) -> tuple[Accountant, Spend]:
        """Return the account after this number of rounds, and what the last one states."""
        accountant = Accountant(
            self._plan.classes, self._plan.class_of, unit=self._config.privacy.unit,
            schedule=self._config.training.schedule, delta=delta, library=self._library,
            dimension=self._dimension, threat_model=self._trust,
        )  # fmt: skip
        spend = accountant.count([(number, self._present) for number in range(1, rounds + 1)])
        assert spend is not None
        return accountant, spend


def play(draw: Callable[[int], Plays], most: int, clock: Clock) -> Plays:
    """Draw 0, 1, ... of a statistic, until there are `most` plays or the time is up."""
    parts, count = list[Plays](), 0
    while count < most and (count < FEWEST_PLAYS or clock.left):
        parts.append(draw(len(parts)))
        count += parts[-1].shape[1]
    return np.concatenate(parts, axis=1)


def play_reports(source: Canaries, most: int, clock: Clock) -> Plays:
    """Return first coordinates of single reports like the target's."""
    per_call = max(1, min(most, VALUES_PER_CALL // source.scene.dimension))

    def draw(call: int) -> Plays:
        reports = [source.clones(FIRST_REPORTS + call, per_call, side) for side in (0, 1)]
        return torch.stack(reports)[:, :, 0].double().numpy()

    return play(draw, most, clock)


@dataclass(frozen=True)
class Attack:
    """Canaries, and what is claimed of them: at these `deltas` (the run's own first), after this
    number of `rounds`. Each test errs with probability `alpha`. When the time of `clock` is up,
    bounds and claims are computed at the first delta alone. `notes` receives remarks about the
    games."""

    source: Canaries
    claims: Claims
    deltas: tuple[float, ...]
    rounds: int
    alpha: float
    clock: Clock
    notes: list[str]

    def finding(
        self, column: str, game: str, method: str, plays: int, lower: Callable[[float], float],
        *, rounds: int = 1, note: str = "",
    ) -> Finding:  # fmt: skip
        """Return `lower` bounds at every delta beside what is claimed; for shuffled batches beside
        the published number, too."""
        points = list[FindingPoint]()
        for delta in self.deltas:
            if not points or self.clock.left:
                published = self.claims("gspa", rounds, delta) if column == "shuffled" else None
                claim = self.claims(column, rounds, delta)
                points.append(FindingPoint(delta, lower(delta), claim, published))
        return Finding(game, method, rounds, plays, tuple(points), note, column)

    def by_mu(
        self, column: str, game: str, what: str, plays: Plays, nominal: float
    ) -> Iterator[Finding]:
        """Yield the mu test of a statistic that is Gaussian in either dataset, over one round and
        all.

        `plays` are of one round (see `mu_lower`); `nominal` is what its mu should be.
        """
        mu, method = mu_lower(plays[0], plays[1], self.alpha), f"Gaussian mu test on {what}"
        note = f"mu per round at least {mu:.4f}; nominal {nominal:.4f}"
        for rounds in dict.fromkeys((1, self.rounds)):

            def lower(delta: float, total: float = math.sqrt(rounds) * mu) -> float:
                # gaussian_epsilon rounds up by less than the factor taken off again.
                return gaussian_epsilon(delta, total) * (1.0 - 1e-8)

            count = plays.shape[1]
            yield self.finding(column, game, method, count, lower, rounds=rounds, note=note)

    def by_law(
        self, column: str, game: str, plays: Plays, *, rounds: int = 1, note: str = "",
        hidden: int = 1, error: float = 0.0,
    ) -> Finding:  # fmt: skip
        """Return the measured distribution of what is seen; of a report, the exact distribution of
        the batch of this number of (`hidden`) that it is shuffled among; `error` is that of taking
        the right ones for it."""
        training, counted = np.split(plays, [min(MOST_TRAINING, plays.shape[1] // 2)], axis=1)
        # Dense in the middle of either part, and far into both tails.
        tail = np.geomspace(1.0 / training.shape[1], 0.5, LEVELS)
        levels = np.concatenate([tail, 1.0 - tail])
        at, trials = np.unique(np.quantile(training, levels, axis=1)), counted.shape[1]
        above = trials - np.array([np.searchsorted(np.sort(each), at, "right") for each in counted])
        law = Dichotomy.from_counts(above, trials, self.alpha)
        return self.finding(
            column, game, ONE_LAW if hidden == 1 else EXACT_BATCH, trials,
            lambda delta: law.epsilon(delta, hidden, error), rounds=rounds, note=note,
        )  # fmt: skip


def reports_game(
    attack: Attack, reports: int, clock: Clock, *, exposed: bool = True
) -> Iterator[Finding]:
    """Play single reports of the most exposed client, and batches of them; or single reports of
    another kind of client alone."""
    noise, plays = attack.source.plan.noise, play_reports(attack.source, reports, clock)
    yield single_report(attack, plays, exposed=exposed)
    if noise not in NOISES:
        attack.notes.append(DISCRETE_LAW if noise in DISCRETE else OWN_LAW)
    elif exposed:
        if noise == "gaussian":
            yield from several_rounds(attack, plays)
        if not attack.clock.left:
            attack.notes.append("the time was up: not played: the shuffled batch")
        else:
            yield from shuffled_batch(attack, plays)


def single_report(attack: Attack, plays: Plays, *, exposed: bool) -> Finding:
    """Return the noise itself, no shuffler: does a report of the target, the most exposed client or
    another one, keep its local guarantee? The note says if it cannot give what was asked for."""
    plan, target = attack.source.plan, attack.source.scene.target
    asked = plan.classes[int(plan.class_of[target])]
    budget = f"({asked.epsilon0:.4g}, {asked.delta0:g})"
    game = f"one report{'' if exposed else f' of a client at {budget}'}, its sender known"
    note = f"asked for {budget}, weight {float(plan.weight[target]):.4g}"
    found = attack.by_law("local", game, plays, note=note)
    point = found.points[0]
    if point.delta >= asked.delta0 and point.epsilon_lower > asked.epsilon0:
        found = replace(found, note=f"{note}, which this noise DOES NOT KEEP")
    return found


def several_rounds(attack: Attack, plays: Plays) -> Iterator[Finding]:
    """Check that the accountant counts every round: the target's own Gaussian reports, their sender
    known, or recognized by their position in the batch."""
    scene, own = attack.source.scene, plays[:, :MOST_OWN]
    nominal = (scene.one - scene.zero) / scene.own_scale
    game = "reports of several rounds, their sender known"
    yield from attack.by_mu("local", game, "the target's own reports", own, nominal)
    if position_error(scene) < CERTAIN:
        yield from attack.by_mu("shuffled", BY_POSITION, "the recognized report", own, nominal)


def shuffled_batch(attack: Attack, plays: Plays) -> Iterator[Finding]:
    """Yield findings by the measured distribution of one report and exact arithmetic of the
    shuffle: sharp where it applies."""
    scene = attack.source.scene
    position, size = position_error(scene), size_error(scene)
    cohort = (scene.scales == scene.own_scale) & scene.hiding
    count = 1 + int(cohort.sum())
    if position < CERTAIN:
        game, hidden, error = BY_POSITION, 1, position
    elif size >= CERTAIN or (scene.others[cohort] != scene.zero).any():
        attack.notes.append(ALIKE)
        return
    elif count < len(scene.scales):
        game, hidden, error = BY_SIZE, count, size
    else:
        game, hidden, error = "known others", count, 0.0
    note = f"hidden among {hidden} reports"
    yield attack.by_law("shuffled", game, plays, note=note, hidden=hidden, error=error)


def sums_of(source: Canaries, number: int) -> Plays:
    """Return first coordinates [2, 1] of a round's sum, made by the run's own shuffler or with its
    own pooled noise."""
    if source.noise_is_pooled:
        return np.array([source.pooled(number, side)[:1] for side in (0, 1)])
    (rows, other), found = source.play(number), []
    everyone = np.ones(len(rows), dtype=bool)
    unbounded = np.full(len(rows), np.inf)
    shuffler = LocalShuffler(source.scene.dimension, unbounded, source.seeds, keep=False)
    for side in (0, 1):
        if side:
            rows[source.scene.target] = other
        batch = shuffler.open(2 * number + side, everyone)
        batch.add(Reports(rows.numpy()), np.flatnonzero(everyone), 0)
        total = batch.release().total
        assert total is not None
        found.append(total[:1].numpy())
    return np.array(found)


def sums_game(
    attack: Attack, columns: Sequence[str], trials: int, clock: Clock, game: str = SUMS
) -> Iterator[Finding]:
    """Yield findings about these columns, `sum` or `shuffled`: by mu where noise is Gaussian, by
    the measured distribution elsewhere; all of it holds with confidence 1 - alpha."""
    scene = attack.source.scene
    totals = play(lambda number: sums_of(attack.source, number + 1), trials, clock)
    if scene.noise == "gaussian":
        nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
        for column in columns:
            yield from attack.by_mu(column, game, "the published sums", totals, nominal)
        return
    # One round, and as many as there are plays of them.
    half, count = replace(attack, alpha=attack.alpha / 2.0), totals.shape[1]
    most = max(1, min(attack.rounds, count // FEWEST_COMPOSED))
    for rounds in dict.fromkeys((1, most)):
        added = totals[:, : count // rounds * rounds].reshape(2, -1, rounds).sum(axis=2)
        for column in columns:
            yield half.by_law(column, game, added, rounds=rounds)
