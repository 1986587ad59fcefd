"""E(S)_+ weights by a Fourier integral on a vertical line, with every error bounded.

For the positive measure nu = sum_m w_m Law(S_{m+1}) (see `blanket_counts`) and a centred Gaussian V
independent of everything, Jensen gives  E_nu(S)_+ <= E_nu(S + V)_+,  and

    E_nu(S + V)_+ = (1/2 pi) int H(M(s)) e^(v s^2 / 2) / s^2 dk,    s = theta + ik,  v = Var V.

The integral is summed by the trapezoidal rule with step h. By Poisson's formula that adds, and
never removes, the copies of the integrand shifted by multiples of T = 2 pi / h. V makes the
integrand vanish rapidly, so the sum is short: its length does not depend on n.

Errors, all added to the result: the part of the sum that is cut off, the blocks of frequencies that
are skipped because the characteristic function is certified to be negligible there, and round-off.
The effect of V is bounded by the same sum with weight v e^(v s^2 / 2), because
E(x + V)_+ - x_+ <= sqrt(v) phi(x / sqrt(v)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.engine.blanket_counts import ComplexArray, TiltedCounts
from fl_shuffle.accounting.engine.tilted_moments import TiltedMoments
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.round_off import ROUND_DOWN, UNIT

FOURIER_SKIP_LEVEL = 1e-11
"""Nodes whose terms together stay below this share are bounded, not summed."""
FOURIER_BLOCK = 64
"""Nodes looked at together when those that matter are selected."""
FOURIER_CELLS_AT_ONCE = 1 << 20
"""Atoms times nodes held in memory at a time (16 MiB of complex numbers)."""


@dataclass(frozen=True)
class TiltedLaw:
    """The law of L after tilting by theta, and the moments the engine needs."""

    theta: float
    values: FloatArray
    weights: FloatArray
    moment: TiltedMoments
    """E[e^(theta L)]."""
    mean: float
    second: float
    rounding: float
    """sum_i p~_i (6 (J + 8) + |theta v_i|) |v_i|: round-off of the characteristic function."""

    @classmethod
    def of(cls, law: AtomicLaw, theta: float) -> TiltedLaw:
        """Tilt `law` by `theta`."""
        exponent = theta * law.values
        moment = TiltedMoments.of(law, theta)
        weights = law.probabilities * np.exp(exponent) / moment.value
        spread = 6.0 * (law.values.size + 8.0) + np.abs(exponent)
        return cls(
            theta=theta,
            values=law.values,
            weights=weights,
            moment=moment,
            mean=float(weights @ law.values),
            # Of e^400 and more the square alone would overflow.
            second=float((weights * law.values) @ law.values),
            rounding=float(weights @ (spread * np.abs(law.values))),
        )

    def characteristic(self, nodes: NDArray[np.int64], step: float) -> ComplexArray:
        """E_theta[e^(ikL)] - 1 at k = nodes * step, with small relative error even where tiny."""
        at_once = max(1, FOURIER_CELLS_AT_ONCE // self.values.size)
        found = np.empty(nodes.size, dtype=np.complex128)
        for start in range(0, nodes.size, at_once):
            part = slice(start, start + at_once)
            found[part] = self._turns(nodes[part].astype(np.float64) * step) @ self.weights
        return found

    def _turns(self, k: FloatArray) -> ComplexArray:
        """e^(ik v) - 1 for every frequency and value, [k, v]."""
        half = np.multiply.outer(0.5 * k, self.values)
        sine = np.sin(half)
        turned = np.empty(half.shape, dtype=np.complex128)
        np.multiply(sine, sine, out=turned.real)
        turned.real *= -2.0
        np.cos(half, out=half)
        np.multiply(sine, half, out=turned.imag)
        turned.imag *= 2.0
        return turned


@dataclass(frozen=True)
class Sum:
    """Value of the trapezoidal sum relative to e^log_scale, with the bounds that go with it."""

    value: float
    smoothing: float
    excess: float
    """How much of `value` may come from weights above the true ones."""
    cut: float
    skipped: float
    roundoff: float


def trapezoid(
    law: TiltedLaw,
    counts: TiltedCounts,
    *,
    deviation: float,
    period: float,
    smoothing_sd: float,
    cut: float,
) -> Sum:
    """Sum the integral with V of standard deviation `smoothing_sd`, out to k = cut / smoothing_sd.

    `deviation` is the standard deviation of the tilted sum: the Lipschitz constant of the decay.
    """
    theta = law.theta
    h = 2.0 * math.pi / period
    last = max(1, math.ceil(cut / (smoothing_sd * h)))
    nodes, first_skipped = loud_nodes(law, counts, deviation, h, last)
    k = nodes.astype(np.float64) * h
    y = law.characteristic(nodes, h)
    transform = counts.evaluate(y)
    variance = smoothing_sd * smoothing_sd
    smooth = np.exp(-0.5 * variance * k * k + 1j * (variance * theta) * k)
    multiplicity = np.where(nodes == 0, 1.0, 2.0)
    smooth *= multiplicity
    terms = transform.values * smooth
    modulus = transform.magnitude * np.abs(smooth)
    s = theta + 1j * k
    scale = math.exp(0.5 * variance * theta * theta) * h / (2.0 * math.pi)
    kernel = 1.0 / (s * s)
    value = scale * float(np.sum((terms * kernel).real))
    bump = scale * variance * float(np.sum(terms.real))
    size = modulus * np.abs(kernel)
    drift = UNIT * law.rounding * k * counts.sensitivity(y)
    roundoff = scale * float(np.sum(size * (drift + 40.0 * UNIT)))
    bump_roundoff = scale * variance * float(np.sum(modulus * (drift + 40.0 * UNIT)))
    end = last * h
    gauss = math.exp(-0.5 * (smoothing_sd * end) ** 2) / (variance * end)
    front = math.exp(0.5 * variance * theta * theta) / math.pi
    gauss *= counts.total
    tail = front * gauss / (end * end)
    skipped = bump_skipped = 0.0
    if first_skipped is not None:
        start = first_skipped * h
        level = front * FOURIER_SKIP_LEVEL
        skipped = level * (1.0 / start + h / start**2)
        bump_skipped = level * smoothing_sd * 1.2534
    return Sum(
        value=value,
        smoothing=max(bump, 0.0) + bump_roundoff + variance * front * gauss + bump_skipped,
        excess=counts.excess * max(value, 0.0),
        cut=tail,
        skipped=skipped,
        roundoff=roundoff,
    )


def loud_nodes(
    law: TiltedLaw,
    counts: TiltedCounts,
    deviation: float,
    h: float,
    last: int,
) -> tuple[NDArray[np.int64], int | None]:
    """Which nodes 0..last must be evaluated; the smallest skipped node, if any.

    A block is skipped when the decay at its centre, less `deviation` times its half-width, still
    certifies |transform| <= `FOURIER_SKIP_LEVEL`.
    """
    need = math.sqrt(-2.0 * math.log(FOURIER_SKIP_LEVEL))
    first_skipped: int | None = None
    starts = np.arange(0, last + 1, FOURIER_BLOCK, dtype=np.int64)
    size = FOURIER_BLOCK
    while size > 4 and starts.size:
        centres = starts + size // 2
        decay = counts.decay(law.characteristic(centres, h))
        quiet = decay * ROUND_DOWN - deviation * (size // 2) * h >= need
        if np.any(quiet):
            smallest = int(starts[quiet][0])
            first_skipped = smallest if first_skipped is None else min(first_skipped, smallest)
        loud = starts[~quiet]
        size //= 2
        starts = np.concatenate([loud, loud + size])
        starts = starts[starts <= last]
    nodes = np.sort(np.add.outer(starts, np.arange(size)).ravel())
    return nodes[nodes <= last], first_skipped
