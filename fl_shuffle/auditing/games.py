"""Attacks on single reports, on whole shuffled rounds, and on sums, drawn by the real client code.

Each plays two worlds that differ in the target's data alone, makes a number of what is released in
either (its score), and turns the scores into lower bounds on epsilon, which are held against the
accountant's column that speaks of such an adversary.

**Sums** are attacked on what is published of every round. Every model is a function of the sums
before it, so who sees the sums sees no less than who sees the sequence of models. The adversary
knows every input but the target's and the noise of those who collude with it; all of that it
subtracts. What is left of a sum is the target's mean, which moves by its weighted sensitivity along
the first axis, and the noise of the honest clients: a Gaussian statistic where their noise is, with

    mu = (one - zero) / sqrt(sum over honest j of w_j^2 sigma_j^2)

a round. Where noise is pooled (`run.noise`) no report exists, and this is the one game that there
is; the claims are those of the reports that the sums stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
    game_epsilon,
    mu_lower,
    smallest_detectable_mu,
)
from fl_shuffle.auditing.effort import Clock
from fl_shuffle.auditing.findings import Finding
from fl_shuffle.auditing.scores import BatchScore, LengthRule, Scene, View, position_error
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
        """Of each of several tests that spend one test's error probability."""
        return replace(self, alpha=self.alpha / tests)


@dataclass(frozen=True)
class Attack:
    """Canaries, what is claimed of them (in `column`), and what is at stake."""

    source: Canaries
    claims: Claims
    stakes: Stakes
    column: str

    def against(self, column: str, *, share: int = 1) -> Attack:
        """The same against another column, with a share of the error probability."""
        return replace(self, column=column, stakes=self.stakes.shared_by(share))

    def finding(
        self, game: str, method: str, plays: int, lower: Callable[[float], float], **more: Any
    ) -> Finding:
        """`lower` bounds at every delta beside what is claimed after so many `rounds`."""
        rounds = more.pop("rounds", 1)
        points = tuple(
            self.claims.held_against(self.column, rounds, delta, lower(delta))
            for delta in self.stakes.deltas
        )
        return Finding(game, method, rounds, plays, points, **more, column=self.column)

    def by_threshold(self, game: str, scores: Pair, rounds: int) -> Finding:
        """The event "score beyond t" at every delta, all together with confidence 1 - alpha."""
        share = self.stakes.alpha / len(self.stakes.deltas)
        plays = min(map(len, scores)) // 2
        return self.finding(
            game,
            "likelihood-ratio test on whole rounds, Clopper-Pearson",
            plays,
            lambda delta: game_epsilon(*scores, delta, share)[0],
            rounds=rounds,
            largest_provable_epsilon=ceiling_epsilon(plays, self.stakes.deltas[0], share),
        )

    def by_mu(self, game: str, what: str, pairs: Pair, nominal: float) -> Iterator[Finding]:
        """The mu test of a statistic that is Gaussian in either dataset, over one round and all.

        `pairs` are paired plays of one round (see `mu_lower`); `nominal` is what its mu should be.
        """
        stakes, mu = self.stakes, mu_lower(*pairs, self.stakes.alpha)
        for rounds in dict.fromkeys((1, stakes.rounds)):
            root = math.sqrt(rounds)

            def lower(delta: float, total: float = root * mu) -> float:
                # gaussian_epsilon rounds up by less than the factor taken off again.
                return gaussian_epsilon(delta, total) * (1.0 - 1e-8)

            found = self.finding(
                game, f"Gaussian mu test on {what}", len(pairs[0]), lower,
                rounds=rounds, largest_provable_epsilon=math.inf,
                note=f"mu per round at least {mu:.4f}; nominal {nominal:.4f}",
            )  # fmt: skip
            claimed = found.points[0].proven_epsilon
            if claimed is not None and math.isfinite(claimed) and claimed > 0.0:
                bound = gaussian_mu(claimed, stakes.deltas[0]) / root
                need = smallest_detectable_mu(bound, len(pairs[0]), stakes.alpha, POWER)
                found = replace(found, detectable_noise_factor=max(1.0, need / nominal))
            yield found

    def by_law(
        self, game: str, sample: ReportSample, method: str, note: str, *,
        hidden: int = 1, error: float = 0.0,
    ) -> Finding:  # fmt: skip
        """The measured law of a report, and the exact law of the batch of so many (`hidden`) that
        it is shuffled among; `error` is that of taking the right ones for that batch."""
        alpha, facts = self.stakes.alpha, sample.dichotomy(self.stakes.alpha)
        found = self.finding(
            game, method, sample.trials,
            lambda delta: facts.epsilon(delta, hidden, error=error), note=note,
            largest_provable_epsilon=ceiling_epsilon(sample.trials, self.stakes.deltas[0], alpha),
        )  # fmt: skip
        if sample.scene.noise not in NOISES:
            return found

        def missed(factor: float) -> bool:
            """Whether noise so many times too small can go unseen more often than 5% of times."""
            worse = sample.expected(factor, POWER_SPREAD).dichotomy(alpha)
            return not any(
                point.proven_epsilon is not None
                and worse.refutes(point.proven_epsilon, point.delta, hidden, error=error)
                for point in found.points
            )

        caught = math.inf
        if not missed(MOST_SHRINK):
            caught = bisected(missed, 1.0, MOST_SHRINK, SHRINK_PRECISION)[1]
        return replace(found, detectable_noise_factor=caught)


