"""A second relation, for comparing alone: a unit taken out of Gaussian sums instead of replaced.

Accountants of central DP-SGD (Opacus, DPSUR) count so. Every guarantee here is replace-one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ADD_REMOVE_WORDS = (
    "the same sums in add-remove, where a unit is taken out and its noise stays: to compare with "
    "Opacus, no guarantee"
)


def add_remove_epsilon(epsilon: float, delta: float) -> float | None:
    """Return what Gaussian sums cost a unit that is taken out, if replacing it costs `epsilon`:
    nats, at `delta` both, rounded up; None beyond `MAX_MU_EPSILON`.

    A mean in a ball around zero becomes zero and moves half as far as one that becomes any other of
    the ball; the noise, that client's own included, stays in the sums. So the Gaussian-DP parameter
    is half that of replace-one, and that one is at most the inverse of its `epsilon`. Also known as
    zero-out (Kairouz et al., ICML 2021, "Practical and Private (Deep) Learning without Sampling or
    Shuffling"). Raises `InvalidValueError` for delta outside (0, 1).
    """
    # Who reads what a run wrote down does not wait for the bounds.
    from fl_shuffle.accounting.bounds.sum_release.gaussian import SUM_DELTA_SHARE, sum_epsilon
    from fl_shuffle.accounting.distributions.gaussian_mechanism import (
        MAX_MU_EPSILON,
        gaussian_mu,
    )
    from fl_shuffle.accounting.round_off import INVERSE_ERROR

    if not epsilon <= MAX_MU_EPSILON:  # no inverse is taken so far out
        return None
    # `gaussian_mu` rounds down; this mu is not below any that costs `epsilon`, and so half of it
    # is not below the mu of taking a unit out.
    mu = gaussian_mu(epsilon, delta * SUM_DELTA_SHARE) * (1.0 + 3.0 * INVERSE_ERROR)
    return sum_epsilon(delta, 0.5 * mu)


def add_remove_of(
    config: Mapping[str, Mapping[str, Any]], epsilon: float | None, delta: float
) -> float | None:
    """Return `add_remove_epsilon` of sums that cost `epsilon` under this configuration's tables;
    None where it does not apply, or nothing is known of the sums.

    It applies to Gaussian noise where a unit's own share of a report is clipped: to whole updates,
    and to records that are clipped one by one. What an average is clipped to afterwards
    (privacy.client_clip_norm, privacy.clipping = "average") bounds how far replacing a record moves
    it, but taking one out may move it as far.
    """
    privacy = config["privacy"]
    each = privacy["clipping"] in ("auto", "record") and privacy.get("client_clip_norm") is None
    if privacy["randomizer"] != "gaussian" or not (privacy["unit"] == "client" or each):
        return None
    return None if epsilon is None else add_remove_epsilon(float(epsilon), delta)
