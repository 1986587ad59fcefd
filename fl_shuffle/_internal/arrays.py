"""Types of NumPy arrays, each named once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
"""Numbers of double precision, of any shape."""
Vector = NDArray[np.float64]
"""One number of double precision for each client, class or coordinate."""
ComplexArray = NDArray[np.complex128]
Mask = NDArray[np.bool_]
"""Whether each client takes part, or each entry is meant."""
Counts = NDArray[np.int64]
"""How many of each."""
Ids = NDArray[np.int64]
"""Clients by their numbers, 0, 1, ..."""
