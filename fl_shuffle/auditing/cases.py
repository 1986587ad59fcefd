"""Canned federations: where published numbers break, and where they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config

DIMENSION = 60
"""Parameters of a canned case's model."""


@dataclass(frozen=True)
class Case:
    """One configuration with canaries of `dimension` parameters, and what theory expects of it."""

    name: str
    config: Config
    published_breaks: bool
    trials: int
    reports: int
    dimension: int = DIMENSION


def _mix(
    share: float, epsilon: float, *, clients: int, noise: str, delta: float = 0.0
) -> Mapping[str, Any]:
    """A share of clients at `epsilon`, all others at 0.01; noise personal, unit = client."""
    return {
        "run": {"rounds": 1},
        "data": {"clients": clients},
        "privacy": {"unit": "client", "randomizer": noise, "target_delta": 1e-5},
        "budgets": {
            "distribution": "groups",
            "conservative": 0.01,
            "moderate": 0.01,
            "liberal": epsilon,
            "conservative_fraction": 1.0 - share,
            "moderate_fraction": 0.0,
            "delta": delta,
        },
    }


def _record(clients: int) -> Mapping[str, Any]:
    """Noise calibrated to one record of 600 at the classical (0.5, 1e-5)."""
    return {
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


def _case(
    name: str, tables: Mapping[str, Any], breaks: bool, trials: int, reports: int = 400_000
) -> Case:
    return Case(name, parse_config(tables), breaks, trials, reports)


def canned_cases() -> tuple[Case, ...]:
    """The cases of `fl-shuffle audit --cases`, under two minutes on two cores."""
    mix = [(0.01, 0.5), (0.5, 2.0), (0.1, 2.0), (0.01, 2.0), (0.5, 4.0)]
    laplace = [
        _case(
            f"{share:.0%} of 10,000 clients at {epsilon:g}, the rest at 0.01 (Laplace)",
            _mix(share, epsilon, clients=10_000, noise="laplace"),
            True,
            40,
            1_000_000 if share == 0.5 else 400_000,
        )
        for share, epsilon in mix
    ]
    return (
        _case(
            "1% of 1,000 clients at 2, the rest at 0.01 (Laplace)",
            _mix(0.01, 2.0, clients=1_000, noise="laplace"),
            True,
            2_000,
        ),
        *laplace,
        _case(
            "50% of 10,000 clients at 0.5, the rest at 0.01 (Laplace)",
            _mix(0.5, 0.5, clients=10_000, noise="laplace"),
            False,
            40,
        ),
        _case(
            "1% of 10,000 clients at 2, the rest at 0.01 (Gaussian)",
            _mix(0.01, 2.0, clients=10_000, noise="gaussian", delta=1e-5),
            True,
            40,
        ),
        _case("1,000 clients of 600 records at 0.5 (Gaussian)", _record(1_000), True, 2_000),
        _case("100 clients of 600 records at 0.5 (Gaussian)", _record(100), False, 2_000),
    )
