"""One law L' that dominates every L_k = (P - aQ)/R_k in third order: E(L_k - t)_+^2 <= E(L' - t)_+^2.

Client unit: all means lie in one ball, any two at most mu noise widths apart, X = e^(mu W - mu^2/2),
V = Var X, psi(s) = E(X - s)_+^2. For every triple and every t, E(L_k - t)_+^2 is at most both

    B1(t) = psi(a + t) for t >= 0,
            psi(a) + 2 (1-a) |t| + t^2 + a^2 [psi(1/a) - psi((1+|t|)/a)] for t < 0   (convex order),
    B2(t) = a^2 V + (1 - a - t)^2                                                  (variance lemma).

L' is 1 - a + a kappa (X - 1) with all of {X < x1} collapsed to its conditional mean; kappa >= 1, and
y1 = 1 - a + a kappa (x1 - 1) <= 0. The certificate:

* t >= 0: a kappa (X - 1) + 1 - a >= X - a wherever X >= 1, so E(L' - t)_+^2 >= psi(a + t).
* t <= the collapsed atom: E(L' - t)_+^2 = Var L' + (1 - a - t)^2 >= B2(t) iff Var L' >= a^2 V.
* in between: on each cell of a partition the convex E(L' - t)_+^2 lies above its tangent at the right
  end and B1, B2 below their chords; one of the two differences is nonnegative at both ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.partial_shuffle import lognormal
from fl_shuffle.accounting.partial_shuffle.lognormal import ACCURACY
from fl_shuffle.accounting.privacy_loss import FloatArray

CELLS = 100
SLACK = 4.0 * ACCURACY
MAX_KAPPA = 1.6
KAPPA_STEP = 1e-3
COLLAPSES = (-1.0, -0.5, -0.25, -0.1, 0.0, 0.1, 0.2, 0.35, 0.5)
TRIED = 2
"""Candidates for ln(x1)/mu."""


@dataclass(frozen=True)
class CollapsedLaw:
    """L' cut at K: what lies above sits at K + root mean square of (L' - K), given L' > K.

    An `AmplificationLaw`; it dominates min(L_k, K). The caller adds E(L_k - K)_+.
    """

    mu: float
    epsilon: float
    kappa: float
    x1: float
    cut: float

    def __post_init__(self) -> None:
        one = np.array([self.x1])
        kept = float(lognormal.tail(one, self.mu)[0])
        mean_kept = float(lognormal.excess(one, self.mu)[0]) + self.x1 * kept
        collapsed = (1.0 - mean_kept) / (1.0 - kept)
        s = np.array([self._ratio(self.cut)])
        top = float(lognormal.tail(s, self.mu)[0])
        scale = self._scale
        square = scale**2 * float(lognormal.squared_excess(s, self.mu)[0]) * (1.0 + SLACK)
        jump = math.sqrt(square / top) if top > 0.0 else 0.0
        lifted = top * jump - scale * float(lognormal.excess(s, self.mu)[0])
        for name, value in (
            ("_kept", kept),
            ("_floor", self.mean + scale * (collapsed - 1.0)),
            ("_top", top * (1.0 + 1e-12)),
            ("_jump", jump),
            ("_lifted", max(lifted, 0.0)),
        ):
            object.__setattr__(self, name, value)

    _kept: float = 0.0
    _floor: float = 0.0
    _top: float = 0.0
    _jump: float = 0.0
    _lifted: float = 0.0

    @property
    def _scale(self) -> float:
        return math.exp(self.epsilon) * self.kappa

    def _ratio(self, t: float) -> float:
        return 1.0 + (t - self.mean) / self._scale

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    @property
    def lower(self) -> float:
        return self._floor

    @property
    def upper(self) -> float:
        return self.cut + self._jump

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """E(L' - t)_+ of the cut law."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        s = 1.0 + (t - self.mean) / self._scale
        x1 = self.x1
        body = self._scale * lognormal.excess(np.maximum(s, x1), self.mu)
        body = np.where(s < x1, body + self._scale * (x1 - s) * self._kept, body) + self._lifted
        body = np.where(t < self._floor, self.mean - t + self._lifted, body)
        result: FloatArray = np.where(
            t < self.cut, body, self._top * np.maximum(self.upper - t, 0.0)
        )
        return result


def upper_curves(t: FloatArray, epsilon: float, mu: float) -> tuple[FloatArray, FloatArray]:
    """(B1, B2) at t <= 0, rounded up."""
    a, drift = math.exp(epsilon), math.expm1(epsilon)
    depth = np.maximum(-t, 0.0)
    squared = lognormal.squared_excess(np.array([a, 1.0 / a]), mu)
    steps = squared[1] - lognormal.squared_excess((1.0 + depth) / a, mu)
    first = squared[0] - 2.0 * drift * depth + depth**2 + a * a * np.maximum(steps, 0.0)
    first = np.where(t > 0.0, lognormal.squared_excess(a + np.maximum(t, 0.0), mu), first)
    variance = a * a * lognormal.variance(mu)
    # Absolute: the parts of B1 are at most the variance and depth^2 in size.
    error = SLACK * (squared[0] + squared[1])
    return first + error, (variance + (drift + t) ** 2) * (1.0 + SLACK)


def squared_transform(
    t: FloatArray, epsilon: float, mu: float, kappa: float, x1: float
) -> tuple[FloatArray, FloatArray]:
    """E(L' - t)_+^2 (rounded down) and its derivative for t not below the collapsed atom."""
    a, drift = math.exp(epsilon), math.expm1(epsilon)
    scale = a * kappa
    s = 1.0 + (t + drift) / scale
    one = np.array([x1])
    kept = float(lognormal.tail(one, mu)[0])
    first = float(lognormal.excess(one, mu)[0])
    second = float(lognormal.squared_excess(one, mu)[0])
    gap = np.maximum(x1 - s, 0.0)
    inner = np.maximum(s, x1)
    square = np.where(
        gap > 0.0, second + gap * (2.0 * first + gap * kept), lognormal.squared_excess(inner, mu)
    )
    slope = np.where(gap > 0.0, first + gap * kept, lognormal.excess(inner, mu))
    return scale * scale * square * (1.0 - SLACK), -2.0 * scale * slope


def certified(epsilon: float, mu: float, kappa: float, x1: float) -> bool:
    """Whether the law with these parameters is certified to dominate in third order."""
    a, drift = math.exp(epsilon), math.expm1(epsilon)
    scale = a * kappa
    if not kappa >= 1.0:
        return False
    collapsed, lost = _collapse(mu, x1)
    whole = lognormal.variance(mu)
    if kappa * kappa * (whole - lost - SLACK * whole) < whole:
        return False
    floor = -drift + scale * (collapsed - 1.0)
    nodes = np.linspace(floor - SLACK, max(0.0, scale * (x1 - 1.0) - drift), CELLS + 1)
    value, slope = squared_transform(nodes[1:], epsilon, mu, kappa, x1)
    width = np.diff(nodes)
    at_left = value - slope * width * (1.0 - SLACK)
    good = np.zeros(CELLS, dtype=bool)
    for curve in upper_curves(nodes, epsilon, mu):
        good |= (at_left >= curve[:-1]) & (value >= curve[1:])
    return bool(np.all(good))


def choose_law(epsilon: float, mu: float, cut: float) -> CollapsedLaw | None:
    """A certified law with a small spread; None where none is found.

    A higher collapse point needs a larger kappa but leaves less skewness. Candidates are ranked with
    the kappa that the variance needs; the best few are certified and compared again.
    """
    ranked = []
    for collapse in COLLAPSES:
        x1 = math.exp(mu * collapse)
        needed = _variance_kappa(mu, x1)
        if needed < MAX_KAPPA:
            ranked.append((_spread_score(epsilon, mu, needed, x1), needed, x1))
    best: tuple[float, CollapsedLaw] | None = None
    for score, needed, x1 in sorted(ranked)[:TRIED]:
        if best is not None and score >= best[0]:
            break
        kappa = _least_kappa(epsilon, mu, x1, needed)
        if kappa is None:
            continue
        score = _spread_score(epsilon, mu, kappa, x1)
        if best is None or score < best[0]:
            best = score, CollapsedLaw(mu, epsilon, kappa, x1, cut)
    return None if best is None else best[1]


def _least_kappa(epsilon: float, mu: float, x1: float, needed: float) -> float | None:
    """A certified kappa, not below `needed` and at most `KAPPA_STEP` above one that is not."""
    low = high = needed
    step = KAPPA_STEP
    while not certified(epsilon, mu, high, x1):
        low, high = high, high + step
        step *= 3.0
        if high > MAX_KAPPA:
            return None
    while high - low > KAPPA_STEP:
        middle = 0.5 * (low + high)
        if certified(epsilon, mu, middle, x1):
            high = middle
        else:
            low = middle
    return high


def _variance_kappa(mu: float, x1: float) -> float:
    """The kappa with Var L' = a^2 V (1 + a little)."""
    lost = _collapse(mu, x1)[1]
    whole = lognormal.variance(mu)
    return math.sqrt(whole / (whole - lost - 2.0 * SLACK * whole)) * (1.0 + 1e-12)


def _collapse(mu: float, x1: float) -> tuple[float, float]:
    """E[X | X < x1], and the variance that collapsing takes away, rounded up."""
    one = np.array([x1])
    kept = float(lognormal.tail(one, mu)[0])
    first = float(lognormal.excess(one, mu)[0])
    collapsed = (1.0 - first - x1 * kept) / (1.0 - kept)
    # E[(X - m)^2; X < x1] = E(x1 - X)_+^2 - P(X < x1) (x1 - m)^2.
    lost = float(lognormal.squared_deficit(one, mu)[0]) - (1.0 - kept) * (x1 - collapsed) ** 2
    return collapsed, max(lost, 0.0)


def _spread_score(epsilon: float, mu: float, kappa: float, x1: float) -> float:
    """E e^(rate (L' - mean)) - 1 at the rate that matters, about; only used to compare."""
    rate = math.expm1(epsilon) / lognormal.variance(mu)
    scale = math.exp(epsilon) * kappa * min(rate, 30.0 / math.exp(7.0 * mu))
    w = np.linspace(-8.0, 8.0, 161)
    weights = np.exp(-0.5 * w * w) * (w[1] - w[0]) / math.sqrt(2.0 * math.pi)
    ratio = np.exp(mu * w - 0.5 * mu * mu)
    collapsed, _ = _collapse(mu, x1)
    exponent = scale * (np.where(ratio < x1, collapsed, ratio) - 1.0)
    return float(weights @ (np.expm1(exponent) - exponent)) / (rate * rate)
