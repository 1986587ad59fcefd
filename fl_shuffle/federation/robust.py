"""Analyzers that a few hostile reports cannot drag away: post-processing of the shuffled batch.

Both estimate the mean report coordinate by coordinate (Yin, Chen, Kannan, Bartlett, ICML 2018).
Where the reports are not symmetric about their mean they have a bias that the mean has not; with
the noise of local randomizers, which is symmetric and large, it is small. The median's noise is
larger than the mean's by a factor of about 1.25 for Gaussian reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_shuffle._internal.plugins import load_function
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.errors import ConfigError, FlShuffleError, PrivacyBudgetError, text_of
from fl_shuffle.shuffler.local import Shuffled, UnusableBatchError

MADE_UP = 1 << 20
"""Numbers in all of the reports that an analyzer of the user's own is tried on."""
TRIED_TIMES = 8
"""Of few reports, two random draws are often the same."""


def coordinate_median(reports: Tensor) -> Tensor:
    """Return the median of each coordinate of `reports` [n, d], n >= 1: of an even number the mean
    of the two in the middle; float64 [d]. It stays among the honest reports while these are more
    than half."""
    return _middle(reports, (reports.shape[0] - 1) // 2)


def trimmed_mean(reports: Tensor, share: float) -> Tensor:
    """Return the mean of each coordinate of `reports` [n, d] without the floor(share n) smallest
    and as many largest values, 0 <= share < 1/2; float64 [d]. It stays among the honest reports
    while the others are at most floor(share n)."""
    return _middle(reports, math.floor(share * reports.shape[0]))


def _middle(reports: Tensor, cut: int) -> Tensor:
    count = reports.shape[0]
    if not count:
        raise PrivacyBudgetError("no report is left to analyze")
    ordered = torch.sort(reports, dim=0).values
    return ordered[cut : count - cut].double().mean(dim=0)


def analyzer_of(section: ServerSection) -> Callable[[Shuffled], Tensor]:
    """Return the configured analyzer, of what the shuffler releases: the mean, or a `checked`
    estimate of it from single reports."""
    if section.analyzer == "mean":
        return Shuffled.mean
    if section.analyzer == "coordinate-median":
        return checked(coordinate_median)
    if section.analyzer == "trimmed-mean":
        return checked(partial(trimmed_mean, share=section.trim_fraction))
    return checked(load_function(section.analyzer, "reports", field="server.analyzer"))


def checked(estimate: Callable[[Tensor], Any]) -> Callable[[Shuffled], Tensor]:
    """Return the analyzer of single reports [n, d], which raises `UnusableBatchError` where it
    returns anything but a finite vector [d]."""

    def analyze(shuffled: Shuffled) -> Tensor:
        assert shuffled.reports is not None
        found, shape = estimate(shuffled.reports), tuple(shuffled.reports.shape[1:])
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            its = f" of shape {tuple(found.shape)}" if isinstance(found, Tensor) else ""
            what = f"{type(found).__name__}{its}, no torch.Tensor of shape {shape}"
        elif not bool(torch.isfinite(found).all()):
            what = "numbers that are not finite"
        else:
            return found
        raise UnusableBatchError(f"server.analyzer returned {what}")

    return analyze


def try_analyzer(section: ServerSection, dimension: int, clients: int) -> None:
    """Try an analyzer of the user's own on made-up reports, several times, before round one.

    Raises `ConfigError` where it fails, returns no finite vector [dimension], or another one of the
    same reports: bits of a seeded run would depend on what was drawn before.
    """
    if ":" not in section.analyzer:
        return
    analyze, count = analyzer_of(section), max(1, min(clients, MADE_UP // dimension))
    made_up = torch.randn(count, dimension, generator=torch.Generator().manual_seed(0))
    try:
        first, *more = (
            analyze(Shuffled(count, reports=made_up.clone())).double() for _ in range(TRIED_TIMES)
        )
    except FlShuffleError:
        return  # so few are not enough for it
    except Exception as error:  # whatever the user's own code raises
        raises = f"server.analyzer raises {type(error).__name__}: {text_of(error)}"
        raise ConfigError(
            f"{error if isinstance(error, UnusableBatchError) else raises}; {section.analyzer!r} "
            f"was tried on {count:,} made-up reports of {dimension:,} numbers, and nothing is spent"
        ) from None
    atol = 1e-6 * float(first.abs().max())
    if not all(torch.allclose(first, again, rtol=1e-6, atol=atol) for again in more):
        raise ConfigError(
            f"server.analyzer = {section.analyzer!r} returns another result when it gets the same "
            "reports again; draw from torch.Generator().manual_seed(...), made in the function, "
            "and keep nothing from one call to the next"
        )
