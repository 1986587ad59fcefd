"""What a run certainly loses: an attack on all its rounds at once, its error rates computed.

All other clients hold one common mean (the origin here) and everybody's noise has one law, so a
report matters only through its coordinate w along the line of the two candidate means a_0, a_1 (in
noise widths). The attacker adds up f(w) over all reports of all rounds,

    f = log( (m base + p_1) / (m base + p_0) ),   m the number of others,

the likelihood ratio of a batch to first order (exact for m = 0), and says "a_1" if the sum exceeds
a threshold. f is constant on cells of w and the test is randomized by a little Gaussian noise: both
are choices of the attacker, so the error rates are exactly those of an attack. They come from the
Fourier series of the sum modulo a period, again the attacker's choice, and their numerical error is
subtracted. With alpha, beta the errors, any guarantee has beta >= 1 - delta - e^eps alpha, hence

    eps >= log( (P_1(sum > x) - delta) / P_0(sum > x) )   for every threshold x.

More others only hide better: an attacker can add reports of the common mean himself. A number for n
others therefore holds for rounds with fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.chosen_vector_datasets import cell_probabilities, scenes
from fl_shuffle.accounting.engine.tilted_moments import UNIT
from fl_shuffle.accounting.rounds.round_library import RoundType
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import NotApplicableError, require_integer, require_real

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

TINY = 1e-300


def attack_epsilon(kind: RoundType, rounds: int, delta: float) -> float:
    """A lower bound on epsilon at `delta` of `rounds` rounds of `kind`; zero if the attack fails.

    Relation: replace-one, the worst data set of those tried. Rounded down.
    """
    require_integer("rounds", rounds, minimum=1)
    target = require_real(
        "delta", delta, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
    try:
        found = _scores(kind)
    except NotApplicableError:
        return 0.0
    best = max(found, key=lambda scores: scores.signal(rounds), default=None)
    return 0.0 if best is None else best.epsilon(rounds, target)


@lru_cache(maxsize=64)
def _scores(kind: RoundType) -> tuple[Scores, ...]:
    if kind.own.ratio == 0.0:
        return ()
    return tuple(Scores(kind, scene) for scene in scenes(kind) if scene[0] != scene[1])


@dataclass(frozen=True)
class _Law:
    """A score's values and probabilities: what one report adds to the attacker's sum."""

    values: FloatArray
    probabilities: FloatArray

    @property
    def mean(self) -> float:
        return float(self.probabilities @ self.values)

    @property
    def variance(self) -> float:
        return float(self.probabilities @ (self.values - self.mean) ** 2)

    def excess(self, frequencies: FloatArray) -> ComplexArray:
        """E e^(i w score) - 1 at each frequency, without cancellation."""
        half = np.multiply.outer(0.5 * frequencies, self.values)
        sine = np.sin(half)
        result = np.empty(frequencies.size, dtype=np.complex128)
        result.real = (sine * sine) @ (-2.0 * self.probabilities)
        result.imag = (sine * np.cos(half)) @ (2.0 * self.probabilities)
        return result

    def excess_error(self, frequencies: FloatArray) -> FloatArray:
        """Round-off of `excess`."""
        size = float(self.probabilities @ np.abs(self.values))
        return (self.values.size + 16.0) * UNIT * size * frequencies


class Scores:
    """The attack on one data set: the two means of the client relative to the others'."""

    def __init__(self, kind: RoundType, scene: tuple[float, float]) -> None:
        self._others = sum(count for _, count in kind.others)
        span = TOLERANCES.dataset_reach + max(abs(scene[0]), abs(scene[1]))
        edges = np.linspace(-span, span, TOLERANCES.attack_cells + 1)
        laws = [cell_probabilities(kind.noise, edges - at) for at in (0.0, *scene)]
        base, p, q = (law / math.fsum(law.tolist()) for law in laws)
        below = self._others * base + p
        kept = (below > 0.0) | (q > 0.0)
        base, p, q, below = base[kept], p[kept], q[kept], below[kept]
        with np.errstate(divide="ignore"):
            score = np.where(below > 0.0, np.log1p((q - p) / np.where(below > 0.0, below, 1.0)), 0)
        score = np.where(below > 0.0, score, TOLERANCES.attack_largest_score)
        score = np.clip(score, -TOLERANCES.attack_largest_score, TOLERANCES.attack_largest_score)
        if self._others:
            score -= float(base @ score)
        self._base = _Law(score, base)
        self._means = (_Law(score, p), _Law(score, q))
        self._transforms: dict[tuple[float, float], _Transforms] = {}

    def _moments(self, rounds: int) -> tuple[list[float], list[float]]:
        """Means and variances of the attacker's sum under both hypotheses."""
        means = [rounds * (self._others * self._base.mean + law.mean) for law in self._means]
        spread = self._others * self._base.variance
        return means, [rounds * (spread + law.variance) for law in self._means]

    def signal(self, rounds: int) -> float:
        """How many standard deviations the two hypotheses lie apart."""
        means, variances = self._moments(rounds)
        return (means[1] - means[0]) / math.sqrt(max(*variances, 1e-300))

    def epsilon(self, rounds: int, delta: float) -> float:
        """The largest certain epsilon over a range of thresholds."""
        means, variances = self._moments(rounds)
        sd = math.sqrt(max(variances))
        gap = means[1] - means[0]
        if not 0.0 < sd < math.inf or gap <= 0.0:
            return 0.0
        noise = TOLERANCES.attack_smoothing * 2.0 ** math.ceil(math.log2(sd))
        period = 2.0 ** math.ceil(math.log2(2.0 * gap + TOLERANCES.attack_period_sds * sd))
        transforms = self._transform(noise, period)
        thresholds = np.linspace(
            -0.5 * gap - sd, 0.5 * gap + 8.0 * sd, TOLERANCES.attack_thresholds
        )
        shift = 0.5 * (means[0] + means[1])
        reached, errors = [], []
        for index in (0, 1):
            above, error = transforms.above(thresholds, shift, self._others * rounds, rounds, index)
            # Pinsker's inequality for the error of every report's law.
            error += (
                math.sqrt((self._others + 1.0) * rounds) * TOLERANCES.attack_cell_error
                + TOLERANCES.attack_cut_off
            )
            reached.append(above)
            errors.append(error)
        certain = reached[1] - errors[1] - delta
        at_most = np.maximum(reached[0], 0.0) + errors[0]
        good = certain > 0.0
        if not bool(good.any()):
            return 0.0
        return max(0.0, float(np.max(np.log(certain[good] / at_most[good])))) * (1.0 - 1e-9)

    def _transform(self, noise: float, period: float) -> _Transforms:
        key = (noise, period)
        if key not in self._transforms:
            last = math.ceil(TOLERANCES.attack_gauss_reach / noise * period / (2.0 * math.pi))
            odd = np.arange(1, last + 1, 2, dtype=np.float64)
            frequencies = 2.0 * math.pi / period * odd
            p, q = self._means
            self._transforms[key] = _Transforms(
                frequencies,
                np.exp(-0.5 * (noise * frequencies) ** 2) / (math.pi * odd),
                _Transform.of(self._base, frequencies),
                (_Transform.of(p, frequencies), _Transform.of(q, frequencies)),
            )
        return self._transforms[key]


