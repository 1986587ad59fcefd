"""Playing: whole shuffled rounds, and single reports in bulk, drawn by the real client code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.auditing.confidence import (
    Dichotomy,
    ceiling_epsilon,
    game_epsilon,
    mu_lower,
    smallest_detectable_mu,
)
from fl_shuffle.auditing.findings import Finding, Point
from fl_shuffle.auditing.score import BatchScore, View, length_rule, report_scales
from fl_shuffle.auditing.source import CanarySource
from fl_shuffle.seeds import SeedTree

Vector = NDArray[np.float64]

# Round numbers of the plays, and of the bulk draws: distinct, so that their noise is independent.
FIRST_CLONES, FIRST_TRAINING = 1 << 40, 1 << 41
VALUES_PER_CALL = 1 << 22
"""Reports are drawn in pieces of so many numbers (16 MiB of float32)."""
TRAINING_REPORTS = 4096
"""Reports drawn beside the others, only to place the thresholds."""
FEWEST_PLAYS = 8
"""So many rounds are played whatever the clock says."""
POWER = 0.95
"""The probability with which what is said to be caught would be caught."""

Judge = Callable[[int, float, float], Point]
"""(rounds, delta, lower bound found) -> the point, with the claim it is held against."""


@dataclass(frozen=True)
class Plays:
    """Scores of whole rounds, one per round, in either dataset; play k of both shares its noise.

    `top` is the largest first coordinate in the batch. `wrong` of `classified` reports were taken
    for the wrong noise scale (none are classified where all scales are equal).
    """

    scores: tuple[Vector, Vector]
    top: tuple[Vector, Vector]
    wrong: int
    classified: int

    def __len__(self) -> int:
        return len(self.top[0])


class Clock:
    """Stops long games; what was played until then counts, as time does not depend on results."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._end


def play_rounds(source: CanarySource, trials: int, clock: Clock, seeds: SeedTree) -> Plays:
    """Play up to `trials` rounds (at least eight): draw, shuffle, score, in both datasets.

    Reports are told apart by their length too if the clients' noise scales differ.
    """
    scales, target = report_scales(source), source.scene.target
    same = scales == scales[target]
    several = not same.all()
    score = BatchScore(source, use_length=several)
    rule = length_rule(source)
    generator = seeds.numpy_generator("permutation")
    scores: tuple[list[float], list[float]] = ([], [])
    top: tuple[list[float], list[float]] = ([], [])
    wrong = classified = 0
    for number in range(1, trials + 1):
        if number > FEWEST_PLAYS and clock.over():
            break
        rows, other = source.play(number)
        if several:
            wrong += int((rule.chosen(View.of(rows, source.plan.noise)) != same).sum())
            classified += len(same)
        for side in (0, 1):
            if side:
                rows[target] = other
            batch = ReportBatch(source.dimension, keep=True)
            batch.add(rows, 0)
            view = View.of(batch.release(generator), source.plan.noise)
            scores[side].append(float(score(view).sum()))
            top[side].append(float(view.axis.max()))
    return Plays(
        (np.array(scores[0]), np.array(scores[1])),
        (np.array(top[0]), np.array(top[1])),
        wrong,
        classified,
    )


def composed(scores: Vector, rounds: int) -> Vector:
    """Scores of `rounds` successive rounds each: the sum of their log-likelihood ratios."""
    whole = len(scores) // rounds * rounds
    # The first-order score can fall below -1 by chance where the others differ from the target.
    logs = np.log1p(np.maximum(scores[:whole], -1.0 + 1e-9))
    return np.asarray(logs.reshape(-1, rounds).sum(axis=1))


@dataclass(frozen=True)
class ReportSample:
    """First coordinates of single reports like the target's, sorted out at fixed thresholds."""

    thresholds: Vector
    above_zero: NDArray[np.int64]
    above_one: NDArray[np.int64]
    trials: int

    def dichotomy(self, alpha: float) -> Dichotomy:
        """What is certain about the two laws at confidence 1 - alpha."""
        return Dichotomy.from_counts(
            self.above_zero, self.trials, self.above_one, self.trials, alpha
        )


