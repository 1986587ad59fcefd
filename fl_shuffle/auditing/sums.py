"""The attack on a run that releases sums alone: on what is published of every round.

Every model is a function of the sums before it, so who sees the sums sees no less than who sees
the sequence of models. The adversary knows every input but the target's and the noise of those who
collude with it; all of that it subtracts. What is left of a sum is the target's mean, which moves
by its weighted sensitivity along the first axis, and the noise of the honest clients: a Gaussian
statistic where their noise is, with

    mu = (one - zero) / sqrt(sum over honest j of w_j^2 sigma_j^2)

a round. Sums are made by the run's own aggregation, of reports drawn by the code that clients run.

Where noise is pooled (`run.noise`) no report exists, and this is the one game that there is. The
claims are those of the reports that the sums stand for; so it is tested, too, that pooled noise has
the law of the sum of the reports' noise, which clients' code draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.auditing.claims import SumClaims
from fl_shuffle.auditing.findings import Check, Finding, Point
from fl_shuffle.auditing.games import FEWEST_PLAYS, Clock, mu_findings, threshold_finding
from fl_shuffle.auditing.score import report_scales
from fl_shuffle.auditing.source import CanarySource
from fl_shuffle.seeds import SeedTree

Vector = NDArray[np.float64]

SUMS_SHARE = 0.2
"""Of an audit's time."""
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many."""
GAME = "sums of the reports, all else known"
NO_REPORTS = (
    "noise pooled: no reports are made, so no report, batch or order is attacked; for these audit "
    "run.noise = 'per-report', whose law is the same"
)
ONE_LAW = "sums of rounds: pooled noise against that of reports"

WANTED_VALUES = 50_000
"""Coordinates of sums to compare: a scale wrong by 12% is then seen."""
MOST_DRAWN = 1 << 27
"""Variates of reports, all together."""
POWER_SPREAD = 1.6449
"""The normal quantile of the power that is stated, 95%."""
STEEPEST = 0.18
"""A law's distribution function moves by at least this times a small relative change of its scale:
max x f(x), 1/(2e) for Laplace noise, more for sums of it, 0.24 for Gaussian noise."""


@runtime_checkable
class SumSource(CanarySource, Protocol):
    """A `CanarySource` whose rounds can be played with pooled noise."""

    @property
    def noise_is_pooled(self) -> bool:
        """Whether the audited run makes no reports."""

    def pooled(self, generator: np.random.Generator, *, one: bool) -> Vector:
        """A round's sum [d] in either dataset, as the run's server has it."""


def pooled_source(source: CanarySource) -> SumSource | None:
    """The source, if the run that it stands for makes no reports."""
    return source if isinstance(source, SumSource) and source.noise_is_pooled else None


@dataclass(frozen=True)
class SumGame:
    """The reports of the honest clients, the target among them, and what is claimed for it."""

    source: CanarySource
    claims: SumClaims

    @property
    def noise(self) -> float:
        """Standard deviation (or the like) of the honest noise in a sum."""
        return math.sqrt(float(np.sum(report_scales(self.source) ** 2)))

    def judge(self, rounds: int, delta: float, lower: float) -> Point:
        """A lower bound beside the column `sum`."""
        return Point(delta, lower, self.claims(rounds, delta), None)


def play_sums(
    source: CanarySource, trials: int, clock: Clock, seeds: SeedTree
) -> tuple[Vector, Vector]:
    """The first coordinate of up to `trials` sums (at least eight), in either dataset; play k of
    both shares its noise."""
    target, pooled = source.scene.target, pooled_source(source)
    played: tuple[list[float], list[float]] = ([], [])
    for number in range(1, trials + 1):
        if number > FEWEST_PLAYS and clock.over():
            break
        if pooled is not None:
            for side in (0, 1):
                generator = seeds.numpy_generator(number, "pooled noise")
                played[side].append(float(pooled.pooled(generator, one=bool(side))[0]))
            continue
        rows, other = source.play(number)
        for side in (0, 1):
            if side:
                rows[target] = other
            batch = ReportBatch(source.dimension, keep=False)
            batch.add(rows, 0)
            played[side].append(float(batch.release_sum()[0]))
    return np.array(played[0]), np.array(played[1])


def sum_findings(
    game: SumGame,
    plays: tuple[Vector, Vector],
    rounds: int,
    deltas: tuple[float, ...],
    alpha: float,
) -> list[Finding]:
    """Every test of the column `sum`; they hold together with confidence 1 - alpha."""
    scene, found = game.source.scene, list[Finding]()
    several = min(rounds, len(plays[0]) // FEWEST_COMPOSED)
    # Half for the plays as they are, one round and several; half for the law of Gaussian noise.
    for number in dict.fromkeys((1, max(1, several))):
        added = tuple(_added(values, number) for values in plays)
        found.append(
            threshold_finding(
                GAME, (added[0], added[1]), number, deltas, alpha / 4.0, game.judge, column="sum"
            )
        )
    if game.source.plan.noise == "gaussian" and len(plays[0]) >= 3:
        found += mu_findings(
            GAME,
            "Gaussian mu test on the published sums",
            plays,
            (scene.one - scene.zero) / game.noise,
            rounds,
            deltas,
            alpha / 2.0,
            game.judge,
            column="sum",
        )
    return found


def _added(values: Vector, rounds: int) -> Vector:
    """The statistic of `rounds` successive rounds each: their sum, the best for Gaussian noise."""
    whole = len(values) // rounds * rounds
    return np.asarray(values[:whole].reshape(-1, rounds).sum(axis=1))


def one_law_check(source: SumSource, level: float, seeds: SeedTree) -> Check:
    """Kolmogorov-Smirnov test of two samples: sums of rounds with and without reports."""
    clients, dimension = len(source.plan), source.dimension
    rounds = min(-(-WANTED_VALUES // dimension), MOST_DRAWN // (clients * dimension))
    rounds = max(2, rounds)
    mean = float(np.sum(np.delete(source.scene.others, source.scene.target))) + source.scene.zero
    samples: tuple[list[Vector], list[Vector]] = ([], [])
    for number in range(1, rounds + 1):
        reports = source.play(number)[0].sum(0).double().numpy()
        generator = seeds.numpy_generator(number, "one law")
        for sample, total in zip(
            samples, (reports, source.pooled(generator, one=False)), strict=True
        ):
            sample.append(np.concatenate([total[:1] - mean, total[1:]]))
    left, right = (np.concatenate(sample) for sample in samples)
    distance = float(stats.ks_2samp(left, right, method="asymp").statistic)
    # The asymptotic tail bounds the exact one for equal sizes (Dvoretzky, Kiefer, Wolfowitz; Wei
    # and Dudley 2012 for two samples).
    p_value = min(1.0, 2.0 * math.exp(-len(left) * distance**2))
    seen = (math.sqrt(math.log(2.0 / level)) + POWER_SPREAD) / math.sqrt(len(left)) / STEEPEST
    return Check(
        game=ONE_LAW,
        method=f"Kolmogorov-Smirnov, {len(left):,} coordinates of sums each",
        rounds=1,
        plays=rounds,
        p_value=p_value,
        level=level,
        power=f"would have caught noise of a scale wrong by {seen:.1%}",
    )
