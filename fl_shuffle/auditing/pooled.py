"""Runs with pooled noise: no report exists, so what is attacked is each round's sum.

Their claims are those of the reports that they stand for. Two things are tested: that the pooled
noise has the law of the sum of the reports' noise (reports drawn by the real client code), and that
nobody who sees the sums of rounds, hence the models, beats a claim.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.auditing.findings import Check
from fl_shuffle.auditing.games import FEWEST_PLAYS, Clock
from fl_shuffle.auditing.source import CanarySource
from fl_shuffle.seeds import SeedTree

Vector = NDArray[np.float64]

NO_REPORTS = (
    "noise pooled: no reports are made, so no report, batch or order is attacked; for these audit "
    "run.noise = 'per-report', whose law is the same"
)
ONE_LAW = "sums of rounds: pooled noise against that of reports"
SUMS = "sums of whole rounds, all others known"

WANTED_VALUES = 50_000
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


def play_sums(
    source: SumSource, trials: int, clock: Clock, seeds: SeedTree
) -> tuple[Vector, Vector]:
    """First coordinates of up to `trials` rounds' sums (at least eight) in either dataset; play k
    of both shares its noise."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(1, trials + 1):
        if number > FEWEST_PLAYS and clock.over():
            break
        for side in (0, 1):
            generator = seeds.numpy_generator(number, "pooled noise")
            found[side].append(float(source.pooled(generator, one=bool(side))[0]))
    return np.array(found[0]), np.array(found[1])


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
