"""What the swap does to every term: L becomes L + gain L^+ + loss L^-."""

from __future__ import annotations

import numpy as np

from fl_shuffle.accounting.laws.amplification import AtomicLaw


def lifted(atoms: AtomicLaw, gain: float, loss: float) -> AtomicLaw:
    """The law of L + gain L^+ + loss L^-, rounded up: convex and increasing in L."""
    values = np.where(atoms.values > 0.0, (1.0 + gain) * atoms.values, (1.0 - loss) * atoms.values)
    return AtomicLaw(values + 1e-15 * np.abs(values), atoms.probabilities)
