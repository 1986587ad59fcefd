"""Which others are worst: the Gram order (docs/research/proofs, section 12, Lemmas 1 to 3).

Reports are N(mean, I), lengths in noise standard deviations. With u = p - r, v = q - r the
distribution of L = (P - aQ)/R under R is a function of the Gram matrix G = (U, W, X) = (|u|^2,
|v|^2, <u, v>).

Lemma 1. dU, dW >= 0 and dX <= sqrt(dU dW): the distribution of L at G + dG is above that at G in
the convex order. Lemma 2. Client unit, |p|, |q| <= C_1, |r| <= C_2: every distribution of L is
below one of `frontier`. Lemma 3. `corner` is above all G with U <= U_2, W <= W_2, |(U_2 - U) - (W_2
- W)| <= spread and |p - q| <= D. So the supremum over everybody's data is at most a maximum over
the corners of boxes that cover it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.round_off import LONG_SUM_ULPS, ROUND_OFF, UNIT

Gram = tuple[FloatArray, FloatArray, FloatArray]
"""U, W, X of many matrices."""

ADDED = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.2, 2.0, 3.5, 6.0, 10.0, 25.0, 80.0])[
    :, None
]
"""Candidates for e in units of a box's spread: any e >= 0 is valid."""
GRAM_ROUNDOFF = 128.0 * UNIT
"""Of sums of a few squares: U and W are raised by it, X is lowered by three times as much."""
LEAST_RATIO = 1e-6
"""Others' radii are at least this share of the client's own: larger is safe, and none is zero."""


def frontier(own: float, other: float, g1: FloatArray, g2: FloatArray) -> Gram:
    """Return the Gram matrices of Lemma 2's configurations.

    Parameters
    ----------
    own, other : float
        C_1 and C_2: p and q lie on the circle of radius C_1, r at the distance C_2.
    g1, g2 : ndarray, shape (configurations,)
        Angles of p and q, at least 0, from the point opposite to r, on its two sides; g_1 + g_2 <=
        pi.

    Returns
    -------
    Gram
        U, W, X, each shape (configurations,).

    Notes
    -----
    Source: docs/research/proofs, section 12, Lemma 2: in the client unit, every L_G is below one of
    these in the convex order.
    """
    # A = C_1^2 + C_2^2 and B = 2 C_1 C_2 of Lemma 2: U = A + B cos g_1, W = A + B cos g_2.
    both, twice = own * own + other * other, 2.0 * own * other
    across = other * other + own * other * (np.cos(g1) + np.cos(g2))
    # Ends of boxes may lie beyond g_1 + g_2 = pi, where the last cosine is held at its least value.
    across = across + own * own * np.cos(np.minimum(g1 + g2, math.pi))
    return both + twice * np.cos(g1), both + twice * np.cos(g2), across


def corner(u2: FloatArray, w2: FloatArray, spread: FloatArray, chord: FloatArray, a: float) -> Gram:
    """Return one Gram matrix above a whole set of them (Lemma 3), for each of many sets.

    Parameters
    ----------
    u2, w2 : ndarray, shape (boxes,)
        Upper ends of U and W.
    spread : ndarray, shape (boxes,)
        Upper bound on |(u2 - U) - (w2 - W)|.
    chord : ndarray, shape (boxes,)
        Upper bound on |p - q|^2.
    a : float
        e^epsilon, at least 1.

    Returns
    -------
    Gram
        U', W', X', each shape (boxes,).

    Notes
    -----
    Statement: U' = u2 + e, W' = w2 + e, X' = max((U' + W' - chord - s^2)/2, -sqrt(U'W')),
    s = sqrt(e + spread) - sqrt(e). Every e >= 0 is valid; of those tried, the one of the least E
    L^2 is taken. Source: docs/research/proofs, section 12, Lemmas 1 and 3. Direction of error:
    upwards in the convex order.
    """
    # Both ends move up by e, so dU = U' - U and dW = W' - W are at least e for every matrix of the
    # set. U and W are sums of a few squares: `slack` covers their round-off.
    e = ADDED * spread
    slack = GRAM_ROUNDOFF * (u2 + w2 + chord)
    u, w = u2 + e + slack, w2 + e + slack
    # dU and dW differ by at most `spread`, so |sqrt(dU) - sqrt(dW)| is largest if the smaller one
    # is e. Since 2X = U + W - |p - q|^2, X + sqrt(dU dW) = (U' + W' - |p - q|^2 - (sqrt(dU) -
    # sqrt(dW))^2)/2 >= (U' + W' - chord - s^2)/2: Lemma 1 asks that X' is no larger.
    s = np.sqrt(e + spread) - np.sqrt(e)
    root = np.sqrt(u * w)
    # A smaller X is above (Lemma 1), so round-off lowers it. X' never needs to be below
    # -sqrt(U'W'), and X' <= sqrt(U'W') holds but for round-off.
    x = np.clip(0.5 * (u + w - chord - s * s) - 3.0 * slack, -root, root)
    best = np.argmin(second_moment((u, w, x), a), axis=0), np.arange(u.shape[1])
    return u[best], w[best], x[best]


