"""Every bound by number of clients: the table and figure of docs/reference/bounds.md.

    python -m benchmarks.bounds_by_clients docs/reference/bounds_by_clients.svg

draws the figure, of the numbers that stand in tests/golden/epsilons.json (`scripts/generate
--epsilons` computes them). They are the tool's own `bound`, and formulas of papers
(`fl_shuffle.accounting.bounds.published`); the one whose proof is withdrawn is computed here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.turns import ROOT
from fl_shuffle.accounting.bounds.clones import clone_curve
from fl_shuffle.accounting.bounds.published import (
    bennett_delta,
    feldman2022_epsilon,
    moments_epsilon,
)
from fl_shuffle.accounting.numerics.monotone_search import solve
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.errors import FlShuffleError

CLIENTS = tuple(10**power for power in range(2, 9))
COMMON: dict[str, Any] = {"epsilon0": 1.0, "delta": 1e-6}
GAUSSIAN = {**COMMON, "randomizer": "gaussian", "delta0": 1e-5, "unit": "client"}
GAUSSIAN["calibration"] = "classical"  # the noise that the papers compare at
WITHDRAWN = "FMT 2023, Wang et al. (proof withdrawn)"
COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "GSPA, as published": ({**COMMON, "method": "gspa"}, "x:"),
    "Balle et al., Bennett": ({**COMMON, "method": "bennett"}, "v--"),
    "FMT 2022, closed form": ({**COMMON, "method": "feldman2022"}, "^--"),
    "FMT 2022 clone, exact": ({**COMMON, "method": "clone"}, "s--"),
    WITHDRAWN: ({**COMMON, "method": "withdrawn"}, "x-"),
    "profile (new)": ({**COMMON, "method": "profile"}, "o-"),
    "attained, binary response": (
        {**COMMON, "method": "lower", "randomizer": "krr", "k": 2},
        "k+",
    ),
    "Su et al. (blanket), Laplace": (
        {**COMMON, "method": "blanket", "randomizer": "laplace"},
        "+-.",
    ),
    "proven (new), Gaussian vectors": ({**GAUSSIAN, "method": "vector"}, "D-"),
    "attack, Gaussian vectors": ({**GAUSSIAN, "method": "attack"}, "k."),
}


def withdrawn(clients: int) -> float:
    """What clones of mass 2/(1 + e^eps0) would give: no proof for general randomizers."""
    epsilon0 = COMMON["epsilon0"]
    curve = clone_curve(epsilon0, [(2.0 / (1.0 + math.exp(epsilon0)), clients - 1)])
    return solve(curve, epsilon0, epsilon=None, delta=COMMON["delta"])[0]


PUBLISHED: dict[str, Callable[[int], float]] = {
    "bennett": lambda n: moments_epsilon(bennett_delta, COMMON["epsilon0"], n, COMMON["delta"]),
    "feldman2022": lambda n: feldman2022_epsilon(COMMON["epsilon0"], n, COMMON["delta"]),
    "withdrawn": withdrawn,
}
"""What papers print, and no method of the tool."""


def epsilon(query: dict[str, Any], clients: int) -> float | None:
    """Return the method's epsilon for this number of clients; None where it does not apply."""
    try:
        if query["method"] in PUBLISHED:
            return PUBLISHED[query["method"]](clients)
        return bound(BoundQuery.from_mapping({**query, "clients": clients})).epsilon
    except FlShuffleError as refusal:
        print(f"{query['method']} at {clients}: {refusal}", file=sys.stderr)
        return None


def main() -> None:
    """Draw."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "bounds", "svg.fonttype": "none"})
    from matplotlib import pyplot

    numbers = json.loads((ROOT / "tests/golden/epsilons.json").read_text("utf-8"))["side by side"]
    figure, axes = pyplot.subplots(figsize=(7.5, 5.0))
    for name, (_, style) in COLUMNS.items():
        points = [(int(n), row[name]) for n, row in numbers.items() if row[name] is not None]
        axes.loglog(*zip(*points, strict=True), style, label=name, markersize=4, linewidth=1.2)
    axes.set_xlabel("clients")
    axes.set_ylabel("epsilon after shuffling, delta = 1e-6")
    axes.set_title("local epsilon 1, one round")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(sys.argv[1], format="svg", metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
