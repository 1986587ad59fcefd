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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.claims import Claims
from fl_shuffle.auditing.confidence import (
    Dichotomy,
    above,
    ceiling_epsilon,
    mu_lower,
    smallest_detectable_mu,
)
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Finding
from fl_shuffle.auditing.scenes import Scene, position_error, size_error
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import LocalShuffler, Reports, Shuffled

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
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many; fewer prove nothing of interest."""
POWER, POWER_SPREAD = 0.95, 1.6449
"""The probability with which what is said to be caught would be caught; its normal quantile."""
MOST_SHRINK = 64.0
"""Noise that is more times too small than this is not looked for."""
SHRINK_PRECISION = 0.01
"""Relative, of how much too small noise is caught."""
CERTAIN = 1e-8
"""Reports are called recognised if the chance of any mistake in a round is below this."""

BY_SIZE = "budget class recognised by the size of a report"
BY_POSITION = "report recognised by its position"
SUMS = "sums of the reports, all else known"
ABSENT_SUMS = "sums of the reports of half the clients, the others absent"
ONE_LAW = "exact confidence bounds of both laws"
EXACT_BATCH = "measured law of a report, exact law of the shuffled batch"


@dataclass(frozen=True)
class Stakes:
    """What the tests of an audit share: the deltas (the run's own first), how many rounds the
    claims are about, each test's error probability `alpha`, and the seeds of the plays."""

    deltas: tuple[float, ...]
    rounds: int
    alpha: float
    seeds: SeedTree

    def shared_by(self, tests: int) -> Stakes:
        """Of each of so many tests that share one's error probability."""
        return replace(self, alpha=self.alpha / tests)


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
        few = min(per_call, TRAINING_REPORTS)
        thresholds = _quantiles(
            [_axis(source, FIRST_TRAINING + side, few, side) for side in (0, 1)]
        )
        counts = np.zeros((2, len(thresholds)), dtype=np.int64)
        trials = 0
        while trials < reports and (trials == 0 or not clock.over()):
            for side in (0, 1):
                number = FIRST_CLONES + 2 * (trials // per_call) + side
                counts[side] += above(_axis(source, number, per_call, side), thresholds)
            trials += per_call
        return cls(thresholds, counts, trials)

    @classmethod
    def of_plays(cls, plays: Pair) -> Sample:
        """The second half of these plays; the thresholds are of the first."""
        half = len(plays[0]) // 2
        thresholds = _quantiles([each[:half] for each in plays])
        return cls(thresholds, np.stack([above(each[half:], thresholds) for each in plays]),
                   len(plays[0]) - half)  # fmt: skip

    def dichotomy(self, alpha: float) -> Dichotomy:
        """What is certain about the two laws at confidence 1 - alpha."""
        zero, one = self.counts
        return Dichotomy.from_counts(zero, one, self.trials, alpha)

    def expected(self, scene: Scene, shrink: float, spread: float) -> Sample:
        """The counts of single reports if the noise were `shrink` times too small, each count
        `spread` standard deviations to the unlucky side; Gaussian or Laplace noise."""
        law = stats.laplace if scene.noise == "laplace" else stats.norm
        counts = []
        for mean, side in ((scene.zero, 1.0), (scene.one, -1.0)):
            chance = law.sf((self.thresholds - mean) * shrink / scene.own_scale)
            deviation = np.sqrt(self.trials * chance * (1.0 - chance))
            hits = np.rint(self.trials * chance + side * spread * deviation)
            counts.append(np.clip(hits, 0, self.trials).astype(np.int64))
        return replace(self, counts=np.stack(counts))


def _quantiles(parts: list[Vector]) -> Vector:
    """Dense in the middle of either part and far into both tails."""
    tail = np.geomspace(1.0 / len(parts[0]), 0.5, LEVELS)
    levels = np.concatenate([tail, 1.0 - tail])
    return np.unique(np.concatenate([np.quantile(part, levels) for part in parts]))


def _axis(source: Canaries, number: int, count: int, side: int) -> Vector:
    """First coordinates of reports like the target's."""
    return np.asarray(source.clones(number, count, one=bool(side))[:, 0].double().numpy())


@dataclass(frozen=True)
class Attack:
    """Canaries, what is claimed of them, and what is at stake."""

    source: Canaries
    claims: Claims
    stakes: Stakes

    def with_share(self, tests: int) -> Attack:
        """The same with one of so many shares of the error probability."""
        return replace(self, stakes=self.stakes.shared_by(tests))

    def finding(
        self, column: str, game: str, method: str, plays: int, lower: Callable[[float], float],
        **more: Any,
    ) -> Finding:  # fmt: skip
        """`lower` bounds at every delta beside what is claimed after so many `rounds`."""
        rounds = more.pop("rounds", 1)
        points = tuple(
            self.claims.held_against(column, rounds, delta, lower(delta))
            for delta in self.stakes.deltas
        )
        return Finding(game, method, rounds, plays, points, **more, column=column)

    def by_mu(
        self, column: str, game: str, what: str, pairs: Pair, nominal: float
    ) -> list[Finding]:
        """The mu test of a statistic that is Gaussian in either dataset, over one round and all.

        `pairs` are paired plays of one round (see `mu_lower`); `nominal` is what its mu should be.
        """
        stakes, mu, every = self.stakes, mu_lower(*pairs, self.stakes.alpha), list[Finding]()
        for rounds in dict.fromkeys((1, stakes.rounds)):
            root = math.sqrt(rounds)

            def lower(delta: float, total: float = root * mu) -> float:
                # gaussian_epsilon rounds up by less than the factor taken off again.
                return gaussian_epsilon(delta, total) * (1.0 - 1e-8)

            found = self.finding(
                column, game, f"Gaussian mu test on {what}", len(pairs[0]), lower,
                rounds=rounds, largest_provable_epsilon=math.inf,
                note=f"mu per round at least {mu:.4f}; nominal {nominal:.4f}",
            )  # fmt: skip
            claimed = found.points[0].proven_epsilon
            if claimed is not None and math.isfinite(claimed) and claimed > 0.0:
                bound = gaussian_mu(claimed, stakes.deltas[0]) / root
                need = smallest_detectable_mu(bound, len(pairs[0]), stakes.alpha, POWER)
                found = replace(found, detectable_noise_factor=max(1.0, need / nominal))
            every.append(found)
        return every

    def by_law(
        self, column: str, game: str, method: str, sample: Sample, *,
        hidden: int = 1, error: float = 0.0, rounds: int = 1, note: str = "",
    ) -> Finding:  # fmt: skip
        """The measured law of what is seen; of a report, the exact law of the batch of so many
        (`hidden`) that it is shuffled among; `error` is that of taking the right ones for it."""
        alpha, facts = self.stakes.alpha, sample.dichotomy(self.stakes.alpha)
        return self.finding(
            column, game, method, sample.trials,
            lambda delta: facts.epsilon(delta, hidden, error=error), note=note, rounds=rounds,
            largest_provable_epsilon=ceiling_epsilon(sample.trials, self.stakes.deltas[0], alpha),
        )  # fmt: skip

    def with_power(
        self, found: Finding, sample: Sample, *, hidden: int = 1, error: float = 0.0
    ) -> Finding:
        """The same of single reports, with how many times too small noise would be caught."""
        scene = self.source.scene
        if scene.noise not in NOISES:
            return found

        def missed(factor: float) -> bool:
            """Whether noise so many times too small can go unseen more often than 5% of times."""
            expected = sample.expected(scene, factor, POWER_SPREAD)
            worse = expected.dichotomy(self.stakes.alpha)
            return not any(
                point.proven_epsilon is not None
                and worse.refutes(point.proven_epsilon, point.delta, hidden, error=error)
                for point in found.points
            )

        caught = math.inf
        if not missed(MOST_SHRINK):
            caught = bisected(missed, 1.0, MOST_SHRINK, SHRINK_PRECISION)[1]
        return replace(found, detectable_noise_factor=caught)


def single_report(attack: Attack, sample: Sample, *, exposed: bool) -> Finding:
    """The noise itself, no shuffler: does a report of the target, the most exposed client or
    another one, keep its local guarantee? The note says if it cannot give what was asked for."""
    plan, target = attack.source.plan, attack.source.scene.target
    asked = plan.classes[int(plan.class_of[target])]
    budget = f"({asked.epsilon0:.4g}, {asked.delta0:g})"
    whose = "" if exposed else f" of a client at {budget}"
    note = f"asked for {budget}, weight {float(plan.weight[target]):.4g}"
    found = attack.by_law(
        "local", f"one report{whose}, its sender known", ONE_LAW, sample, note=note
    )
    point = found.points[0]
    if point.delta >= asked.delta0 and point.epsilon_lower > asked.epsilon0:
        found = replace(found, note=f"{note}, which this noise DOES NOT KEEP")
    return attack.with_power(found, sample)


def several_rounds(attack: Attack) -> list[Finding]:
    """Does the accountant count every round? The target's own Gaussian reports, their sender known,
    or recognised by their position in the batch."""
    source, scene = attack.source, attack.source.scene
    nominal = (scene.one - scene.zero) / scene.own_scale
    count = max(3, min(MOST_OWN, VALUES_PER_CALL // scene.dimension))
    own = _axis(source, FIRST_OWN, count, 0), _axis(source, FIRST_OWN, count, 1)
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
    alike = size < CERTAIN and bool((scene.others[cohort] == scene.zero).all())
    count = 1 + int(cohort.sum())
    if position < CERTAIN:
        game, hidden, error = BY_POSITION, 1, position
    elif alike and count < len(scene.scales):
        game, hidden, error = BY_SIZE, count, size
    elif alike:
        game, hidden, error = "known others", count, 0.0
    else:
        return []
    found = attack.by_law(
        "proven", game, EXACT_BATCH, sample, hidden=hidden, error=error,
        note=f"hidden among {hidden} reports",
    )  # fmt: skip
    return [attack.with_power(found, sample, hidden=hidden, error=error)]


# --- Sums ---------------------------------------------------------------------------------------


def play_sums(source: Canaries, trials: int, clock: Clock, seeds: SeedTree) -> Pair:
    """First coordinates of up to `trials` rounds' sums, made by the run's own shuffler or with its
    own pooled noise."""
    played = []
    for number in clock.plays(trials):
        if source.noise_is_pooled:
            draws = [seeds.numpy_generator(number, "pooled noise") for _ in (0, 1)]
            worlds = [source.pooled(draw, one=bool(side)) for side, draw in enumerate(draws)]
            played.append([float(world[0]) for world in worlds])
            continue
        rows, other = source.play(number)
        zero = _summed(rows.numpy(), 2 * number, seeds)
        rows[source.scene.target] = other
        played.append([zero, _summed(rows.numpy(), 2 * number + 1, seeds)])
    zeros, ones = np.array(played, dtype=np.float64).T
    return zeros, ones


def _summed(rows: NDArray[np.float32], number: int, seeds: SeedTree) -> float:
    shuffler = LocalShuffler(rows.shape[1], np.full(len(rows), np.inf), seeds, keep=False)
    batch = shuffler.open(number, np.ones(len(rows), dtype=bool))
    batch.add(Reports(rows), np.arange(len(rows)), 0)
    released: Shuffled = batch.release()
    assert released.total is not None
    return float(released.total[0])


def added(values: Vector, rounds: int) -> Vector:
    """The sums of `rounds` successive values each."""
    whole = len(values) // rounds * rounds
    return np.asarray(values[:whole].reshape(-1, rounds).sum(axis=1))


def sums(
    attack: Attack, columns: Sequence[str], trials: int, clock: Clock, game: str = SUMS
) -> list[Finding]:
    """These columns, `sum` or `proven`: by mu where noise is Gaussian, by the measured law
    elsewhere; all of it holds with confidence 1 - alpha."""
    scene, stakes = attack.source.scene, attack.stakes
    totals, found = play_sums(attack.source, trials, clock, stakes.seeds), list[Finding]()
    if scene.noise == "gaussian":
        nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
        for column in columns:
            found += attack.by_mu(column, game, "the published sums", totals, nominal)
        return found
    # One round, and as many as there are plays of them.
    most = max(1, min(stakes.rounds, len(totals[0]) // FEWEST_COMPOSED))
    for rounds in dict.fromkeys((1, most)):
        sample = Sample.of_plays((added(totals[0], rounds), added(totals[1], rounds)))
        for column in columns:
            half = attack.with_share(2)
            found.append(half.by_law(column, game, ONE_LAW, sample, rounds=rounds))
    return found
