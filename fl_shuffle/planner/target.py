"""A configuration's most rounds, reports or budget, or least clients, for a target epsilon."""

from __future__ import annotations

from fl_shuffle.accounting.bisection import furthest
from fl_shuffle.budgets import are_totals
from fl_shuffle.configuration.reading import SETTINGS, overridden, value_of
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_choice, require_real
from fl_shuffle.planner.cost import Cost, cost_of

SOLVABLE = {
    "rounds": ("run.rounds", True),
    "reports_per_round": ("privacy.reports_per_round", True),
    "epsilon0": ("budgets.epsilon", True),
    "clients": ("data.clients", False),
}
"""What can be solved for: its setting, and whether more of it costs privacy."""
FAR_ABOVE = 4.0
"""Times the target: how much more an epsilon is does not guide the search."""
MOST = 1e7
"""Nothing beyond is tried, of settings without an end of their own."""


def solve_configuration(config: Config, name: str, epsilon: float) -> tuple[float, Config, Cost]:
    """Return the most of `name` (the least of clients) with which the most exposed client's epsilon
    is at most `epsilon` (nats, at the configuration's target delta), the configuration with it, and
    its cost.

    Public facts alone decide: budgets, clients, rounds. Raises `NotApplicableError` where no value
    keeps the target, `InvalidValueError` for a target that is none, or budgets of several sizes.
    """
    key, costs = SOLVABLE[require_choice("--solve-for", name, SOLVABLE)]
    if config.privacy.randomizer == "none":
        raise NotApplicableError(
            "privacy.randomizer = 'none' has an infinite epsilon: no setting keeps a target"
        )
    if config.privacy.randomizer == "declared" and name != "rounds":
        raise InvalidValueError(
            "--solve-for", name, "must be rounds for declared noise",
            "the others change privacy.declared_sigma, and train with that",
        )  # fmt: skip
    if are_totals(config.budgets):
        raise InvalidValueError(
            "--solve-for", name, "cannot be combined with totals of the run: the noise follows "
            "from "
            "them, so every value meets them", "leave out --solve-for and --epsilon: the "
            "cost shows what each total buys",
        )  # fmt: skip
    target = require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True)
    if name == "epsilon0" and config.budgets.distribution != "constant":
        raise InvalidValueError(
            "budgets.distribution", config.budgets.distribution, "must be constant to be solved for"
        )
    if name == "clients" and config.budgets.distribution in ("file", "listed"):
        raise InvalidValueError(
            "budgets.distribution", config.budgets.distribution,
            "names each client's budget, so the number of clients is fixed",
            "solve for rounds, or take a distribution of budgets (groups, uniform, constant)",
        )  # fmt: skip
    spec = SETTINGS[key]
    whole = spec.kind.startswith("int")
    least = float(spec.least or (1 if whole else 1e-3))
    most = min(float(spec.most or MOST), MOST)

    def with_value(value: float) -> Config:
        return overridden(config.to_dict(), {key: int(value) if whole else value})

    def spare(value: float) -> float:
        return target - min(cost_of(with_value(value)).epsilon, FAR_ABOVE * target)

    start = float(str(value_of(config, key)))
    value = furthest(spare, start, least, most, whole=whole, upwards=costs)
    if value is None:
        raise NotApplicableError(
            f"no {key} in [{least:g}, {most:g}] keeps epsilon <= {target:g} at delta = "
            f"{config.privacy.target_delta:g}"
        )
    solved = with_value(value)
    return value, solved, cost_of(solved)
