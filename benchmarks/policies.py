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

import fl_shuffle as fs
from benchmarks.tables import markdown
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.sections import BudgetsSection

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
HEADS = (
    *("budgets", "policy", "noise of the mean"),
    *("reports seen: worst, median", "sums seen: worst, median"),
)


def settings_of(distribution: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The distribution's budgets under a policy; of several reports a client and round each has
    sqrt(m) times the noise, so that their mean has the noise of one."""
    settings = {
        "run.rounds": ROUNDS,
        "data.clients": CLIENTS,
        "data.records_per_client": 1,
        "privacy.unit": "client",
        "privacy.target_delta": DELTA,
        "budgets.distribution": distribution,
        **({"budgets.epsilon": 0.5} if distribution == "constant" else {}),
        **settings,
    }
    reports = settings.get("privacy.reports_per_round", 1)
    if reports > 1:
        own = make_budgets(BudgetsSection(distribution=distribution), CLIENTS)
        mus = [gaussian_mu(e, d) for e, d in zip(own.epsilon, own.delta, strict=True)]
        delta = BudgetsSection().delta
        epsilons = [gaussian_epsilon(delta, mu / reports**0.5) for mu in mus]
        settings |= {"budgets.distribution": "listed", "budgets.epsilons": epsilons}
        settings.pop("budgets.epsilon", None)
    return settings


def cells(distribution: str, policy: str) -> list[str]:
    """One row."""
    settings = settings_of(distribution, POLICIES[policy])
    spent = []
    for release in ("reports", "sum"):
        cost = fs.cost({}, overrides={**settings, "privacy.release": release})
        counts = [each.clients for each in cost.classes]
        epsilons = np.repeat([each.epsilon for each in cost.classes], counts)
        spent.append(f"{epsilons.max():.3g}, {np.median(epsilons):.3g}")
    return [DISTRIBUTIONS[distribution], policy, f"{cost.noise_of_mean:.3g}", *spent]


def main(arguments: list[str] | None = None) -> int:
    """`scripts/bench policies`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("distributions", nargs="*", metavar="NAME", help=", ".join(DISTRIBUTIONS))
    given = parser.parse_args(arguments)
    for name in given.distributions or list(DISTRIBUTIONS):
        print(markdown(HEADS, (cells(name, policy) for policy in POLICIES)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
