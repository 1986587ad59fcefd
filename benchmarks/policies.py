"""What budgets of several sizes should decide: `scripts/bench policies` prints a table.

For each of the founding paper's budget distributions and each policy: the noise of a round's mean
beside a client's part in it, and what the rounds cost, proven. Public facts alone decide both;
nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import BudgetsSection, Config
from fl_shuffle.planner.cost import cost_of, plan_of

DISTRIBUTIONS = {
    "constant": "all 0.5",
    "mixed": "half 0.5, half 0.01",
    "unif1": "U(0.01, 1)",
    "unif2": "U(0.01, 2)",
    "unif3": "U(0.5, 1)",
}
CLIENTS, ROUNDS, DELTA = 1_000, 50, 1e-5
POLICIES: dict[str, dict[str, Any]] = {
    "noise scale": {},
    "noise scale, weights": {"server.weights": "inverse-variance"},
    "noise scale, 5 levels": {"budgets.levels": 5},
    "noise scale, 5 levels, weights": {
        "budgets.levels": 5,
        "server.weights": "inverse-variance",
    },
    "one level: the smallest": {"budgets.levels": 1},
    "clip": {"privacy.personalization": "clipping"},
    "clip, 9 reports": {"privacy.personalization": "clipping", "privacy.reports_per_round": 9},
}
"""Settings of each, with the distribution's budgets."""


def configuration(distribution: str, settings: dict[str, Any]) -> Config:
    """The distribution's budgets under a policy; of several reports a client and round each has
    sqrt(m) times the noise, so that their mean has the noise of one."""
    section = BudgetsSection(distribution=distribution)
    budgets: dict[str, Any] = {"distribution": distribution, "epsilon": 0.5}
    if distribution != "constant":
        del budgets["epsilon"]
    tables: dict[str, dict[str, Any]] = {
        "run": {"rounds": ROUNDS},
        "data": {"clients": CLIENTS, "records": 1},
        "privacy": {"unit": "client", "target_delta": DELTA},
        "budgets": budgets,
    }
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, {})[name] = value
    reports = tables["privacy"].get("reports_per_round", 1)
    if reports > 1:
        own = make_budgets(section, CLIENTS)
        mus = [gaussian_mu(e, d) for e, d in zip(own.epsilon, own.delta, strict=True)]
        epsilons = [gaussian_epsilon(section.delta, mu / reports**0.5) for mu in mus]
        tables["budgets"] = {"distribution": "listed", "epsilons": epsilons}
    return parse_config(tables)


def measured(distribution: str, policy: str) -> dict[str, Any]:
    """One row."""
    config = configuration(distribution, POLICIES[policy])
    plan, _ = plan_of(config)
    noise = plan.noise_of_mean(1)
    seen = _epsilons(config)
    summed = _epsilons(parse_config({
        **config.to_dict(), "privacy": {**config.to_dict()["privacy"], "release": "sum"}
    }))  # fmt: skip
    return {
        "distribution": distribution,
        "policy": policy,
        "noise": noise,
        "reports_worst": float(seen.max()),
        "reports_median": float(np.median(seen)),
        "sums_worst": float(summed.max()),
        "sums_median": float(np.median(summed)),
    }


def _epsilons(config: Config) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Every client's proven epsilon [n]."""
    costs, _ = cost_of(config)
    return np.repeat([each.epsilon for each in costs], [each.clients for each in costs])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| budgets | policy | noise of the mean | reports seen: worst, median | sums seen: worst, "
        "median |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        pairs = [f"{row[f'{kind}_worst']:.3g}, {row[f'{kind}_median']:.3g}"
                 for kind in ("reports", "sums")]  # fmt: skip
        lines.append(
            f"| {DISTRIBUTIONS[row['distribution']]} | {row['policy']} | {row['noise']:.3g} | "
            f"{' | '.join(pairs)} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """`scripts/bench policies`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("distributions", nargs="*", metavar="NAME", help=", ".join(DISTRIBUTIONS))
    given = parser.parse_args(arguments)
    names = given.distributions or list(DISTRIBUTIONS)
    for name in names:
        for policy in POLICIES:
            print(table([measured(name, policy)]).splitlines()[-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
