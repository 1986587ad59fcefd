"""Where to integrate for a sum of equal terms, and single points: what kinds of claims share."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
from scipy.special import ndtr

from fl_shuffle._internal.arrays import FloatArray

WINDOW = 9.0
"""Deviations of the tilted sum that the trapezoidal sum's period leaves room for."""
LAST = 4.5
"""The last frequency, in inverse deviations of the added variable: 4e-5 is left of it."""
MOST = 20_000
"""Frequencies."""
TRIALS = 5
"""A single point is moved up so often at most, until its delta is small enough."""
MOST_EPSILON = 500.0
"""Where the search ends."""
LEAST_STEP = 1e-9
"""Of epsilon."""
LOCAL = {"by": "local"}
"""The witness of the client's own noise alone."""


def line(
    p: FloatArray, x: FloatArray, count: int, smooth: float, most: int = MOST
) -> dict[str, str]:
    """Return theta, step, smoothing and last frequency for `count` terms with masses `p` at `x`.

    `smooth`: the added variable's deviation, in those of the sum; it is more where there would be
    more than `most` frequencies.
    """
    spread = math.sqrt(count * float(p @ x**2))
    top = min(30 / spread, 300 / float(np.max(np.abs(x))))
    thetas = np.geomspace(1e-3 * top, top, 300)
    logs = np.log1p(np.expm1(np.multiply.outer(thetas, x)) @ p)
    theta = float(thetas[int(np.argmin(count * logs - 2 * np.log(thetas)))])
    tilted = p * np.exp(theta * x)
    moment = float(tilted.sum())
    mean = float(tilted @ x) / moment
    deviation = math.sqrt(count * max(float(tilted @ x**2) / moment - mean**2, 1e-300))
    period = max(14 / theta, count * mean + WINDOW * deviation + 12 / theta)
    step = 2 * math.pi / period
    smoothing = max(smooth * min(deviation, 1 / theta), LAST / (most * step))
    return {
        "theta": repr(theta),
        "h": repr(step),
        "smoothing": repr(smoothing**2),
        "exact": "1",
        "last": str(max(2, math.ceil(LAST / smoothing / step))),
    }


def value(chosen: dict[str, str], p: FloatArray, x: FloatArray, count: int) -> float:
    """Return about what the verifier finds with `line`'s choice."""
    theta, step, v = (float(chosen[name]) for name in ("theta", "h", "smoothing"))
    s = theta + 1j * step * np.arange(int(chosen["last"]) + 1)
    logs = count * np.log1p(np.expm1(np.multiply.outer(s, x)) @ p) + v * s * s / 2 - 2 * np.log(s)
    terms = np.exp(logs).real
    return float(step / math.pi * (terms.sum() - terms[0] / 2))


def one_point(
    only: Callable[[str], tuple[dict[str, Any], float]], printed: float, delta: float
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return one point for a single round: epsilon = 0 by the local bound, one point near
    `printed`; the window.

    `only`: an epsilon, which is the step -> a witness there and the delta that it proves. Where
    `printed` is zero it is the smallest step that there is.
    """
    epsilon = max(printed, LEAST_STEP)
    for _ in range(TRIALS):
        step = format(Decimal(epsilon), "f")
        witness, found = only(step)
        if found <= delta:
            break
        # Curves fall faster and faster: this is enough, and hardly more.
        fall = math.log(excess(math.exp(0.99 * epsilon), _mu_through(epsilon, delta)) / delta)
        epsilon *= 1 + 0.01 * math.log(found / delta) / fall + 1e-5
    while found > delta and epsilon < MOST_EPSILON:
        epsilon *= 1.02
        step = format(Decimal(epsilon), "f")
        witness, found = only(step)
    return single_curve(step, witness)


def single_curve(step: str, witness: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return points and window of one round at one epsilon; copies in the window weigh e^-40."""
    points = [{"index": "0", **LOCAL}, {"index": "1", **witness}]
    return points, {"step": step, "tilt": repr(40 / 64 / float(step)), "cells": "64"}


def excess(s: float, mu: float) -> float:
    """Return E(X - s)_+ of a lognormal X of mean one."""
    shift = math.log(s) / mu
    return float(ndtr(mu / 2 - shift) - s * ndtr(-mu / 2 - shift))


def _mu_through(epsilon: float, delta: float) -> float:
    """Return the mu of a Gaussian curve through (epsilon, delta)."""
    low, high = 1e-9, 100.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(math.exp(epsilon), middle) < delta else (low, middle)
    return low
