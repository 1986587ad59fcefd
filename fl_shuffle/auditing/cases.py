"""Canned federations: where published numbers break, and where they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config

DIMENSION = 60
"""Parameters of a canned case's model."""
FEW_TRIALS, MANY_TRIALS = 40, 2_000
"""Rounds of 10,000 clients, and of 1,000."""
SMALL_EPSILON = 0.01
"""The budget of a mix's other clients."""
# (share of the clients, their epsilon, how many clients, noise, whether the published mu breaks)
MIXES = (
    (0.01, 2.0, 1_000, "laplace", True),
    (0.01, 0.5, 10_000, "laplace", True),
    (0.5, 2.0, 10_000, "laplace", True),
    (0.1, 2.0, 10_000, "laplace", True),
    (0.01, 2.0, 10_000, "laplace", True),
    (0.5, 4.0, 10_000, "laplace", True),
    (0.5, 0.5, 10_000, "laplace", False),
    (0.01, 2.0, 10_000, "gaussian", True),
)


@dataclass(frozen=True)
class Case:
    """One configuration with canaries of `DIMENSION` parameters, and what theory expects of it."""

    name: str
    config: Config
    published_breaks: bool
    trials: int
    reports: int


def _mix(share: float, epsilon: float, clients: int, noise: str, breaks: bool) -> Case:
    """A share of clients at `epsilon`, all others at `SMALL_EPSILON`; unit = client."""
    tables = {
        "run": {"rounds": 1},
        "data": {"clients": clients},
        "privacy": {"unit": "client", "randomizer": noise, "target_delta": 1e-5},
        "budgets": {
            "distribution": "groups",
            "conservative": SMALL_EPSILON,
            "moderate": SMALL_EPSILON,
            "liberal": epsilon,
            "conservative_fraction": 1.0 - share,
            "moderate_fraction": 0.0,
            "delta": 0.0 if noise == "laplace" else 1e-5,
        },
    }
    name = (
        f"{share:.0%} of {clients:,} clients at {epsilon:g}, the rest at {SMALL_EPSILON:g} "
        f"({noise.title()})"
    )
    trials = FEW_TRIALS if clients == 10_000 else MANY_TRIALS
    # The least gap between what is published and what an attack reaches wants the most reports.
    reports = 1_000_000 if (share, epsilon) == (0.5, 2.0) else 400_000
    return Case(name, parse_config(tables), breaks, trials, reports)


def _record(clients: int, breaks: bool) -> Case:
    """Noise calibrated to one record of 600 at the classical (0.5, 1e-5)."""
    tables: Mapping[str, Any] = {
        "run": {"rounds": 50},
        "data": {"clients": clients, "records": 600},
        "privacy": {
            "unit": "record",
            "randomizer": "gaussian",
            "calibration": "classical",
            "target_delta": 1e-5,
        },
        "budgets": {"distribution": "constant", "epsilon": 0.5, "delta": 1e-5},
    }
    name = f"{clients:,} clients of 600 records at 0.5 (Gaussian)"
    return Case(name, parse_config(tables), breaks, MANY_TRIALS, 400_000)


def canned_cases() -> tuple[Case, ...]:
    """The cases of `fl-shuffle audit --cases`, under two minutes on two cores."""
    return (*(_mix(*mix) for mix in MIXES), _record(1_000, True), _record(100, False))
