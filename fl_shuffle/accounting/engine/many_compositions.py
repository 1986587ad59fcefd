"""Which of many compositions certainly cost no more than a given epsilon.

Delta at one epsilon is a scalar product of the composed law and a gain, hence (Parseval) of their
Fourier transforms. A composed law is nearly normal, so that only its lowest frequencies count: a
thousand compositions of a dozen kinds of rounds are two small products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.engine.tilted_moments import UNIT
from fl_shuffle.accounting.tolerances import TOLERANCES

FloatArray = NDArray[np.float64]


def certainly_within(
    pairs: Sequence[DominatingPair],
    times: FloatArray,
    epsilon: float,
    delta: float,
    similar: Composition,
) -> NDArray[np.bool_]:
    """Whether delta at `epsilon` (nats) of each composition [n] is certainly at most `delta`.

    Row i of `times` [n, k] says how often each of `pairs` is in composition i. Its lattice, tilt
    and window are those of `similar`, a composition like them; any give a valid bound, and a bad
    fit only makes fewer certain. The steps are those of `Composition`: aliasing and a Chernoff
    bound above the window, and round-off, only raise the bound. False means: not certain.
    """
    if not similar.rounds or similar.infinite >= delta:
        return np.zeros(len(times), dtype=bool)
    tilt, step, size, first = similar.frame(delta)
    index = np.arange(first, first + size)
    losses = index.astype(np.float64) * step
    if losses[0] > epsilon:
        return np.zeros(len(times), dtype=bool)
    spectra = np.array([pair.log_spectrum(step, size, tilt) for pair in pairs])
    kept = _frequencies(spectra.real, times)
    transforms = np.exp(times @ spectra[:, :kept])
    # In units of e^(-tilt epsilon), which the scale below takes back.
    beyond = np.minimum(epsilon - losses, 0.0)
    gain = -np.expm1(beyond) * np.exp(tilt * beyond)
    placed = np.empty(size)
    placed[np.mod(index, size)] = gain
    against = 2.0 * np.conj(np.fft.rfft(placed)[:kept]) / size
    against[0] /= 2.0
    if kept == size // 2 + 1:
        against[-1] /= 2.0
    inside = np.maximum((transforms @ against).real, 0.0)
    rounds = times.sum(axis=1)
    roundoff = 16.0 * UNIT * (math.log2(size) + len(pairs)) * (1.0 + rounds)
    inside += float(gain.sum()) * (roundoff + math.exp(TOLERANCES.lattice_log_negligible))
    moments = np.array([pair.lattice_log_moment(step, tilt) for pair in pairs])
    scale = np.exp(np.minimum(times @ moments - tilt * epsilon, 700.0))
    above = _beyond(pairs, times, step, float(losses[-1]) + step, similar.markov_rates(tilt))
    infinite = np.array([math.log1p(-min(pair.infinite, 1.0 - 1e-16)) for pair in pairs])
    total = (inside * scale + above) * TOLERANCES.lattice_safety - np.expm1(times @ infinite)
    return np.asarray(total <= delta)


def _frequencies(log_moduli: FloatArray, times: FloatArray) -> int:
    """So many of the lowest frequencies; what all the others hold is negligible."""
    size = int(log_moduli.shape[1])
    # The largest at this frequency and all above it.
    tails = np.maximum.accumulate(log_moduli[:, ::-1], axis=1)[:, ::-1]
    kept = TOLERANCES.lattice_first_frequencies
    while kept < size:
        if float((times @ tails[:, kept]).max()) <= TOLERANCES.lattice_log_negligible:
            return kept
        kept *= 2
    return size


def _beyond(
    pairs: Sequence[DominatingPair],
    times: FloatArray,
    step: float,
    edge: float,
    rates: Sequence[float],
) -> FloatArray:
    """Markov's bound on the mass of each composition at or beyond `edge`."""
    smallest = np.zeros(len(times))
    for rate in rates:
        moments = np.array([pair.lattice_log_moment(step, rate) for pair in pairs])
        smallest = np.minimum(smallest, times @ moments - rate * edge)
    return np.exp(smallest)
