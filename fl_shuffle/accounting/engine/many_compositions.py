"""Which of many compositions certainly cost no more than a given epsilon.

Delta at one epsilon is a sum over a law's upper tail, hence a sum over its frequencies (`Tails`). A
composed law is nearly normal, so that only the lowest ones count: a thousand compositions of a
dozen kinds of rounds are a small product of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.engine.composition import Composition, Tails, mass_roundoff
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
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

    Row i of `times` [n, k] says how often each of `pairs` is in composition i. Its lattice and tilt
    are those of `similar`, a composition like them; any give a valid bound, and a bad fit only
    makes fewer certain. Its tails are those of `Composition`: repetitions and round-off only raise
    the bound. False means: not certain.
    """
    if not similar.rounds or similar.infinite >= delta:
        return np.zeros(len(times), dtype=bool)
    tilt, step, size, first = similar.frame(delta)
    spectra = np.array([pair.log_spectrum(step, size, tilt) for pair in pairs])
    kept = _frequencies(spectra.real, times)
    # The tails of a law whose transform is one: what each frequency and a unit of round-off weigh.
    tails = Tails.of(np.zeros(kept, dtype=np.complex128), 0.0, step, size, tilt, first, 1.0)
    end = math.ceil(epsilon / step)
    share = -math.expm1(min(epsilon - step * end, 0.0))
    weights = (tails.gained + share * tails.discounted) * np.exp(1j * tails.angles(end))
    # Summed up in pairs, not by a scalar product: the same round-off as that of one composition.
    inside = np.sum((np.exp(times @ spectra[:, :kept]) * weights).real, axis=1)
    lost = np.array([mass_roundoff(size, each) for each in times.sum(axis=1).tolist()])
    inside = np.maximum(inside, 0.0) + lost * (tails.lost[0] + share * tails.lost[1])
    moments = np.array([pair.lattice_log_moment(step, tilt) for pair in pairs])
    scale = np.exp(np.minimum(times @ moments - tilt * step * end, 700.0))
    infinite = np.array([math.log1p(-min(pair.infinite, 1.0 - 1e-16)) for pair in pairs])
    total = inside * scale * TOLERANCES.lattice_safety - np.expm1(times @ infinite)
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
