"""The most costly of many histories, most of which need not be worked out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.engine.composition import Composition, certainly_within
from fl_shuffle.accounting.rounds.participation_history import FEW_HISTORIES
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, Spent


def largest_epsilon(library: RoundLibrary, spents: Sequence[Spent], delta: float) -> float:
    """The largest `RoundLibrary.epsilon` of these histories at `delta` (nats); 0 of none.

    It is worked out for the one whose privacy loss is most spread. Of those that are certainly
    below the target at that epsilon nothing more need be known; of the rest the next one is worked
    out, and so on.
    """
    kinds = list({kind: None for spent in spents for kind in spent})
    # A single round's epsilon needs no pair, which is dear: asked for only where it helps.
    many = len(spents) > FEW_HISTORIES and any(library.curve(kind).credit for kind in kinds)
    pairs = [pair for pair in map(library.pair, kinds) if pair is not None] if many else []
    if len(pairs) < len(kinds) or not many:
        return max((library.epsilon(spent, delta) for spent in spents), default=0.0)
    times = np.array([[spent.get(kind, 0) for kind in kinds] for spent in spents], dtype=float)
    spread = times @ np.array([pair.moments(0.0)[2] for pair in pairs])
    left, worst = np.argsort(-spread, kind="stable"), 0.0
    while left.size:
        first, left = int(left[0]), left[1:]
        epsilon = library.epsilon(spents[first], delta)
        if epsilon > worst and left.size:
            parts = list(zip(pairs, times[first].astype(int).tolist(), strict=True))
            within = certainly_within(pairs, times[left], epsilon, delta, Composition(parts))
            left = left[~within]
        worst = max(worst, epsilon)
    return worst