def second_moment(gram: Gram, a: float) -> FloatArray:
    """Return E L^2."""
    # x and y are lognormal: E x^2 = e^U, E y^2 = e^W, E xy = e^X. The cut at 300 avoids overflow;
    # the number chooses and scales, and bounds nothing.
    u, w, x = (np.exp(np.minimum(each, 300.0)) for each in gram)
    result: FloatArray = u - 2.0 * a * x + a * a * w
    return result


def worst_variance(own: float, other: float, move: float, a: float) -> float:
    """Return Var L of others on one line with client 1, at the worse end: a scale, not a bound."""
    far, near = own + other, own + other - move
    across = far * near
    # On a line X = |u| |v|; the mean, E L = 1 - a, is taken off below.
    ends = (far * far, near * near, across), (near * near, far * far, across)
    moments = [second_moment((np.array(u), np.array(w), np.array(x)), a) for u, w, x in ends]
    return float(max(moments)) - (a - 1.0) ** 2


@dataclass(frozen=True)
class Cover:
    """Boxes (low_1, high_1, low_2, high_2) for one group of others, and a corner for each of them.

    `own`: C_1; `other`: C_2; `move`: |p - q| at most. Client unit (move = 2 C_1): coordinates are
    the angles of `frontier`. Record unit: they are U and U - W.
    """

    own: float
    other: float
    move: float

    @property
    def client_unit(self) -> bool:
        """Whether |p - q| is bounded by the ball alone."""
        return self.move >= 2.0 * self.own * (1.0 - GRAM_ROUNDOFF)

    @property
    def ends(self) -> FloatArray:
        """Boxes of no width: everybody on one line, r opposite to p, to q."""
        if self.client_unit:
            return np.array([[math.pi, math.pi, 0.0, 0.0], [0.0, 0.0, math.pi, math.pi]])
        far, near = (self.own + self.other) ** 2, (self.own + self.other - self.move) ** 2
        return np.array([[far, far, far - near, far - near], [near, near, near - far, near - far]])

    def start(self, cells: int) -> FloatArray:
        """Return boxes that cover everything: `cells` to a side.

        In the record unit there are fewer, longer ones.
        """
        if self.client_unit:
            first = second = np.linspace(0.0, math.pi, cells + 1)
        else:
            reach = (self.own + self.other) * (1.0 + GRAM_ROUNDOFF)
            first = np.linspace(0.0, reach * reach, cells // 2 + 1)
            # U - W = <p - q, u + v>, so |U - W| <= |p - q| (|u| + |v|) <= 2 D (C_1 + C_2).
            second = 2.0 * reach * self.move * np.linspace(-1.0, 1.0, 2 * cells + 1)
        sides = first[:-1, None], first[1:, None], second[:-1], second[1:]
        boxes = np.stack(np.broadcast_arrays(*sides), axis=-1)
        return self.kept(boxes.reshape(-1, 4))

    def halves(self, boxes: FloatArray) -> FloatArray:
        """Return every box halved both ways; further columns are handed on."""
        low1, high1, low2, high2 = boxes.T[:4]
        mid1, mid2 = 0.5 * (low1 + high1), 0.5 * (low2 + high2)
        parts = [
            (low1, mid1, low2, mid2),
            (low1, mid1, mid2, high2),
            (mid1, high1, low2, mid2),
            (mid1, high1, mid2, high2),
        ]
        quarters = [np.column_stack([*part, boxes[:, 4:]]) for part in parts]
        return self.kept(np.concatenate(quarters))

    def middles(self, boxes: FloatArray) -> FloatArray:
        """Return a box of no width in each, where most likely a configuration lies.

        It is a guide, no more.
        """
        low1, high1, low2, high2 = boxes.T
        mid1, mid2 = 0.5 * (low1 + high1), 0.5 * (low2 + high2)
        if self.client_unit:
            mid1 = np.maximum(np.minimum(mid1, math.pi - mid2), low1)
            mid2 = np.minimum(mid2, math.pi - mid1)
        else:
            root = np.sqrt(mid1)
            near = np.maximum(root - self.move, 0.0)
            far = np.minimum((root + self.move) ** 2, self.most)
            mid2 = np.clip(mid2, mid1 - far, mid1 - near * near)
        return np.column_stack([mid1, mid1, mid2, mid2])

    def kept(self, boxes: FloatArray) -> FloatArray:
        """Return the boxes without those that hold no configuration at all.

        Record unit: |U - W| <= |p - q| (sqrt(U) + sqrt(W)), W >= 0, and `chord` is not negative.
        """
        low1, high1, low2, high2 = boxes.T[:4]
        if self.client_unit:
            holds = low1 + low2 <= math.pi + ROUND_OFF
        else:
            # W = U - (U - W) is at most this, and at least low1 - high2. |U - W| <= D (sqrt(U) +
            # sqrt(W)), because U - W = <p - q, u + v>.
            most = high1 - low2
            reach = self.move * (np.sqrt(high1) + np.sqrt(np.maximum(most, 0.0))) + ROUND_OFF
            holds = (most >= 0.0) & (low2 <= reach) & (-high2 <= reach)
            holds &= low1 - high2 <= self.most
            holds &= self.chord(low1, high2) >= 0.0
        result: FloatArray = boxes[holds]
        return result

    @property
    def most(self) -> float:
        """The largest U and W there is, rounded up."""
        return (self.own + self.other) ** 2 * (1.0 + LONG_SUM_ULPS * UNIT)

    def chord(self, low1: FloatArray, high2: FloatArray) -> FloatArray:
        """Record unit: |p - q|^2 at most, by the parallelogram law; negative: no configuration.

        |p - q|^2 <= 4 C_1^2 - |p + q|^2, U + W <= 2 (C_1^2 + C_2^2) + 2 C_2 |p + q|.
        """
        least = low1 + np.maximum(low1 - high2, 0.0)
        most = 2.0 * (self.own**2 + self.other**2)
        # Small `other` enlarges round-off.
        over = np.maximum(least - most - GRAM_ROUNDOFF * most, 0.0) / (2.0 * self.other)
        result: FloatArray = 4.0 * self.own**2 - over * over + GRAM_ROUNDOFF * self.own**2
        return np.minimum(result, self.move**2)

    def corner(self, boxes: FloatArray, a: float) -> Gram:
        """Return the corner of Lemma 3 for every box."""
        low1, high1, low2, high2 = boxes.T
        if not self.client_unit:
            chord = np.maximum(self.chord(low1, high2), 0.0)
            w2 = np.clip(high1 - low2, 0.0, self.most)
            # (U_2 - U) - (W_2 - W) = (U_2 - W_2) - (U - W), and U - W lies in [low2, high2].
            spread = np.maximum(high2 - (high1 - w2), (high1 - w2) - low2)
            return corner(high1, w2, np.maximum(spread, high2 - low2), chord, a)
        # U and W fall with their angles: they are largest at the lower ends, and least at the upper
        # ends, cut where g_1 + g_2 = pi. |p - q|^2 = 2 C_1^2 (1 - cos(g_1 + g_2)) grows with the
        # angles.
        last1 = np.maximum(np.minimum(high1, math.pi - low2), low1)
        last2 = np.maximum(np.minimum(high2, math.pi - low1), low2)
        u2, w2, _ = frontier(self.own, self.other, low1, low2)
        u1, w1, _ = frontier(self.own, self.other, last1, last2)
        angle = np.minimum(high1 + high2, math.pi)
        chord = 2.0 * self.own**2 * (1.0 - np.cos(angle))
        return corner(u2, w2, np.maximum(u2 - u1, w2 - w1), chord, a)


def cover(own: float, other: float, move: float) -> Cover:
    """Return the cover for a client of radius `own` among others of radius `other`.

    Larger radii are safe.
    """
    # Means that lie `move` apart need a ball of at least half that radius.
    own = max(own, 0.5 * move)
    return Cover(own, max(other, LEAST_RATIO * own), move)
