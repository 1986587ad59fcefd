"""What rounds certainly cost a client: the better of the two attacks on whole batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.likelihood_ratio import batch_epsilon
from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.local_guarantees import recognised_epsilon
from fl_shuffle.accounting.tolerances import TOLERANCES


def certain_epsilon(
    classes: Sequence[ClientClass],
    counts: NDArray[np.int64],
    index: int,
    rounds: int,
    delta: float,
    *,
    local: float,
    dimension: int | None = None,
    recognition_only: bool = False,
) -> float:
    """A lower bound on epsilon at `delta` of a client of class `index` over `rounds`; 0 for none.

    `counts[j]` clients of class j report in every round at most: fewer hide less. Recognition is
    tried first; the likelihood ratio where that leaves room below `local`, the client's local
    epsilon. Nothing is claimed for randomizers without a known law. Relation: replace-one.
    """
    found = recognised_epsilon(classes, counts, index, rounds, delta, dimension)
    best = 0.0 if found is None else found
    unknown = any(kind.noise == "user" for kind in classes)
    if recognition_only or unknown or best >= TOLERANCES.nearly_local * local:
        return best
    batch = [
        ReportClass(kind.noise, kind.scale, kind.radius, kind.sensitivity, int(count))
        for kind, count in zip(classes, counts, strict=True)
    ]
    return max(best, batch_epsilon(batch, index, rounds, delta, dimension or 1))


def most_exposed(classes: Sequence[ClientClass], rounds: dict[int, int]) -> int | None:
    """The class, of those with `rounds` taken, whose own noise protects it least; None of none."""
    return max(rounds, key=lambda i: classes[i].exposure * rounds[i] ** 0.5, default=None)
