"""Whose noise counts in a sum, and what that assumes.

Source: docs/research/proofs, section 14.
"""

from __future__ import annotations

import math

from fl_shuffle.errors import InvalidValueError, require_integer, require_open_unit

AssumedHonest = int | float | None


def honest_reports(assumed: AssumedHonest, arrived: int) -> int:
    """Return how many of the reports that arrived are assumed to be honest: at least one's own.

    Parameters
    ----------
    assumed : int, float, or None
        None: all; a whole number: that number; a share in (0, 1): that share, rounded down.
    arrived : int
        Number of reports that arrived.

    Returns
    -------
    int
        At least one, at most `arrived`.

    Raises
    ------
    InvalidValueError
        For anything else.
    """
    if assumed is None:
        return arrived
    if isinstance(assumed, float):
        # Rounded down, because fewer honest reports hide less; the client itself is always one.
        share = require_open_unit("assumed_honest", assumed)
        return min(arrived, max(1, math.floor(share * arrived)))
    return min(arrived, require_integer("assumed_honest", assumed, minimum=1))


def require_honest(assumed: AssumedHonest, reports: int) -> None:
    """Raise `InvalidValueError` for what `honest_reports` refuses, and for more than there are."""
    # Checks the type and the range alone: the answer for one report is always one.
    honest_reports(assumed, 1)
    if isinstance(assumed, int) and assumed > reports:
        raise InvalidValueError(
            "assumed_honest", assumed, f"must be at most the number of reports, {reports}"
        )


def sum_assumption(min_reports: int, assumed_honest: AssumedHonest = None) -> str:
    """State what the guarantee for sums assumes, in words."""
    words = (
        f"only sums of at least {min_reports} reports leave, one a round; nobody sees single "
        "reports"
    )
    if assumed_honest is None:
        return f"{words}, and nobody knows the noise in anybody else's"
    share = f"{assumed_honest:g}" if isinstance(assumed_honest, float) else f"{assumed_honest}"
    part = "share " if isinstance(assumed_honest, float) else ""
    return (
        f"{words}; the noise in at least {part}{share} of them, which are settled before it is "
        "drawn, is known to nobody else"
    )