@dataclass(frozen=True)
class _Transform:
    """A characteristic function: its logarithm, what its modulus cannot exceed, its error."""

    log: ComplexArray
    log_most: FloatArray
    relative_error: FloatArray

    @classmethod
    def of(cls, law: _Law, frequencies: FloatArray) -> _Transform:
        excess = law.excess(frequencies)
        error = law.excess_error(frequencies)
        modulus = np.abs(1.0 + excess)
        # log|1 + z| = log1p(2 Re z + |z|^2) / 2 keeps its digits near zero.
        near = np.maximum(2.0 * excess.real + np.abs(excess) ** 2, -0.9)
        real = np.where(modulus > 0.5, 0.5 * np.log1p(near), np.log(np.maximum(modulus, TINY)))
        return cls(
            real + 1j * np.angle(1.0 + excess),
            np.minimum(np.maximum(real, np.log(modulus + error)), 0.0),
            error / np.maximum(modulus, TINY),
        )


@dataclass(frozen=True)
class _Transforms:
    """The three characteristic functions at the odd frequencies of a period."""

    frequencies: FloatArray
    weights: FloatArray
    base: _Transform
    means: tuple[_Transform, _Transform]

    def above(
        self, thresholds: FloatArray, shift: float, others: int, rounds: int, index: int
    ) -> tuple[FloatArray, float]:
        """Probability of the half period above each threshold (from `shift`), and its error."""
        base, own = self.base, self.means[index]
        most = self.weights * np.exp(others * base.log_most + rounds * own.log_most)
        kept = most > TOLERANCES.attack_negligible
        exponent = others * base.log[kept] + rounds * own.log[kept]
        frequencies, most = self.frequencies[kept], most[kept]
        size = self.weights[kept] * np.exp(exponent.real)
        drift = others * base.relative_error[kept] + rounds * own.relative_error[kept]
        drift += 8.0 * UNIT * (np.abs(exponent) + np.abs(frequencies * shift) + size.size)
        wrong = np.minimum(size * np.expm1(np.minimum(drift, 1.0)), size + most)
        wrong = np.where(drift < 1.0, wrong, size + most)
        error = (
            2.0 * float(np.sum(wrong))
            + 2.0 * TOLERANCES.attack_negligible * self.weights.size
            + 8.0 * UNIT
        )
        phase = exponent.imag - frequencies * shift
        turned = phase[None, :] - np.multiply.outer(thresholds, frequencies)
        return 0.5 + 2.0 * (np.sin(turned) @ size), error
