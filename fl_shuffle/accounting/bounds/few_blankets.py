"""The positive part of every number of draws at once: what few blanket reports are worth.

    v_m >= E(L_1 + ... + L_{m+1})_+ / (m + 1),    m = 0 .. most,

for one amplification law. A batch enters through the law of its number of blanket reports alone, so
one table serves every batch that a client may meet, whatever the others' balls and numbers are.

L is rounded in convex order to a lattice, tilted, and its sums are taken by Fourier transforms.
Every error raises the result: the rounding, what wraps around from below, Markov's bound for what
lies above the window, and a bound on the transforms' round-off at every lattice point.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fl_shuffle.accounting.engine.convex_rounding import atoms_on
from fl_shuffle.accounting.engine.saddle_points import tilt_at_saddle_point
from fl_shuffle.accounting.engine.tilted_moments import UNIT, TiltedMoments
from fl_shuffle.accounting.laws.amplification import AmplificationLaw, AtomicLaw, FloatArray
from fl_shuffle.accounting.laws.continuous import LaplaceLaw
from fl_shuffle.accounting.laws.gaussian import GaussianLaw
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import PrecisionError


@lru_cache(maxsize=1 << 14)
def blanket_values(
    noise: str, own: float, epsilon: float, tail: float, most: int, relative_error: float
) -> FloatArray:
    """v_0 .. v_most (read-only) for the opposite pair of `noise` at distance `own` noise widths.

    `tail` is where a Gaussian law is cut. Upper bounds, nonincreasing; the excess is about
    `relative_error`. Raises `PrecisionError` where the lattice would be too long.
    """
    law: AmplificationLaw = (
        LaplaceLaw(own, epsilon) if noise == "laplace" else GaussianLaw(own, epsilon, tail=tail)
    )
    values = positive_parts(law, most, relative_error)
    values.setflags(write=False)
    return values


def positive_parts(law: AmplificationLaw, most: int, relative_error: float) -> FloatArray:
    """v_0 .. v_most for any law; see `blanket_values`."""
    local = float(law.stop_loss(np.zeros(1))[0]) * (1.0 + 16.0 * UNIT)
    result = np.full(most + 1, local)
    if law.upper <= 0.0 or local <= 0.0 or most == 0:
        return result
    rough, _ = atoms_on(
        law, np.unique(np.linspace(law.lower, law.upper, TOLERANCES.few_blankets_first_nodes))
    )
    theta = tilt_at_saddle_point(rough, [(1.0, most)])
    spread = _tilted_sd(rough, theta)
    depth = max(1.0, theta * spread * math.sqrt(most + 1.0))
    step = spread * math.sqrt(6.0 * relative_error) / depth
    low, high = math.floor(law.lower / step), math.ceil(law.upper / step)
    if high - low > TOLERANCES.few_blankets_max_lattice:
        raise PrecisionError("the amplification variable is too long for a lattice")
    atoms, top = atoms_on(law, step * np.arange(low, high + 1, dtype=np.float64))
    index = np.rint(atoms.values / step).astype(np.int64)
    shift = max(0.0, float(np.max(atoms.values - index * step))) * TOLERANCES.few_blankets_safety
    on_lattice = AtomicLaw(index.astype(np.float64) * step, atoms.probabilities)
    spread = _tilted_sd(on_lattice, theta)
    reach = TOLERANCES.few_blankets_window_sds * spread * math.sqrt(most + 1.0)
    size = 1 << max(9, math.ceil(math.log2(2.0 * reach / step)))
    if size > TOLERANCES.few_blankets_max_lattice:
        raise PrecisionError("the sum of the amplification variables is too long for a lattice")
    moment = TiltedMoments.of(on_lattice, theta)
    tilted = on_lattice.probabilities * np.exp(theta * on_lattice.values) / moment.value
    transform = np.fft.rfft(np.bincount(np.mod(index, size), tilted, minlength=size))
    sums = step * np.arange(size // 2, dtype=np.float64)
    thinner = np.exp(-theta * sums)
    # sum_k w_k P(S = k) = (1/size) sum over frequencies, of the law's and the weights' transforms.
    weights = np.fft.rfft(np.stack([sums * thinner, thinner]), n=size).conj() / size
    weights[:, 1:-1] *= 2.0
    size_of_weights = np.sum(np.abs(weights), axis=1)
    edge = step * (size // 2)
    rates = [theta + more / reach for more in (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)]
    above = [
        (rate, TiltedMoments.of(on_lattice, rate).log)
        for rate in rates
        if rate * on_lattice.values[-1] < 600.0 and rate * edge >= 1.0
    ]
    power = transform
    transform_error = 8.0 * UNIT * math.log2(size)
    for m in range(1, most + 1):
        draws = m + 1.0
        if draws * shift >= step:
            break
        power = power * transform
        if m & (m - 1) == 0:
            loud = np.abs(power) > TOLERANCES.few_blankets_quiet
            power, transform, weights = power[loud], transform[loud], weights[:, loud]
        parts = (weights @ power).real
        parts += (
            (draws + 1.0) * transform_error + UNIT * size + TOLERANCES.few_blankets_quiet
        ) * size_of_weights
        # Markov: E[S; S > edge] <= edge e^(-rate edge) E e^(rate S) for rates >= 1 / edge.
        beyond = min((draws * log - rate * edge for rate, log in above), default=math.inf)
        total = math.exp(min(draws * moment.log, 600.0)) * float(
            parts[0] + draws * shift * parts[1]
        )
        total += 2.0 * edge * math.exp(min(beyond, 600.0))
        result[m] = min(local, total * TOLERANCES.few_blankets_safety / draws + top)
    # Averages of exchangeable variables: the true values do not grow with m.
    return np.minimum.accumulate(result)


def _tilted_sd(law: AtomicLaw, theta: float) -> float:
    weights = law.probabilities * np.exp(theta * law.values)
    total = float(np.sum(weights))
    if not 0.0 < total < math.inf:
        raise PrecisionError("the tilted amplification variable is beyond double precision")
    weights /= total
    mean = float(weights @ law.values)
    return math.sqrt(max(float(weights @ (law.values - mean) ** 2), 1e-300))
