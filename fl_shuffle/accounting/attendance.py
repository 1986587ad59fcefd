"""How many reports a round has at least, and a client sends at most, where attendance is random."""

from __future__ import annotations

from scipy.stats import binom

FAILURE_PROBABILITY = 0.01
"""How probable it may be that a drawn run costs more than what is planned."""


def rounds_taken(rounds: int, participation: float, clients: int) -> int:
    """Return rounds that any client exceeds with probability FAILURE_PROBABILITY / 2 at most."""
    if participation == 1.0:
        return rounds
    # A union bound over the clients: each exceeds its number with probability
    # FAILURE_PROBABILITY/(2 clients) at most. The other half is for the rounds' sizes.
    return max(1, int(binom.isf(0.5 * FAILURE_PROBABILITY / clients, rounds, participation)))


def surely(count: int, participation: float, rare: float) -> int:
    """Return how many of the clients take part at least, except with probability `rare`."""
    return max(0, int(binom.ppf(rare, count, participation)))
