"""Means and frequencies from randomized reports with personal budgets, without a federation.

`fl_shuffle.private_mean` and `fl_shuffle.private_frequencies` do all steps in one call. The steps
are: a randomizer (`BoundedRandomizer`, or a `FrequencyOracle`), an estimate (`estimate_mean`,
`estimate_frequency`), its error before any report (`expected_mean_error`,
`expected_frequency_error`), and the central epsilon of the shuffle (`central_guarantee`).
"""

from __future__ import annotations

from fl_shuffle.estimators.central import central_guarantee
from fl_shuffle.estimators.estimates import (
    ESTIMATORS,
    Estimate,
    estimate_frequency,
    estimate_mean,
    expected_frequency_error,
    expected_mean_error,
    needs_budgets,
)
from fl_shuffle.estimators.inputs import require_budgets
from fl_shuffle.estimators.numbers import BOUNDED, BoundedRandomizer
from fl_shuffle.estimators.oracles import (
    ORACLES,
    FrequencyOracle,
    HadamardOracle,
    KaryRandomizedResponse,
    LocalHashingOracle,
    OptimizedUnaryOracle,
    RapporOracle,
)
from fl_shuffle.estimators.private import PrivateEstimate, private_frequencies, private_mean

__all__ = [
    "BOUNDED",
    "ESTIMATORS",
    "ORACLES",
    "BoundedRandomizer",
    "Estimate",
    "FrequencyOracle",
    "HadamardOracle",
    "KaryRandomizedResponse",
    "LocalHashingOracle",
    "OptimizedUnaryOracle",
    "PrivateEstimate",
    "RapporOracle",
    "central_guarantee",
    "estimate_frequency",
    "estimate_mean",
    "expected_frequency_error",
    "expected_mean_error",
    "needs_budgets",
    "private_frequencies",
    "private_mean",
    "require_budgets",
]
