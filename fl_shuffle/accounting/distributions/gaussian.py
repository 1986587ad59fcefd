"""The amplification variable of vector Gaussian noise: lognormal against lognormal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.gaussian_mechanism import mills_drop

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class GaussianLaw:
    """L for two means at distance s on opposite sides of the blanket's center, c = s / sigma.

    L = e^(cW - c^2/2) - e^(eps - cW - c^2/2) with W ~ N(0, 1), blanket N(0, sigma^2 I): increasing
    in W, so its stop-loss is an integral over a half-line. L has no top: `upper` is where what is
    left, E(L - upper)_+, is below `tail`; the engine adds it. `lower` is that far out below, and
    mass beneath it is moved up.
    """

    c: float
    epsilon: float
    tail: float = 1e-20

    def _value(self, w: float) -> float:
        half = 0.5 * self.c * self.c
        return math.exp(self.c * w - half) - math.exp(self.epsilon - self.c * w - half)

    @property
    def _reach(self) -> float:
        # E(L - upper)_+ is at most E e^(cW - c^2/2) over W > reach. That weight shifts W by c: it
        # is Phi(c - reach), which is `tail`. The floor keeps the quantile finite.
        return self.c - float(ndtri(max(self.tail, 1e-300)))

    @property
    def lower(self) -> float:
        # Below, the second exponential shifts W by -c. So moving the mass beneath up to `lower`
        # adds at most e^eps Phi(-9), about e^eps 1e-19.
        return self._value(-(self.c + 9.0))

    @property
    def upper(self) -> float:
        return self._value(self._reach)

    @property
    def mean(self) -> float:
        return -math.expm1(self.epsilon)

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """Return E[(L - t)_+] = phi(w) (x [R(w-c) - R(w)] + y [R(w) - R(w+c)]) for L(w) = t = x -
        y.

        x, y > 0 are the two exponentials at w, R is Mills' ratio: sums of positive terms. Below the
        median the same is done for E[(t - L)_+], to which E[L] - t is added.
        """
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        c = self.c
        # t = x - y with x y = q: the larger of the two numbers by the quadratic formula, the other
        # as q over it, so that nothing cancels. x = e^(c w - c^2/2) gives w.
        q = math.exp(self.epsilon - c * c)
        root = np.hypot(t, 2.0 * math.sqrt(q))
        larger = 0.5 * (np.abs(t) + root)
        x = np.where(t >= 0.0, larger, q / larger)
        y = np.where(t >= 0.0, q / larger, larger)
        w = np.log(x) / c + 0.5 * c
        # E e^(cW - c^2/2) 1{W > w} = 1 - Phi(w - c) = phi(w - c) R(w - c), and phi(w - c) =
        # phi(w) x. In the same way the second part is phi(w) y R(w + c), and t P(W > w) = phi(w)
        # (x - y) R(w). Together: x [R(w - c) - R(w)] + y [R(w) - R(w + c)].
        density = np.exp(-0.5 * w * w - _LOG_ROOT_TWO_PI)
        step = np.full_like(w, c)
        # Each side is used where w has its sign. The other one is evaluated at zero: Mills' ratio
        # overflows far below zero.
        up = np.maximum(w, 0.0)
        down = np.maximum(-w, 0.0)
        above = density * (x * mills_drop(up - c, step) + y * mills_drop(up, step))
        below = density * (x * mills_drop(down, step) + y * mills_drop(down - c, step))
        return np.where(w >= 0.0, above, self.mean - t + below)
