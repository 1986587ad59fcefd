"""Privacy-blanket bounds for a given randomizer: delta and epsilon.

Source: docs/research/proofs, section 2.

Upper bound of Balle, Bell, Gascon and Nissim 2019 (Lemma 5.3) in the form of Su, Cheng and Wang
2025 (Theorem 4), which is the best any decomposition of the randomizer can give; computed by
`stop_loss.amplified_delta` with its numerical error added. Valid for every n >= 1 and in both
directions of the replace-one relation. Units are nats.
"""

from __future__ import annotations

import math
from typing import Any

from fl_shuffle.accounting.bounds.participation import hidden_delta, require_participation
from fl_shuffle.accounting.distributions.amplification import Case
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.numerics.monotone_search import CurvePoint, solve
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound, DeltaCurve, usual_error
from fl_shuffle.accounting.round_off import ROUND_OFF, ROUND_UP
from fl_shuffle.errors import require_integer

MAX_EPSILON = 100.0
"""Above this the curve is taken at this point, which is safe: it falls with epsilon."""


def blanket_curve(
    randomizer: AccountedRandomizer, n: int, *, participation: float = 1.0
) -> DeltaCurve:
    """Return delta(epsilon) of one of `n` clients with one randomizer: that of the worst case.

    Parameters
    ----------
    randomizer : AccountedRandomizer
        Local randomizer of all clients.
    n : int
        Number of reports, at least 1.
    participation : float, default 1.0
        Probability with which each client takes part, secretly (see `participation.with_absence`),
        in (0, 1].

    Returns
    -------
    DeltaCurve
        delta at every epsilon >= 0 (nats).

    Notes
    -----
    Statement: E(sum over j <= n of B_j L_j)_+/(n gamma), the largest over the randomizer's cases.
    Source: Balle et al. (2019), Lemma 5.3; Su, Cheng, Wang (2025), Theorem 4; docs/research/proofs,
    section 2. Neighbors: replace-one. Direction of error: all errors are added to delta.
    """
    others = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS) - 1
    rate, cases = require_participation(participation), randomizer.cases()

    def of_case(case: Case, epsilon: float) -> DeltaBound:
        # What lies outside of the blanket counts in full, and only if the client takes part at
        # all.
        exposed, law = rate * case.exposed(epsilon), case.law(epsilon)
        hidden = DeltaBound(0.0, 0.0)
        # The others draw from the blanket with this mass; the client itself is the `+ 1` of
        # section 2.
        if law is not None:
            blanket = [(case.blanket_mass, others)]
            hidden = hidden_delta(law, blanket, rate, epsilon)
        delta = min(1.0, hidden.delta + exposed * ROUND_UP)
        return DeltaBound(delta, hidden.error + 2.0 * ROUND_OFF * exposed)

    def curve(epsilon: float) -> DeltaBound:
        # The worst case may change with epsilon, so the maximum is taken at each of them.
        results = [of_case(case, min(epsilon, MAX_EPSILON)) for case in cases]
        return max(results, key=lambda bound: bound.delta)

    return curve


def largest_epsilon(randomizer: AccountedRandomizer) -> float:
    """Return the epsilon up to which the curve is searched."""
    return min(randomizer.local_epsilon, MAX_EPSILON)


def blanket_delta(
    randomizer: AccountedRandomizer, n: int, epsilon: float, **setting: Any
) -> CurvePoint:
    """Return delta of the shuffle of `n` reports at central budget `epsilon`.

    Parameters
    ----------
    randomizer : AccountedRandomizer
        Local randomizer of all clients.
    n : int
        Number of reports, at least 1.
    epsilon : float
        In nats, at least 0.
    **setting
        As for `blanket_curve`, whose statement this is.

    Returns
    -------
    CurvePoint
        The pair (epsilon, delta), and the numerical error inside of delta.

    Examples
    --------
    >>> from fl_shuffle.accounting.distributions.finite import KRandomizedResponse
    >>> f"{blanket_delta(KRandomizedResponse(1.0, 10), 1000, 0.0792072).delta:.3e}"
    '1.187e-06'
    """
    curve = blanket_curve(randomizer, n, **setting)
    return solve(curve, largest_epsilon(randomizer), epsilon=epsilon, delta=None)


def blanket_epsilon(
    randomizer: AccountedRandomizer, n: int, delta: float, **setting: Any
) -> CurvePoint:
    """Return the smallest epsilon found at which delta(epsilon) <= `delta` has been certified.

    Parameters
    ----------
    randomizer : AccountedRandomizer
        Local randomizer of all clients.
    n : int
        Number of reports, at least 1.
    delta : float
        In (0, 1).
    **setting
        As for `blanket_curve`, whose statement this is.

    Returns
    -------
    CurvePoint
        Epsilon in nats. It is never above the local one, which each report keeps by itself.
    """
    curve = blanket_curve(randomizer, n, **setting)
    # The search for epsilon need not be finer than the curve is.
    error = usual_error(randomizer.cases()[0].law(0.0))
    local = largest_epsilon(randomizer)
    found = solve(curve, local, epsilon=None, delta=delta, relative_error=error)
    # The curve is certified up to `MAX_EPSILON` only. Beyond, the local epsilon holds for every
    # report.
    if math.isinf(found.epsilon):
        return CurvePoint(randomizer.local_epsilon, found.delta)
    return found