def sample_reports(source: CanarySource, reports: int, clock: Clock) -> ReportSample:
    """Draw up to `reports` reports (at least one call's worth) in each dataset.

    The thresholds are quantiles of an independent, smaller sample.
    """
    per_call = max(1, min(reports, VALUES_PER_CALL // source.dimension))
    thresholds = _thresholds(source, min(per_call, TRAINING_REPORTS))
    above = np.zeros((2, len(thresholds)), dtype=np.int64)
    trials = 0
    while trials < reports and (trials == 0 or not clock.over()):
        for side in (0, 1):
            number = FIRST_CLONES + 2 * (trials // per_call) + side
            axis = source.clones(number, per_call, one=bool(side))[:, 0].double().numpy()
            ordered = np.sort(axis)
            above[side] += per_call - np.searchsorted(ordered, thresholds, side="right")
        trials += per_call
    return ReportSample(thresholds, above[0], above[1], trials)


def _thresholds(source: CanarySource, count: int) -> Vector:
    zero, one = (
        source.clones(FIRST_TRAINING + side, count, one=bool(side))[:, 0].double().numpy()
        for side in (0, 1)
    )
    tail = np.geomspace(1.0 / count, 0.5, 9)
    levels = np.concatenate([tail, 1.0 - tail])
    return np.unique(np.concatenate([np.quantile(zero, levels), np.quantile(one, levels)]))


def expected_sample(
    source: CanarySource, sample: ReportSample, shrink: float, spread: float
) -> ReportSample:
    """The counts `sample` would hold if the noise were `shrink` times too small, each count
    `spread` standard deviations to the unlucky side; Gaussian or Laplace noise."""
    scene = source.scene
    scale = float(report_scales(source)[scene.target]) / shrink
    law = stats.laplace if source.plan.noise == "laplace" else stats.norm
    counts = []
    for mean, side in ((scene.zero, 1.0), (scene.one, -1.0)):
        chance = law.sf((sample.thresholds - mean) / scale)
        deviation = np.sqrt(sample.trials * chance * (1.0 - chance))
        hits = np.rint(sample.trials * chance + side * spread * deviation)
        counts.append(np.clip(hits, 0, sample.trials).astype(np.int64))
    return ReportSample(sample.thresholds, counts[0], counts[1], sample.trials)


def threshold_finding(
    game: str,
    scores: tuple[Vector, Vector],
    rounds: int,
    deltas: tuple[float, ...],
    alpha: float,
    judge: Judge,
    *,
    column: str = "proven",
) -> Finding:
    """The event "score beyond t" at every delta, with confidence 1 - alpha for all together."""
    share = alpha / len(deltas)
    points, plays = [], 0
    for delta in deltas:
        epsilon, _, plays = game_epsilon(scores[0], scores[1], delta, share)
        points.append(judge(rounds, delta, epsilon))
    return Finding(
        game=game,
        method="likelihood-ratio test on whole rounds, Clopper-Pearson",
        rounds=rounds,
        plays=plays,
        points=tuple(points),
        ceiling=ceiling_epsilon(plays, deltas[0], share),
        column=column,
    )


def mu_findings(
    game: str,
    method: str,
    pairs: tuple[Vector, Vector],
    nominal: float,
    rounds: int,
    deltas: tuple[float, ...],
    alpha: float,
    judge: Judge,
    *,
    column: str = "proven",
) -> list[Finding]:
    """The mu test of a statistic that is Gaussian in either dataset, over one round and `rounds`.

    `pairs` are paired plays of one round (see `mu_lower`); `nominal` is what its mu should be.
    """
    mu = mu_lower(*pairs, alpha)
    found = []
    for number in dict.fromkeys((1, rounds)):
        root = math.sqrt(number)
        points = tuple(
            # gaussian_epsilon rounds up by less than the factor taken off again.
            judge(number, delta, gaussian_epsilon(delta, root * mu) * (1.0 - 1e-8))
            for delta in deltas
        )
        claimed = points[0].proven
        detectable = None
        if claimed is not None and math.isfinite(claimed) and claimed > 0.0:
            bound = gaussian_mu(claimed, deltas[0]) / root
            need = smallest_detectable_mu(bound, len(pairs[0]), alpha, POWER)
            detectable = max(1.0, need / nominal)
        found.append(
            Finding(
                game=game,
                method=method,
                rounds=number,
                plays=len(pairs[0]),
                points=points,
                ceiling=math.inf,
                detectable=detectable,
                note=f"mu per round at least {mu:.4f}; nominal {nominal:.4f}",
                column=column,
            )
        )
    return found
