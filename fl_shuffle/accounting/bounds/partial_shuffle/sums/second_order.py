"""E(q + S)_+^2 for a sum S of N independent copies of an atomic law: certified Fourier sums.

For a centred Gaussian V of variance v independent of everything, Jensen gives
E(q + S)_+^2 <= E(q + S + V)_+^2, and for every theta > 0, with s = theta + ik,

    E(q + S + V)_+^2 = (1/2 pi) int e^(sq) M(s)^N e^(v s^2/2) 2/s^3 dk,    M(s) = E e^(sL),

because (x)_+^2 is the inverse transform of 2/s^3 on that line. The trapezoidal rule with step h
returns, by Poisson's formula, the sum over all integers j of e^(-j theta T) E(q + S + V +
jT)_+^2 with T = 2 pi/h: every copy is nonnegative, so *aliasing only raises* the value and needs
no bound. What is added:

* the sum beyond k = K: at most (2/pi) e^(v theta^2/2) e^(-v K^2/2) / (v K^4), relative to
  e^(theta q) M(theta)^N, as |M(s)| <= M(theta) and the terms decrease;
* skipped blocks of frequencies, where |M(s)/M(theta)|^N <= a level is certified: at most the level
  times (2/pi) e^(v theta^2/2) (1/(2 k0^2) + h/k0^3), k0 the first of them;
* round-off: per node the modulus times (error of log M(s)^N + error of the phase kq + 40 units +
  one unit for every node); and the error of N log M(theta), a factor.

V costs at most v P(...) <= v, and about v theta^2 / 2 relative. No step depends on N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.engine.blanket_counts import (
    BinomialCounts,
    ComplexArray,
    complex_log1p,
)
from fl_shuffle.accounting.engine.fourier import TiltedLaw, loud_nodes
from fl_shuffle.accounting.engine.tilted_moments import UNIT, TiltedMoments
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES


@dataclass(frozen=True)
class SquaredExcess:
    """Upper bounds `values` e^`log_scale` on E(q + S)_+^2, one for each q."""

    log_scale: float
    values: FloatArray


@dataclass(frozen=True)
class _Line:
    """The nodes of the trapezoidal sum on Re s = theta, whose terms are relative to e^`log_mass`.

    `y`: E e^(ikL) - 1 after tilting; `drift`: bounds on the terms' relative errors; `multiplicity`:
    two but at k = 0; `scale`: what the sum is times; `added`: what is left out; `error`: relative
    error of e^log_mass.
    """

    log_mass: float
    k: FloatArray
    y: ComplexArray
    multiplicity: FloatArray
    drift: FloatArray
    smoothing_variance: float
    scale: float
    added: float
    error: float


def squared_excess_of_sum(
    law: AtomicLaw,
    count: int,
    theta: float,
    offsets: FloatArray,
    smoothing: float = TOLERANCES.second_order_smoothing,
) -> SquaredExcess | None:
    """Bounds on E(q + S)_+^2, S the sum of `count` copies, at every q of `offsets` (>= 0).

    Any theta > 0 is valid; the saddle point is best. `smoothing`: the deviation of V in units of
    1/theta. None where too many nodes would be needed.
    """
    most = float(np.max(offsets))
    period = period_of(law, count, theta, most)
    ends = TOLERANCES.second_order_cut, TOLERANCES.fourier_skip_level
    line = _line(law, count, theta, period, smoothing, ends)
    if line is None:
        return None
    k, v = line.k, line.smoothing_variance
    logarithm = complex_log1p(line.y)
    modulus = line.multiplicity * np.exp(count * logarithm.real - 0.5 * v * k * k)
    s = theta + 1j * k
    terms = modulus * np.exp(1j * (count * logarithm.imag + v * theta * k)) * (2.0 / (s * s * s))
    size = np.abs(terms)
    phase = np.multiply.outer(offsets, k)
    value = line.scale * (np.cos(phase) @ terms.real - np.sin(phase) @ terms.imag)
    roundoff = line.scale * (float(size @ line.drift) + 2.0 * UNIT * offsets * float(size @ k))
    error = line.error + 16.0 * UNIT * (1.0 + theta * most)
    grown = np.exp(theta * offsets) * (value + roundoff + line.added) * (1.0 + 2.0 * error)
    return SquaredExcess(line.log_mass, np.maximum(grown, 0.0))


def log_excess_by_moduli(
    law: AtomicLaw, count: int, theta: float, period: float, known: float = -math.inf
) -> float:
    """log of a bound on E(S)_+ by moduli alone: the largest of several laws holds for mixed sums.

    With D(L) = (h/2 pi) sum |M_L(s)|^N |e^(v s^2/2)| 2/|s|^3 over one line and step, Hoelder's
    inequality for sums gives, for N_i terms of the law L_i and sum N_i = N,

        E(S)_+ <= E(q + S)_+^2/(4q) <= e^(theta q)/(4q) prod D(L_i)^(N_i/N) <= ... max D(L_i);

    q = 1/theta is best. `period` must be the same for all. Infinite with too many nodes. What
    |M_L(s)| <= M_L(theta) alone shows not to exceed `known` is not summed, and `known` returned:
    without M the sum is at most h/(pi theta^3) + (1/pi) int (theta^2 + k^2)^(-3/2) dk = the former
    + 2/(pi theta^2).
    """
    moment = TiltedMoments.of(law, theta)
    smoothed = 0.5 * TOLERANCES.moduli_smoothing**2
    crude = (2.0 / (period * theta) + 2.0 / math.pi) / theta**2
    log_mass = count * moment.log + smoothed + math.log(crude) + 1.0 + math.log(0.25 * theta)
    error = moment.log_total_error([(1.0, count - 1)])
    if log_mass + 2.0 * error + TOLERANCES.cells_round_off * (1.0 + abs(log_mass)) <= known:
        return known
    ends = TOLERANCES.moduli_cut, TOLERANCES.moduli_skip_level
    line = _line(law, count, theta, period, TOLERANCES.moduli_smoothing, ends)
    if line is None:
        return math.inf
    square, y = line.k * line.k, line.y
    # |1 + y|^2 - 1, without cancellation.
    rise = 2.0 * y.real + y.real * y.real + y.imag * y.imag
    with np.errstate(divide="ignore"):
        log_size = 0.5 * count * np.log1p(np.maximum(rise, -1.0))
    log_size -= 0.5 * line.smoothing_variance * square
    size = 2.0 * line.multiplicity * np.exp(log_size) * (theta * theta + square) ** -1.5
    whole = line.scale * float(size @ (1.0 + line.drift)) + line.added
    error = line.error + TOLERANCES.second_order_log_units * UNIT
    return line.log_mass + math.log(whole) + 1.0 + math.log(0.25 * theta) + 2.0 * error


def _line(
    law: AtomicLaw,
    count: int,
    theta: float,
    period: float,
    smoothing: float,
    ends: tuple[float, float],
) -> _Line | None:
    """`ends`: the last frequency, in deviations of the smoothing, and the level for skipping."""
    cut, level = ends
    tilted = TiltedLaw.of(law, theta)
    counts = BinomialCounts(1.0, count - 1, tilted.moment)
    log_mass = counts.log_scale + math.log(count)
    deviation = _deviation(tilted, count)
    h = 2.0 * math.pi / period
    smoothing_sd = smoothing / theta
    last = max(1, math.ceil(cut / (smoothing_sd * h)))
    if last > TOLERANCES.second_order_max_nodes:
        return None
    if last < TOLERANCES.second_order_few_nodes:
        # All of them cost less than finding out which matter.
        nodes, first_skipped = np.arange(last + 1), None
        y, rounding = tilted.first_frequencies(last, h)
    else:
        nodes, first_skipped = loud_nodes(tilted, counts, deviation, h, last, level)
        y, rounding = tilted.characteristic(nodes, h), tilted.rounding
    k = nodes.astype(np.float64) * h
    v = smoothing_sd * smoothing_sd
    front = math.exp(0.5 * v * theta * theta)
    end = last * h
    added = front * 2.0 / math.pi * math.exp(-0.5 * v * end * end) / (v * end**4)
    if first_skipped is not None:
        start = first_skipped * h
        added += front * level * 2.0 / math.pi * (0.5 / start**2 + h / start**3)
    return _Line(
        log_mass,
        k,
        y,
        np.where(nodes == 0, 1.0, 2.0),
        UNIT * rounding * k * counts.sensitivity(y)
        + (TOLERANCES.second_order_node_units + nodes.size) * UNIT,
        v,
        front * h / (2.0 * math.pi),
        added,
        tilted.moment.log_total_error([(1.0, count - 1)]) + 8.0 * UNIT * abs(log_mass),
    )


def _deviation(tilted: TiltedLaw, count: int) -> float:
    return math.sqrt(count * max(tilted.second - tilted.mean**2, 0.0)) * (
        1.0 + TOLERANCES.partial_shuffle_round_off
    )


def period_of(law: AtomicLaw, count: int, theta: float, offset: float) -> float:
    """A period whose copies are small. It decides the tightness alone: copies only raise."""
    tilted = TiltedLaw.of(law, theta)
    deviation = _deviation(tilted, count)
    log_mass = BinomialCounts(1.0, count - 1, tilted.moment).log_scale + math.log(count)
    log_value = (
        log_mass + theta * offset - math.log(math.sqrt(2.0 * math.pi) * max(deviation, 1.0 / theta))
    )
    goal = math.log(TOLERANCES.second_order_copies) + log_value + math.log(2.0 / theta**3)
    mean = count * abs(law.mean)
    below, tiny = 4.0 / theta, TOLERANCES.partial_shuffle_tiny
    for _ in range(8):
        far = max(max(below + offset - mean, 0.0) ** 2 + deviation**2, tiny)
        below = max(4.0, math.log(far) - goal) / theta
    above = math.inf
    steps = np.array(TOLERANCES.second_order_period_steps)
    rates = theta + steps / max(deviation, TOLERANCES.second_order_least_deviation / theta)
    rates = rates[rates * law.values[-1] <= TOLERANCES.partial_shuffle_max_exponent]
    if rates.size:
        moments = np.exp(np.multiply.outer(rates, law.values)) @ law.probabilities
        log_far = count * np.log(moments) + rates * offset + math.log(2.0) - 2.0 * np.log(rates)
        above = float(np.min((log_far - goal) / (rates - theta)))
    if not math.isfinite(above):
        near, sds = TOLERANCES.second_order_far_period
        above = near / theta + sds * deviation
    return max(below, above, 4.0 / theta)
