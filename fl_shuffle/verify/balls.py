"""Numbers that decide are `arb`: balls that contain the true value; `up` takes the upper end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from flint import arb, ctx

from .reading import require

Profile = Callable[[arb], arb]
"""epsilon >= 0, an exact number -> an upper bound on delta there."""

ZERO, ONE = arb(0), arb(1)
# Bits: the differences of normal tails below lose up to 60 of them where a move is short.
ctx.prec = 128
MINUS_ROOT_HALF = -(arb(1) / 2).sqrt()


def up(x: arb) -> arb:
    """Return the upper end of a ball, an exact number."""
    require(x.is_finite(), "the witness leads nowhere: a number is not finite")
    return x.upper()


def positive(x: arb) -> arb:
    """Return the upper end of what is known not to be negative."""
    return up(x).max(ZERO)


def max_of(values: Iterable[arb]) -> arb:
    """Return the largest of exact numbers, which are not negative."""
    return reduce(arb.max, values, ZERO)


def ceiling(x: arb) -> int:
    """Return the least integer that is certainly not below x."""
    found = up(x).ceil().unique_fmpz()
    require(found is not None and abs(found) < 1 << 60, "the witness leads nowhere: too large")
    return int(found or 0)


def normal(x: arb) -> arb:
    """Return Phi(x), the standard normal distribution function."""
    return (x * MINUS_ROOT_HALF).erfc() / 2


def excess(s: arb, mu: arb) -> arb:
    """Return H_s(N(0, 1), N(mu, 1)) = E(X - s)_+ for X lognormal of mean one, ln X of deviation mu;
    s > 0.

    Section 1. A ball, not its upper end: where it is subtracted the lower end counts.
    """
    shift = s.log() / mu
    return normal(mu / 2 - shift) - s * normal(-mu / 2 - shift)


def gaussian_delta(epsilon: arb, mu: arb) -> arb:
    """Return delta_G(epsilon; mu), the Gaussian mechanism's profile (section 1)."""
    return excess(epsilon.exp(), mu)
