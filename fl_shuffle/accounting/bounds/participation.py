"""Secret check-in: every client sends its report with probability q only, and who did is not seen.

Absence is one more outcome of a client's report, which every input produces with probability 1 - q:
R'_j = (1 - q) absent + q R_j. What is released (the reports that came, hence their number) says as
much as the shuffle of n such outcomes. If R_j >= gamma_j omega and gamma is the largest gamma_j,

    R'_j >= (gamma_j / gamma) gamma' omega',   gamma' = 1 - q + q gamma,
    gamma' omega' = (1 - q) absent + q gamma omega,

and the amplification variable under omega' is gamma' (1 - e^eps) where the client is absent
(probability (1 - q)/gamma'), else L gamma'/gamma. Every other ratio of absences to omega would do;
this one keeps the most blanket reports. docs/proofs.md, sections 2 and 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.engine.stop_loss import DeltaBound, amplified_delta
from fl_shuffle.accounting.laws.amplification import AmplificationLaw, AtomicLaw, MixtureLaw
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.errors import require_real

ASSUMPTION = (
    "secret check-in: each client takes part by its own coin with the stated probability, "
    "independently of data and of others, and nobody who sees the reports learns who did"
)


def with_absence(
    law: AmplificationLaw, blanket: Sequence[tuple[float, int]], rate: float, epsilon: float
) -> tuple[AmplificationLaw, list[tuple[float, int]]]:
    """The law of L and the others' (mass, count) when each takes part with probability `rate`.

    `law` is the client's law of L at `epsilon` when it does take part, `blanket` the masses of the
    others when they do. Rounded so that delta can only grow. `rate` in (0, 1].
    """
    if rate == 1.0:
        return law, list(blanket)
    largest = max((mass for mass, count in blanket if count > 0 and mass > 0.0), default=1.0)
    whole = 1.0 - rate + rate * largest
    absent, present = (1.0 - rate) / whole, rate * largest / whole
    up, down = 1.0 + 8.0 * UNIT, 1.0 - 8.0 * UNIT
    alone = -whole * math.expm1(epsilon) * down
    scale = whole / largest
    masses = [(min(1.0, whole * min(1.0, mass / largest)) * down, count) for mass, count in blanket]
    if isinstance(law, AtomicLaw):
        values = law.values * scale
        values *= np.where(values > 0.0, up, down)
        return AtomicLaw.of(
            np.append(values, alone), np.append(law.probabilities * present, absent)
        ), masses
    constant = AtomicLaw(np.array([alone]), np.array([1.0]))
    parts = ((present, scale * up, law), (absent, 1.0, constant))
    return MixtureLaw(parts), masses


def hidden_delta(
    law: AmplificationLaw,
    blanket: Sequence[tuple[float, int]],
    rate: float,
    epsilon: float,
    relative_error: float | None = None,
) -> DeltaBound:
    """delta(`epsilon`) of a client of this law of L among others of these (mass, count), each with
    participation `rate`; the best that is certified where `relative_error` is out of reach."""
    law, blanket = with_absence(law, blanket, rate, epsilon)
    return amplified_delta(law, blanket, relative_error=relative_error)


def require_participation(rate: float) -> float:
    """`rate` as a float in (0, 1], or `InvalidValueError`."""
    return require_real("participation", rate, minimum=0.0, maximum=1.0, exclusive_minimum=True)
