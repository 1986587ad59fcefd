"""Tuning constants of guarantees for sums, as fields of the one object in `tolerances`.

Each with its reason; those that cover what is lost may be raised, never lowered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SumTolerances:
    """See `fl_shuffle.accounting.tolerances`."""

    # bounds.sum_release
    sum_smoothing: float = 4.0
    """So many grid steps of smooth noise between a sum and its grid: what can still be told of the
    grid is below e^(-2 pi^2 4^2), 10^-137 a report and coordinate. May be raised, never lowered."""
    sum_lattice_loss: float = 1e-90
    """Added to delta for all reports, coordinates and rounds together: up to 10^46 of them."""
    sum_delta_share: float = 1.0 - 1e-11
    """Share of delta that is asked of the closed formula: the rest covers `sum_lattice_loss` and
    the formula's round-off, for every delta from 10^-78 on."""
    sum_inflation: float = 1.0 + 1e-9
    """Covers the round-off of adding up the squares of up to 10^6 rounds."""
    sum_rare: float = 1e-12
    """Added to delta for every sum of Laplace reports: the rare cases that are given up. Smaller
    would count less noise, larger would be felt at small deltas."""
    sum_most_coordinates: int = 10**9
    """Reports whose dimension is not known are counted as having so many coordinates."""

    # queries.planned_sums
    plan_sum_scale: float = 1e-5
    """The scale of a plan for sums is found to this relative accuracy."""
