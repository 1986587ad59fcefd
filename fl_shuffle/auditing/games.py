"""Attacks on single reports, on shuffled batches, and on sums, drawn by the real client code.

Each draws what is released in two worlds that differ in the target's data alone, turns what it sees
into lower bounds on epsilon, and holds these against the accountant's columns that speak of such an
adversary. Two tests make bounds of what is seen: its *measured law* (`Dichotomy`), and where it is
Gaussian in either world its mu.

**Batches** are attacked without playing any: where the target's report is recognised, or hides
among reports alike, the exact arithmetic of the shuffle turns the law of one report into that of
the batch.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.auditing.canaries import Canaries, position_error, size_error
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.confidence import Dichotomy, mu_lower
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Finding, Point
from fl_shuffle.shuffler.local import LocalShuffler, Reports

Vector = NDArray[np.float64]
Pair = tuple[Vector, Vector]
"""A statistic in either dataset; play k of both shares its noise."""

# Round numbers of the bulk draws, apart from those of plays: their noise is independent.
FIRST_CLONES, FIRST_TRAINING, FIRST_OWN = 1 << 40, 1 << 41, 1 << 42
VALUES_PER_CALL = 1 << 22
"""Reports are drawn in pieces of so many numbers (16 MiB of float32)."""
TRAINING_REPORTS = 4096
"""Reports drawn beside the others, only to place the thresholds."""
LEVELS = 9
"""Quantiles on each side of the median that become thresholds."""
MOST_OWN = 1 << 15
"""Reports whose width is measured: to about one in a hundred."""
FEWEST_PLAYS = 8
"""So many rounds are played whatever the clock says."""
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many; fewer prove nothing of interest."""
CERTAIN = 1e-8
"""Reports are called recognised if the chance of any mistake in a round is below this."""

BY_SIZE = "budget class recognised by the size of a report"
BY_POSITION = "report recognised by its position"
SUMS = "sums of the reports, all else known"
ABSENT_SUMS = "sums of the reports of half the clients, the others absent"
ONE_LAW = "exact confidence bounds of both laws"
EXACT_BATCH = "measured law of a report, exact law of the shuffled batch"


