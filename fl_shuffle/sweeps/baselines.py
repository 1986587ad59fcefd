"""The runs that a paper's figure sets beside a shuffled one: the same training without privacy,
with noise added once by a trusted server, and with local privacy alone, at the same epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from fl_shuffle.accounting.bisection import furthest
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilons
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import OPTIMIZERS, Config
from fl_shuffle.errors import ConfigError, NotApplicableError
from fl_shuffle.planner.cost import cost_of, plan_of
from fl_shuffle.sweeps.points import LOCAL, NONE, SHUFFLED, TRUSTED, changed

LEAST, MOST, START = 1e-5, 1e4, 1.0
"""Local budgets of one report that are tried."""
FAR_ABOVE = 4.0
"""Times the target: how much more an epsilon is does not guide the search."""

Changes = dict[str, Any]
"""`section.key` -> value; None leaves the setting out."""


def baselines_of(tables: Mapping[str, Any]) -> dict[str, Changes]:
    """Return what turns a configuration, given as tables, into each of its baselines.

    The configuration itself is `shuffled`. Its epsilon E, of the most exposed client after all
    rounds, is the target: with `trusted server` all clients have the noise of one budget, solved so
    that sums alone cost at most E, added once to each sum where the simulation can; with `local`
    one budget is solved so that a client's own noise, without any shuffler, costs at most E. A
    gradient that is not clipped is about as long as 1: without privacy the server's learning rate,
    taken for reports as they are, is multiplied by the clipping norm, unless the client trains
    several steps or the server's optimizer knows no scale.

    Raises `ConfigError` for a configuration that does not shuffle, `NotApplicableError` where a
    randomizer has no known distribution, or no budget keeps E.
    """
    config = parse_config(tables)
    _require_shuffled(config)
    target = cost_of(config).epsilon
    if not math.isfinite(target):
        raise NotApplicableError("--baselines: the shuffled run's epsilon is infinite")
    once = config.run.entropy == "seeded" and config.privacy.randomizer in ("gaussian", "laplace")
    summed = {
        "privacy.release": "sum",
        "privacy.min_reports": max(2, config.privacy.min_reports),
        "run.noise": "per-sum" if once and not config.app.custom else "per-report",
    }
    trusted, local = {**_one_budget(config), **summed}, _one_budget(config)
    trusted["budgets.epsilon"] = _solved(tables, trusted, target, _sum_epsilon)
    local["budgets.epsilon"] = _solved(tables, local, target, _local_epsilon)
    return {NONE: _without_privacy(config), TRUSTED: trusted, SHUFFLED: {}, LOCAL: local}


def _require_shuffled(config: Config) -> None:
    privacy, found = config.privacy, ""
    if config.training.schedule != "aggregate":
        found = "training.schedule = 'sequential' shuffles no batch: use aggregate"
    elif privacy.release != "reports" or privacy.shuffler != "server":
        found = "the configuration is the shuffled run: leave privacy.release and shuffler out"
    elif config.server.analyzer != "mean":
        found = "a trusted server has sums alone: use server.analyzer = 'mean'"
    elif privacy.randomizer in ("declared", "none"):
        found = f"privacy.randomizer = {privacy.randomizer!r} adds no noise: use gaussian"
    elif privacy.target_epsilon is not None or privacy.lifetime_epsilon is not None:
        found = "the baselines spend what the shuffled run does: leave out the limits"
    if found:
        raise ConfigError(f"--baselines: {found}")


def _one_budget(config: Config) -> Changes:
    """Return one budget for all clients, and noise that is equal for all."""
    gone = {f"budgets.{each.name}": None for each in fields(config.budgets)}
    return {**gone, "budgets.delta": config.budgets.delta, "privacy.personalization": None,
            "server.weights": None}  # fmt: skip


def _without_privacy(config: Config) -> Changes:
    left_out = (
        "clipping", "client_clip_norm", "personalization", "calibration", "reports_per_round",
    )  # fmt: skip
    found: Changes = {
        **_one_budget(config),
        **{f"privacy.{name}": None for name in left_out},
        "budgets.delta": None,
        "privacy.randomizer": "none",
        "run.noise": "per-report",
    }
    if OPTIMIZERS[config.server.optimizer] in ("sgd", "momentum"):
        rate = config.server.learning_rate / config.report_unit
        if config.training.single_step:
            rate *= config.privacy.clip_norm
        found["server.learning_rate"] = rate
    found["server.learning_rate_unit"] = None
    return found


def _sum_epsilon(config: Config) -> float:
    return cost_of(config).epsilon


def _local_epsilon(config: Config) -> float:
    """Return the most exposed client's epsilon of all its reports, each seen with its sender."""
    classes = plan_of(config)[0].classes
    every = np.arange(len(classes))
    rounds = np.full(len(classes), config.run.rounds * config.privacy.reports_per_round)
    delta = config.privacy.target_delta
    return float(local_epsilons(accounted_locally(classes), every, rounds, delta).max())


def _solved(
    tables: Mapping[str, Any],
    overrides: Changes,
    target: float,
    epsilon_of: Callable[[Config], float],
) -> float:
    """Return the largest budget of a report with which `epsilon_of` the configuration is within
    target."""

    def spare(budget: float) -> float:
        config = parse_config(changed(tables, {**overrides, "budgets.epsilon": budget}))
        return target - min(epsilon_of(config), FAR_ABOVE * target)

    found = furthest(spare, START, LEAST, MOST, whole=False, upwards=True)
    if found is None:
        raise NotApplicableError(f"--baselines: no local budget keeps epsilon <= {target:g}")
    return found