# --- One report ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportSample:
    """First coordinates of single reports like the target's, sorted out at fixed thresholds:
    `counts` [2, k] of either dataset lie above each."""

    scene: Scene
    thresholds: Vector
    counts: NDArray[np.int64]
    trials: int

    @classmethod
    def draw(cls, source: Canaries, reports: int, clock: Clock) -> ReportSample:
        """Up to `reports` reports (at least one call's worth) in each dataset.

        The thresholds are quantiles of an independent, smaller sample.
        """
        per_call = max(1, min(reports, VALUES_PER_CALL // source.scene.dimension))
        few = min(per_call, TRAINING_REPORTS)
        tail = np.geomspace(1.0 / few, 0.5, 9)
        levels = np.concatenate([tail, 1.0 - tail])
        training = (_axis(source, FIRST_TRAINING + side, few, side) for side in (0, 1))
        thresholds = np.unique(np.concatenate([np.quantile(part, levels) for part in training]))
        counts = np.zeros((2, len(thresholds)), dtype=np.int64)
        trials = 0
        while trials < reports and (trials == 0 or not clock.over()):
            for side in (0, 1):
                number = FIRST_CLONES + 2 * (trials // per_call) + side
                counts[side] += above(_axis(source, number, per_call, side), thresholds)
            trials += per_call
        return cls(source.scene, thresholds, counts, trials)

    def dichotomy(self, alpha: float) -> Dichotomy:
        """What is certain about the two laws at confidence 1 - alpha."""
        zero, one = self.counts
        return Dichotomy.from_counts(zero, one, self.trials, alpha)

    def expected(self, shrink: float, spread: float) -> ReportSample:
        """The counts if the noise were `shrink` times too small, each count `spread` standard
        deviations to the unlucky side; Gaussian or Laplace noise."""
        scene, counts = self.scene, []
        law = stats.laplace if scene.noise == "laplace" else stats.norm
        for mean, side in ((scene.zero, 1.0), (scene.one, -1.0)):
            chance = law.sf((self.thresholds - mean) * shrink / scene.own_scale)
            deviation = np.sqrt(self.trials * chance * (1.0 - chance))
            hits = np.rint(self.trials * chance + side * spread * deviation)
            counts.append(np.clip(hits, 0, self.trials).astype(np.int64))
        return replace(self, counts=np.stack(counts))


def _axis(source: Canaries, number: int, count: int, side: int) -> Vector:
    """First coordinates of reports like the target's."""
    return np.asarray(source.clones(number, count, one=bool(side))[:, 0].double().numpy())


def single_report(attack: Attack, sample: ReportSample, *, exposed: bool) -> Finding:
    """The noise itself, no shuffler: does a report of the target, the most exposed client or
    another one, keep its local guarantee? The note says if it cannot give what was asked for."""
    plan, target = attack.source.plan, attack.source.scene.target
    asked = plan.classes[int(plan.class_of[target])]
    budget = f"({asked.epsilon0:.4g}, {asked.delta0:g})"
    whose = "" if exposed else f" of a client at {budget}"
    note = f"asked for {budget}, weight {float(plan.weight[target]):.4g}"
    found = attack.against("local").by_law(
        f"one report{whose}, its sender known", sample,
        "exact confidence bounds of both laws", note,
    )  # fmt: skip
    point = found.points[0]
    if point.delta >= asked.delta0 and point.epsilon_lower > asked.epsilon0:
        found = replace(found, note=f"{note}, which this noise DOES NOT KEEP")
    return found


# --- Whole rounds -------------------------------------------------------------------------------


def play(
    source: Canaries, trials: int, clock: Clock, seeds: SeedTree,
    score: Callable[[Any], list[float]], *, keep: bool,
) -> list[Pair]:  # fmt: skip
    """Scores of up to `trials` rounds' releases, each a pair: a shuffled batch float32 [n, d], or
    (not `keep`) its sum [d], made by the run's own shuffler or with its own pooled noise."""
    played = []
    for number in clock.plays(trials):
        if source.noise_is_pooled:
            draws = [seeds.numpy_generator(number, "pooled noise") for _ in (0, 1)]
            worlds = [source.pooled(draw, one=bool(side)) for side, draw in enumerate(draws)]
            played.append([score(world) for world in worlds])
            continue
        rows, other = source.play(number)
        zero = score(_released(rows.numpy(), 2 * number, seeds, keep=keep))
        rows[source.scene.target] = other
        played.append([zero, score(_released(rows.numpy(), 2 * number + 1, seeds, keep=keep))])
    return [(zero, one) for zero, one in np.array(played, dtype=np.float64).transpose(2, 1, 0)]


def _released(rows: NDArray[np.float32], number: int, seeds: SeedTree, *, keep: bool) -> Any:
    clients = np.arange(len(rows))
    shuffler = LocalShuffler(rows.shape[1], np.full(len(rows), np.inf), seeds, keep=keep)
    batch = shuffler.open(number, np.ones(len(rows), dtype=bool))
    batch.add(Reports(rows), clients, 0)
    released: Shuffled = batch.release()
    return released.reports if keep else released.total


def composed(scores: Vector, rounds: int) -> Vector:
    """Scores of `rounds` successive rounds each: the sum of their log-likelihood ratios."""
    # The first-order score can fall below -1 by chance where the others differ from the target.
    return added(np.log1p(np.maximum(scores, -1.0 + 1e-9)), rounds)


def added(values: Vector, rounds: int) -> Vector:
    """The sums of `rounds` successive values each."""
    whole = len(values) // rounds * rounds
    return np.asarray(values[:whole].reshape(-1, rounds).sum(axis=1))


def whole_rounds(
    attack: Attack, sample: ReportSample, trials: int, clock: Clock
) -> Iterator[Finding]:
    """Every attack on batches of Gaussian or Laplace reports."""
    source, scene, stakes = attack.source, attack.source.scene, attack.stakes
    gaussian, nominal = scene.noise == "gaussian", (scene.one - scene.zero) / scene.own_scale
    several = bool((scene.scales != scene.own_scale).any())
    if gaussian:
        # Does the accountant count every round? No statistic is sharper.
        count = max(3, min(MOST_OWN, VALUES_PER_CALL // scene.dimension))
        own = _axis(source, FIRST_OWN, count, 0), _axis(source, FIRST_OWN, count, 1)
        game = "reports of several rounds, their sender known"
        yield from attack.against("local").by_mu(game, "the target's own reports", own, nominal)

    # Reports are told apart by their length, too, where the clients' noise scales differ.
    score = BatchScore(scene, use_length=several)

    def look(released: Any) -> list[float]:
        view = View.of(released, scene.noise)
        return [float(score(view).sum()), float(view.axis.max())]

    scores, top = play(source, trials, clock, stakes.seeds, look, keep=True)
    position, proven = position_error(scene), attack.against("proven")
    game = BY_POSITION if position < CERTAIN else "known others"
    if several:
        game = "report recognised by its size and position" if source.unit == "record" else BY_SIZE
    # All lengths of play together spend one test's share.
    half = proven.against("proven", share=2)
    for rounds in _lengths(stakes.rounds, len(scores[0])):
        both = scores if rounds == 1 else (composed(scores[0], rounds), composed(scores[1], rounds))
        yield half.by_threshold(game, both, rounds)
    yield from _exact_batch(proven, sample, position)
    if gaussian and position < CERTAIN and len(top[0]) >= 3:
        yield from proven.by_mu(BY_POSITION, "the recognised report", top, nominal)


def _lengths(rounds: int, plays: int) -> list[int]:
    """One round, and as many as there are plays of them."""
    return list(dict.fromkeys((1, max(1, min(rounds, plays // FEWEST_COMPOSED)))))


def _exact_batch(attack: Attack, sample: ReportSample, position: float) -> Iterator[Finding]:
    """Measured law of one report, exact arithmetic of the shuffle: sharp where it applies."""
    scene, rule = sample.scene, LengthRule.of(sample.scene)
    cohort = (scene.scales == scene.own_scale) & scene.hiding
    alike = rule.error < CERTAIN and bool((scene.others[cohort] == scene.zero).all())
    if position < CERTAIN:
        game, hidden, error = BY_POSITION, 1, position
    elif alike and rule.count < len(scene.scales):
        game, hidden, error = BY_SIZE, rule.count, rule.error
    elif alike:
        game, hidden, error = "known others", rule.count, 0.0
    else:
        return
    note = f"hidden among {hidden} reports"
    yield attack.by_law(game, sample, EXACT_BATCH, note, hidden=hidden, error=error)


# --- Sums ---------------------------------------------------------------------------------------


def sums(attack: Attack, trials: int, clock: Clock, game: str = SUMS) -> Iterator[Finding]:
    """Every test of the column `sum`; they hold together with confidence 1 - alpha."""
    source, scene, stakes = attack.source, attack.source.scene, attack.stakes
    (totals,) = play(
        source, trials, clock, stakes.seeds, lambda total: [float(total[0])], keep=False
    )
    # Half for the plays as they are, one round and several; half for the law of Gaussian noise.
    quarter = attack.against("sum", share=4)
    for rounds in _lengths(stakes.rounds, len(totals[0])):
        both = added(totals[0], rounds), added(totals[1], rounds)
        yield quarter.by_threshold(game, both, rounds)
    if scene.noise == "gaussian" and len(totals[0]) >= 3:
        nominal = (scene.one - scene.zero) / float(np.linalg.norm(scene.scales))
        yield from attack.against("sum", share=2).by_mu(game, "the published sums", totals, nominal)