@dataclass(frozen=True)
class Sample:
    """What is seen in either world, sorted out at fixed thresholds: `counts` [2, k] of `trials`
    lie above each."""

    thresholds: Vector
    counts: NDArray[np.int64]
    trials: int

    @classmethod
    def of_reports(cls, source: Canaries, reports: int, clock: Clock) -> Sample:
        """First coordinates of up to `reports` single reports like the target's (at least one
        call's worth); the thresholds are of an independent, smaller sample."""
        per_call = max(1, min(reports, VALUES_PER_CALL // source.scene.dimension))
        sample = cls.on(_pair(source, FIRST_TRAINING, min(per_call, TRAINING_REPORTS)))
        while sample.trials < reports and (sample.trials == 0 or not clock.over()):
            number = FIRST_CLONES + sample.trials // per_call
            sample = sample.with_plays(_pair(source, number, per_call))
        return sample

    @classmethod
    def on(cls, parts: Sequence[Vector]) -> Sample:
        """Nothing yet, with thresholds dense in the middle of either part and far into both
        tails."""
        tail = np.geomspace(1.0 / len(parts[0]), 0.5, LEVELS)
        levels = np.concatenate([tail, 1.0 - tail])
        thresholds = np.unique(np.quantile(np.array(parts), levels, axis=1))
        return cls(thresholds, np.zeros((2, len(thresholds)), dtype=np.int64), 0)

    def with_plays(self, plays: Sequence[Vector]) -> Sample:
        """With these counted, too."""
        above = [
            len(each) - np.searchsorted(np.sort(each), self.thresholds, side="right")
            for each in plays
        ]
        return replace(self, counts=self.counts + above, trials=self.trials + len(plays[0]))


def _pair(source: Canaries, number: int, count: int) -> Pair:
    """First coordinates of reports like the target's, in either dataset with the same noise."""
    zero, one = (source.clones(number, count, side)[:, 0].double().numpy() for side in (0, 1))
    return zero, one


@dataclass(frozen=True)
class Attack:
    """Canaries, and what is claimed of them: at these `deltas` (the run's own first), after so many
    `rounds`. Each test errs with probability `alpha`. When the time of `clock` is up, bounds and
    claims are worked out at the first delta alone."""

    source: Canaries
    claims: Claims
    deltas: tuple[float, ...]
    rounds: int
    alpha: float
    clock: Clock

    def finding(
        self, column: str, game: str, method: str, plays: int, lower: Callable[[float], float],
        *, rounds: int = 1, note: str = "",
    ) -> Finding:  # fmt: skip
        """`lower` bounds at every delta beside what is claimed; for shuffled batches beside the
        published number, too."""
        points = list[Point]()
        for delta in self.deltas:
            if not points or not self.clock.over():
                published = self.claims("gspa", rounds, delta) if column == "proven" else None
                claim = self.claims(column, rounds, delta)
                points.append(Point(delta, lower(delta), claim, published))
        return Finding(game, method, rounds, plays, tuple(points), note, column)

    def by_mu(
        self, column: str, game: str, what: str, pairs: Pair, nominal: float
    ) -> list[Finding]:
        """The mu test of a statistic that is Gaussian in either dataset, over one round and all.

        `pairs` are paired plays of one round (see `mu_lower`); `nominal` is what its mu should be.
        """
        mu, every, method = mu_lower(*pairs, self.alpha), [], f"Gaussian mu test on {what}"
        note = f"mu per round at least {mu:.4f}; nominal {nominal:.4f}"
        for rounds in dict.fromkeys((1, self.rounds)):

            def lower(delta: float, total: float = math.sqrt(rounds) * mu) -> float:
                # gaussian_epsilon rounds up by less than the factor taken off again.
                return gaussian_epsilon(delta, total) * (1.0 - 1e-8)

            plays = len(pairs[0])
            every.append(self.finding(column, game, method, plays, lower, rounds=rounds, note=note))
        return every

    def by_law(
        self, column: str, game: str, sample: Sample, *, rounds: int = 1, note: str = "",
        hidden: int = 1, error: float = 0.0,
    ) -> Finding:  # fmt: skip
        """The measured law of what is seen; of a report, the exact law of the batch of so many
        (`hidden`) that it is shuffled among; `error` is that of taking the right ones for it."""
        facts = Dichotomy.from_counts(sample.counts, sample.trials, self.alpha)
        return self.finding(
            column, game, ONE_LAW if hidden == 1 else EXACT_BATCH, sample.trials,
            lambda delta: facts.epsilon(delta, hidden, error), rounds=rounds, note=note,
        )  # fmt: skip


def single_report(attack: Attack, sample: Sample, *, exposed: bool) -> Finding:
    """The noise itself, no shuffler: does a report of the target, the most exposed client or
    another one, keep its local guarantee? The note says if it cannot give what was asked for."""
    plan, target = attack.source.plan, attack.source.scene.target
    asked = plan.classes[int(plan.class_of[target])]
    budget = f"({asked.epsilon0:.4g}, {asked.delta0:g})"
    game = f"one report{'' if exposed else f' of a client at {budget}'}, its sender known"
    note = f"asked for {budget}, weight {float(plan.weight[target]):.4g}"
    found = attack.by_law("local", game, sample, note=note)
    point = found.points[0]
    if point.delta >= asked.delta0 and point.epsilon_lower > asked.epsilon0:
        found = replace(found, note=f"{note}, which this noise DOES NOT KEEP")
    return found


def several_rounds(attack: Attack) -> list[Finding]:
    """Does the accountant count every round? The target's own Gaussian reports, their sender known,
    or recognised by their position in the batch."""
    scene = attack.source.scene
    nominal = (scene.one - scene.zero) / scene.own_scale
    count = max(3, min(MOST_OWN, VALUES_PER_CALL // scene.dimension))
    own = _pair(attack.source, FIRST_OWN, count)
    game = "reports of several rounds, their sender known"
    found = attack.by_mu("local", game, "the target's own reports", own, nominal)
    if position_error(scene) < CERTAIN:
        found += attack.by_mu("proven", BY_POSITION, "the recognised report", own, nominal)
    return found


def shuffled_batch(attack: Attack, sample: Sample) -> list[Finding]:
    """Measured law of one report, exact arithmetic of the shuffle: sharp where it applies."""
    scene = attack.source.scene
    position, size = position_error(scene), size_error(scene)
    cohort = (scene.scales == scene.own_scale) & scene.hiding
    count = 1 + int(cohort.sum())
    if position < CERTAIN:
        game, hidden, error = BY_POSITION, 1, position
    elif size >= CERTAIN or (scene.others[cohort] != scene.zero).any():
        return []
    elif count < len(scene.scales):
        game, hidden, error = BY_SIZE, count, size
    else:
        game, hidden, error = "known others", count, 0.0
    note = f"hidden among {hidden} reports"
    return [attack.by_law("proven", game, sample, note=note, hidden=hidden, error=error)]


def play_sums(source: Canaries, trials: int, clock: Clock) -> Pair:
    """First coordinates of up to `trials` rounds' sums in either dataset."""
    played = list[list[float]]()
    while len(played) < trials and (len(played) < FEWEST_PLAYS or not clock.over()):
        played.append(_sums_of(source, len(played) + 1))
    zeros, ones = np.array(played).T
    return zeros, ones


def _sums_of(source: Canaries, number: int) -> list[float]:
    """A round's, made by the run's own shuffler or with its own pooled noise."""
    if source.noise_is_pooled:
        return [float(source.pooled(number, side)[0]) for side in (0, 1)]
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
        found.append(float(total[0]))
    return found


def sums(
    attack: Attack, columns: Sequence[str], trials: int, clock: Clock, game: str = SUMS
) -> list[Finding]:
    """These columns, `sum` or `proven`: by mu where noise is Gaussian, by the measured law
    elsewhere; all of it holds with confidence 1 - alpha."""
    scene, found = attack.source.scene, list[Finding]()
    totals = play_sums(attack.source, trials, clock)
    if scene.noise == "gaussian":
        nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
        for column in columns:
            found += attack.by_mu(column, game, "the published sums", totals, nominal)
        return found
    # One round, and as many as there are plays of them.
    half = replace(attack, alpha=attack.alpha / 2.0)
    most = max(1, min(attack.rounds, len(totals[0]) // FEWEST_COMPOSED))
    for rounds in dict.fromkeys((1, most)):
        whole = len(totals[0]) // rounds * rounds
        added = np.array([each[:whole].reshape(-1, rounds).sum(axis=1) for each in totals])
        # Thresholds are those of the first half of the plays.
        first, second = np.array_split(added, 2, axis=1)
        sample = Sample.on(list(first)).with_plays(list(second))
        for column in columns:
            found.append(half.by_law(column, game, sample, rounds=rounds))
    return found
