"""E(S)_+ weights by a Fourier integral on a vertical line, with every error bounded.

For the positive measure nu = sum_m w_m Distribution(S_{m+1}) (see `blanket_counts`) and a centered
Gaussian V independent of everything, Jensen gives  E_nu(S)_+ <= E_nu(S + V)_+,  and

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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import ComplexArray, FloatArray
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution
from fl_shuffle.accounting.numerics.blanket_counts import TiltedCounts
from fl_shuffle.accounting.numerics.tilted_moments import TiltedMoments
from fl_shuffle.accounting.round_off import ROUND_DOWN, UNIT

FOURIER_SKIP_LEVEL = 1e-11
"""Nodes whose terms together stay below this share are bounded, not summed."""
FOURIER_BLOCK = 64
"""Nodes looked at together when those that matter are selected."""
FOURIER_TABLE = 64
"""Whole numbers are told apart by a table of at most this many entries for each, or else sorted."""
FOURIER_CELLS_AT_ONCE = 1 << 20
"""Atoms times nodes held in memory at a time (16 MiB of complex numbers)."""


@dataclass(frozen=True)
class TiltedDistribution:
    """The distribution of L after tilting by theta, and the moments the engine needs."""

    theta: float
    values: FloatArray
    weights: FloatArray
    moment: TiltedMoments
    """E[e^(theta L)]."""
    mean: float
    second: float
    rounding: float
    """sum_i p~_i (6 (J + 8) + |theta v_i|) |v_i|: round-off of the characteristic function."""
    _coarse: dict[tuple[float, int], ComplexArray] = field(default_factory=dict, repr=False)
    """Weighted e^(ikv) - 1 by (step, block): a sum asks for most blocks five times over."""

    @classmethod
    def of(cls, law: AtomicDistribution, theta: float) -> TiltedDistribution:
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
        """Return E_theta[e^(ikL)] - 1 at k = nodes * step.

        Its relative error is small even where it is tiny.

        A node is b + f, b a multiple of `FOURIER_BLOCK` and f the rest. With A, B = e^(ikv) - 1 at
        the frequencies of b and f, e^(ikv) - 1 = A B + A + B, so that one matrix product needs few
        sines. |A| <= k_b |v| and |B| <= min(2, k_f |v|): |A B| <= k |v|. The round-off of the three
        sums over J values is at most (2 sqrt(2) J + J + 8) UNIT sum p~ k |v|, less than `rounding`.
        """
        blocks, row = _distinct(nodes // FOURIER_BLOCK)
        rests, column = _distinct(nodes % FOURIER_BLOCK)
        fine = _turns(rests.astype(np.float64) * step, self.values)
        at_once = max(1, FOURIER_CELLS_AT_ONCE // self.values.size)
        found = np.empty((blocks.size, rests.size), dtype=np.complex128)
        for start in range(0, blocks.size, at_once):
            part = slice(start, start + at_once)
            weighted = self._weighted(blocks[part], step)
            found[part] = weighted @ fine.T + weighted.sum(axis=1)[:, None]
        found += fine @ self.weights
        result: ComplexArray = found[row, column]
        return result

    def _weighted(self, blocks: NDArray[np.int64], step: float) -> ComplexArray:
        """Return p~ (e^(ikv) - 1) at the first frequency of every block, [block, value].

        `significant_nodes` halves its blocks four times, and the sum follows: each asks for blocks
        that were there before. Rows are kept while they fit into `FOURIER_CELLS_AT_ONCE`, and come
        back bit for bit.
        """
        kept = self._coarse
        new = [block for block in blocks.tolist() if (step, block) not in kept]
        rows = np.array(new, dtype=np.float64) * (FOURIER_BLOCK * step)
        turned = _turns(rows, self.values) * self.weights
        if len(new) == blocks.size:
            weighted = turned
        else:
            fresh = dict(zip(new, turned, strict=True))
            weighted = np.empty((blocks.size, self.values.size), dtype=np.complex128)
            for place, block in enumerate(blocks.tolist()):
                weighted[place] = fresh[block] if block in fresh else kept[step, block]
        if (len(kept) + len(new)) * self.values.size <= FOURIER_CELLS_AT_ONCE:
            kept.update(((step, block), row) for block, row in zip(new, turned, strict=True))
        return weighted


def _distinct(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the distinct numbers in their order, and where each number is among them.

    None is negative.
    """
    most = int(numbers.max(initial=0))
    if most > FOURIER_TABLE * numbers.size:
        return np.unique(numbers, return_inverse=True)
    there = np.zeros(most + 1, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def _turns(k: FloatArray, values: FloatArray) -> ComplexArray:
    """Return e^(ik v) - 1 for every frequency and value, [k, v]."""
    half = np.multiply.outer(0.5 * k, values)
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
    law: TiltedDistribution,
    counts: TiltedCounts,
    *,
    deviation: float,
    period: float,
    smoothing_sd: float,
    cut: float,
) -> Sum:
    """Evaluate the Fourier integral for E[S_+] by the trapezoidal rule, as an upper bound.

    Parameters
    ----------
    law : TiltedDistribution
        Distribution of one term after tilting by theta > 0.
    counts : TiltedCounts
        Distribution of the number of terms (generating function H).
    deviation : float
        Standard deviation of the tilted sum: the Lipschitz constant of the decay.
    period : float
        Period T of the sum, in units of L. Longer periods alias less and need more nodes.
    smoothing_sd : float
        Standard deviation of the Gaussian V that is added to S.
    cut : float
        Nodes are summed up to k = cut / smoothing_sd.

    Returns
    -------
    Sum
        `value` and the bounds on its errors, relative to e^log_scale of `counts`.

    Notes
    -----
    Statement: see the module. V has mean zero, so smoothing raises the result (Jensen), and the
    trapezoidal rule adds nonnegative copies shifted by multiples of T (Poisson's formula). What
    is cut off and skipped is bounded: the caller adds it. Used for the expectation of
    docs/research/proofs, section 2.
    """
    theta = law.theta
    h = 2.0 * math.pi / period
    last = max(1, math.ceil(cut / (smoothing_sd * h)))
    nodes, first_skipped = significant_nodes(law, counts, deviation, h, last)
    k = nodes.astype(np.float64) * h
    y = law.characteristic(nodes, h)
    transform = counts.evaluate(y)
    variance = smoothing_sd * smoothing_sd
    smooth = np.exp(-0.5 * variance * k * k + 1j * (variance * theta) * k)
    # The integrand at -k is the conjugate of that at k: other nodes count twice, with their real
    # part.
    multiplicity = np.where(nodes == 0, 1.0, 2.0)
    smooth *= multiplicity
    terms = transform.values * smooth
    modulus = transform.magnitude * np.abs(smooth)
    s = theta + 1j * k
    # e^(v s^2/2) = e^(v theta^2/2) times `smooth`.
    scale = math.exp(0.5 * variance * theta * theta) * h / (2.0 * math.pi)
    kernel = 1.0 / (s * s)
    value = scale * float(np.sum((terms * kernel).real))
    # E(x + V)_+ - x_+ <= sqrt(v) phi(x/sqrt(v)), whose transform is v e^(v s^2/2): the same sum
    # without 1/s^2 bounds what V adds.
    bump = scale * variance * float(np.sum(terms.real))
    size = modulus * np.abs(kernel)
    # The error of y is at most `UNIT` times `rounding` times k, and moves the logarithm of the
    # product by `sensitivity` times that.
    drift = UNIT * law.rounding * k * counts.sensitivity(y)
    roundoff = scale * float(np.sum(size * (drift + 40.0 * UNIT)))
    bump_roundoff = scale * variance * float(np.sum(modulus * (drift + 40.0 * UNIT)))
    end = last * h
    # The integral of e^(-v k^2/2) beyond `end` is at most this, and with 1/k^2 at most this over
    # end^2.
    gauss = math.exp(-0.5 * (smoothing_sd * end) ** 2) / (variance * end)
    front = math.exp(0.5 * variance * theta * theta) / math.pi
    gauss *= counts.total
    tail = front * gauss / (end * end)
    skipped = bump_skipped = 0.0
    if first_skipped is not None:
        start = first_skipped * h
        level = front * FOURIER_SKIP_LEVEL
        # h sum of 1/k^2 over k >= start is at most 1/start + h/start^2.
        skipped = level * (1.0 / start + h / start**2)
        # v times the integral of e^(-v k^2/2) over k > 0 is sqrt(v) sqrt(pi/2), and sqrt(pi/2) <
        # 1.2534.
        bump_skipped = level * smoothing_sd * 1.2534
    return Sum(
        value=value,
        smoothing=max(bump, 0.0) + bump_roundoff + variance * front * gauss + bump_skipped,
        excess=counts.excess * max(value, 0.0),
        cut=tail,
        skipped=skipped,
        roundoff=roundoff,
    )


def significant_nodes(
    law: TiltedDistribution,
    counts: TiltedCounts,
    deviation: float,
    h: float,
    last: int,
) -> tuple[NDArray[np.int64], int | None]:
    """Return which nodes 0..last must be evaluated; the smallest skipped node, if any.

    A block is skipped when the decay at its center, less `deviation` times its half-width, still
    certifies |transform| <= `FOURIER_SKIP_LEVEL`.
    """
    # |transform| <= e^(-R^2/2), which is below the level from this R on.
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
