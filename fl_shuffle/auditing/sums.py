"""The attack on a run that releases sums alone: on what is published of every round.

Every model is a function of the sums before it, so who sees the sums sees no less than who sees
the sequence of models. The adversary knows every input but the target's and the noise of those who
collude with it; all of that it subtracts. What is left of a sum is the target's mean, which moves
by its weighted sensitivity along the first axis, and the noise of the honest clients: a Gaussian
statistic where their noise is, with

    mu = (one - zero) / sqrt(sum over honest j of w_j^2 sigma_j^2)

a round. Sums are made by the run's own aggregation, of reports drawn by the code that clients run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.auditing.claims import SumClaims
from fl_shuffle.auditing.findings import Finding, Point
from fl_shuffle.auditing.games import FEWEST_PLAYS, Clock, mu_findings, threshold_finding
from fl_shuffle.auditing.score import report_scales
from fl_shuffle.auditing.source import CanarySource

Vector = NDArray[np.float64]

SUMS_SHARE = 0.2
"""Of an audit's time."""
FEWEST_COMPOSED = 200
"""Plays of several rounds are made of at least this many."""
GAME = "sums of the reports, all else known"


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


def play_sums(source: CanarySource, trials: int, clock: Clock) -> tuple[Vector, Vector]:
    """The first coordinate of up to `trials` sums (at least eight), in either dataset; play k of
    both shares its noise."""
    target = source.scene.target
    played: tuple[list[float], list[float]] = ([], [])
    for number in range(1, trials + 1):
        if number > FEWEST_PLAYS and clock.over():
            break
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
