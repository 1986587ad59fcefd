"""The Gram order's theorem a second time, in plain numpy by quadrature: no finite laws, no boxes.

Nothing here imports the product. docs/proofs.md, section 12; lengths in noise widths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

G = np.linspace(-11.0, 11.0, 44_001)
GW = np.exp(-0.5 * G * G)
GW /= GW.sum()


def stop_loss(gram: tuple[float, float, float], a: float, t: np.ndarray) -> np.ndarray:
    """E(L - t)_+: closed form given y's normal variable, a fine sum over it."""
    u, w, x = gram
    t = np.atleast_1d(t)
    g = G[::4, None]
    weight = GW[::4] / GW[::4].sum()
    rho = x / math.sqrt(w) if w > 0.0 else 0.0
    v = math.sqrt(max(u - rho * rho, 1e-20))
    m, s = np.exp(rho * g - 0.5 * rho * rho), a * np.exp(math.sqrt(w) * g - 0.5 * w) + t
    log = np.log(m / np.maximum(s, 1e-300))
    value = np.where(s <= 0.0, m - s, m * ndtr(log / v + v / 2) - s * ndtr(log / v - v / 2))
    result: np.ndarray = weight @ value
    return result


@dataclass(frozen=True)
class Parameters:
    """All that may be chosen freely at one epsilon, and the others' groups."""

    own: float
    move: float
    groups: tuple[tuple[float, int], ...]
    epsilon: float
    cut: float
    theta: float
    step: float
    blur: float
    frequencies: int
    zeta: float
    m: float
    alpha: float
    beta: float
    nodes: tuple[float, ...]

    @property
    def count(self) -> int:
        return sum(n for _, n in self.groups)


def on_one_line(free: Parameters, other: float, end: int) -> np.ndarray:
    """L at the quadrature's points: p at own, q at own - move, the other's mean at an end."""
    a = math.exp(free.epsilon)
    u, v = ((free.own + other), free.own + other - free.move)[:: 1 if end == 0 else -1]
    # The other at -other sees p and q on one side; at +other it is q that is further.
    return np.exp(u * G - 0.5 * u * u) - a * np.exp(v * G - 0.5 * v * v)


def lifted(free: Parameters, x: np.ndarray, w: float) -> np.ndarray:
    """phi_w, lambda = 1."""
    s = np.clip(x / free.alpha, -1.0, free.zeta - 1.0)
    result: np.ndarray = (
        x + np.maximum((1.0 - w) * x, 0.0) / free.m + (s * x - 0.5 * free.alpha * s * s) / free.m
    )
    return result


def log_d(free: Parameters, x: np.ndarray) -> float:
    """log D of the values x at the quadrature's points: every modulus up to the last, exactly."""
    grown = GW * np.exp(free.theta * x)
    whole = grown.sum()
    total = 0.0
    for i in range(free.frequencies + 1):
        k = i * free.step
        modulus = abs((grown * np.exp(1j * k * x)).sum()) / whole
        weight = (1.0 if i == 0 else 2.0) * math.exp(-0.5 * free.blur * k * k)
        total += weight / (free.theta**2 + k * k) * modulus**free.count
        if i > 4 and modulus**free.count < 1e-13:
            break
    total *= free.step / (2.0 * math.pi)
    return free.count * math.log(whole) + math.log(total) + 0.5 * free.blur * free.theta**2


def node_weights(free: Parameters, other: float) -> np.ndarray:
    """Of w_k(h) spread to the nodes, for a mean at the distance `other`, by the definition."""
    w = np.minimum(np.exp(other * G + 0.5 * other * other), free.zeta)
    x = np.array(free.nodes)
    hat = np.array([GW @ np.interp(w, x, np.eye(len(x))[i]) for i in range(len(x))])
    # Below lambda the mean-one law counts: it says more.
    z = np.exp(other * G - 0.5 * other * other)
    low = float(GW @ np.maximum(1.0 - z, 0.0))
    above = hat[2:]
    return np.array([low, 1.0 - low - above.sum(), *above])


def log_main(free: Parameters, other: float, end: int) -> float:
    """log sum_i p_i D'(x_i) of the others of one radius at one end of the line."""
    x = np.minimum(on_one_line(free, other, end), free.cut)
    logs = np.array([log_d(free, lifted(free, x, w)) for w in free.nodes])
    relative = np.exp(logs - logs[1])
    relative[0] = max(relative[0], 1.0)
    relative[1:] = np.maximum.accumulate(relative[1:])
    return float(logs[1] + np.log(node_weights(free, other) @ relative))


def costs(free: Parameters) -> float:
    """(A), (B), (C), each at its best rate; and what the cut leaves out is not in it."""
    a = math.exp(free.epsilon)
    local = float(ndtr(free.move / 2 - free.epsilon / free.move)) - a * float(
        ndtr(-free.move / 2 - free.epsilon / free.move)
    )
    z = {c: np.exp(c * G - 0.5 * c * c) for c, _ in free.groups}
    over = sum(n * float(GW @ np.maximum(z[c] - free.zeta, 0.0)) for c, n in free.groups)
    rates = np.geomspace(1e-3, 1e3, 400) / math.sqrt(free.count)
    capped = {c: np.minimum(each, free.zeta) for c, each in z.items()}
    low = min(
        math.exp(min(log, 0.0))
        for tau in rates.tolist()
        for log in [
            tau * free.m - 1.0 - math.log(tau * free.m)
            + sum(n * math.log(float(GW @ np.exp(-tau * capped[c]))) for c, n in free.groups)
        ]
    )  # fmt: skip
    kappa = free.alpha / (2.0 * free.m)
    high = math.inf
    for tau in (np.geomspace(0.01, 100.0, 60) / (kappa * max(free.zeta - 1.0, 0.1) ** 2)).tolist():
        if tau * kappa * max(free.zeta - 1.0, 1.0) ** 2 > 300.0:
            continue
        log = -1.0 - tau * free.beta - math.log(tau)
        log += sum(
            n * math.log(float(GW @ np.exp(tau * kappa * (capped[c] - 1.0) ** 2)))
            for c, n in free.groups
        )
        high = min(high, math.exp(min(log, 50.0)))
    return local * low + (over * (local + a - 1.0) + high) / free.m
