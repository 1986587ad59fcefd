"""Witnesses for randomized response (docs/research/proofs, section 2)."""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.certificates.lines import LOCAL, line, value
from fl_shuffle.verify.rounds import MOST_CELLS

SMOOTH = {True: 0.01, False: 0.05}
"""Deviation of the added normal variable, in those of the sum: one round, points of a curve."""
LEAST_SMOOTH, TOLERANCE = 1e-5, {True: 1e-3, False: 1e-2}
"""It is made smaller, down to this, until delta falls by no more than this share."""
DENSE = 7.0
"""Points are evenly dense over this many predicted deviations: few rounds need them further out."""
WINDOW = 80.0
"""The composed distribution's window, over the tilt."""


def point(k: int, epsilon0: float, clients: int, epsilon: float, *, single: bool) -> dict[str, str]:
    """Return a witness for one epsilon: by the blanket, or by the client's own report if that is
    less."""
    growth, a = math.exp(epsilon0), math.exp(epsilon)
    low = 1 / (growth + k - 1)
    masses = np.array([low, low, (k - 2) * low, 1 - k * low])
    values = k * low * np.array([growth - a, 1 - a * growth, 1 - a, 0.0])
    smooth = SMOOTH[single]
    chosen: dict[str, str] = {}
    found = math.inf
    while smooth >= LEAST_SMOOTH:
        trial = line(masses, values, clients, smooth)
        less = value(trial, masses, values, clients) / (clients * k * low)
        if less > (1 - TOLERANCE[single]) * found:
            break
        chosen, found, smooth = trial, less, smooth / 4
    if found > max(growth - a, 0.0) * low:
        return LOCAL
    return {"by": "blanket", **chosen}


def curve(k: int, epsilon0: float, clients: int, times: int, delta: float) -> dict[str, object]:
    """Return points, step, tilt and window for `times` rounds."""
    growth = math.exp(epsilon0)
    low = 1 / (growth + k - 1)
    gamma = k * low
    variance = 2 / k * (k * low * (growth - 1)) ** 2
    mu = min(math.sqrt(variance * gamma / (clients * gamma**2)), epsilon0)
    step = 2.0 ** math.floor(math.log2(mu / 12))
    last = math.floor(epsilon0 / step)
    places, stride = list(range(min(int(DENSE * mu / step), last) + 1)), 2
    while places[-1] * step < 12 * mu and places[-1] + stride < last:
        places.append(places[-1] + stride)
        if len(places) % 6 == 0:
            stride *= 2
    if places[-1] + stride >= last:
        places.append(last + 1)  # nothing is lost beyond epsilon0
    tilt = math.sqrt(2 * math.log(1 / delta)) / (mu * math.sqrt(times))
    return {
        "step": repr(step),
        "tilt": repr(tilt),
        "cells": str(min(max(256, math.ceil(WINDOW / tilt / step)), MOST_CELLS)),
        "points": [
            {"index": str(i), **point(k, epsilon0, clients, i * step, single=False)} for i in places
        ],
    }
