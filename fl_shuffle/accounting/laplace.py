"""The local guarantee of Laplace noise."""

from __future__ import annotations

from fl_shuffle.errors import require_integer, require_real


def laplace_epsilon(delta: float, ratio: float, rounds: int) -> float:
    """Epsilon at `delta` of `rounds` reports with l1 sensitivity / scale = `ratio` (pure bound)."""
    require_real("delta", delta, minimum=0.0, maximum=1.0)
    require_real("ratio", ratio, minimum=0.0)
    return ratio * require_integer("rounds", rounds, minimum=1)
