"""Up to where questions are answered: what lies beyond is refused as out of range."""

from __future__ import annotations

MAX_EPSILON0 = 200.0
"""Local budgets above this protect nothing and overflow when exponentiated and multiplied."""
MAX_CLIENTS = 10**12
"""Reports in one shuffled batch: counts stay exact in double precision, products of them too."""
MAX_ROUNDS = 10**6
"""Rounds of one run: more than anybody trains."""
MAX_ORDER = 1e9
"""Renyi orders above this say what the local budget says."""
MIN_DELTA = 1e-290
"""Deltas below this are refused: doubles underflow, and what has become 0 is no upper bound."""
MIN_PARTICIPATION = 1e-100
"""Chances to take part below this are refused, for the same reason."""
MAX_COMPOSED = 10**9
"""Times that one pair of distributions is composed with itself."""
