"""Su, Cheng and Wang 2025: bounds of each randomizer, its joint reports, and parallel use.

The pictures there have no numbers in the text beside eps0 and the randomizers; here epsilon is
drawn against the number of reports at delta 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
from fl_shuffle.accounting.bounds.blanket import blanket_epsilon
from fl_shuffle.accounting.bounds.clones import standard_clone
from fl_shuffle.accounting.bounds.published import bennett_delta, hoeffding_delta, moments_epsilon
from fl_shuffle.accounting.distributions.composed import JointComposition, ParallelComposition
from fl_shuffle.accounting.distributions.continuous import LaplaceRandomizer
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer, KRandomizedResponse
from fl_shuffle.accounting.distributions.frequency_oracles import (
    BinaryLocalHashingDistribution,
    OptimizedUnaryEncodingDistribution,
    RapporDistribution,
)
from fl_shuffle.accounting.lower_bounds.chosen_datasets import lower_bound_epsilon

DELTA = 1e-6
JOINT = (2, 4)
MOMENTS = {"Hoeffding": hoeffding_delta, "Bennett": bennett_delta}
BASELINES = (*MOMENTS, "standard clone")
RANDOMIZERS: dict[str, Callable[[float], AccountedRandomizer]] = {
    "krr": lambda epsilon0: KRandomizedResponse(epsilon0, 10),
    "blh": BinaryLocalHashingDistribution,
    "rappor": RapporDistribution,
    "oue": OptimizedUnaryEncodingDistribution,
    "laplace": LaplaceRandomizer,
}

SHOWN = {"krr": "10-RR", "blh": "BLH", "rappor": "RAPPOR", "oue": "OUE", "laplace": "Laplace"}
UPPER, LOWER = "upper (proven here)", "lower (certified)"
BASELINE_STYLES: dict[str, dict[str, Any]] = {
    "Hoeffding": {"color": "C3", "ls": "--"},
    "Bennett": {"color": "C1", "ls": "--"},
    "standard clone": {"color": "0.4", "ls": "-."},
}
STYLES: dict[str, dict[str, Any]] = {
    UPPER: {"color": "C0", "lw": 2},
    LOWER: {"color": "C0", "ls": ":", "lw": 2},
    "2-joint upper": {"color": "C2"},
    "2-joint lower": {"color": "C2", "ls": ":"},
    "4-joint upper": {"color": "C4"},
    "4-joint lower": {"color": "C4", "ls": ":"},
    **BASELINE_STYLES,
}
Rows = Sequence[Mapping[str, Any]]


def both(randomizer: AccountedRandomizer, clients: int, label: str) -> dict[str, float]:
    """Upper and lower bound, by `label`."""
    return {
        f"{label} upper": blanket_epsilon(randomizer, clients, DELTA).epsilon,
        f"{label} lower": lower_bound_epsilon(randomizer, clients, DELTA).epsilon,
    }


def baselines(randomizer: AccountedRandomizer, clients: int, prefix: str = "") -> dict[str, float]:
    """The three bounds that the paper compares with."""
    local = randomizer.local_epsilon
    found = {
        f"{prefix}{label}": moments_epsilon(formula, local, clients, DELTA, randomizer)
        for label, formula in MOMENTS.items()
    }
    clone = standard_clone(local, clients, delta=DELTA).epsilon
    return {**found, f"{prefix}standard clone": clone}


def curves(name: str, epsilon0: float, clients: int) -> dict[str, Any]:
    """All bounds of one randomizer at one local budget."""
    alone = RANDOMIZERS[name](epsilon0)
    upper, lower = both(alone, clients, "").values()
    row = {"randomizer": name, "epsilon0": epsilon0, "clients": clients, UPPER: upper, LOWER: lower}
    for joint in JOINT:
        parts = (RANDOMIZERS[name](epsilon0 / joint),) * joint
        row |= both(JointComposition(parts), clients, f"{joint}-joint")
    return row | baselines(alone, clients)


def parallel_curves(epsilon0: float, clients: int) -> dict[str, Any]:
    """10-RR, BLH, and each with probability one half."""
    krr, blh = (RANDOMIZERS[name](epsilon0) for name in ("krr", "blh"))
    mixed = ParallelComposition(((0.5, krr), (0.5, blh)))
    row: dict[str, Any] = {"epsilon0": epsilon0, "clients": clients}
    for label, asked in (("10-RR", krr), ("BLH", blh), ("parallel", mixed)):
        row |= both(asked, clients, label)
    return row | baselines(mixed, clients, "parallel ")


def _panel(shown: str, epsilon0: float, rows: Rows, styles: Mapping[str, Any]) -> Panel:
    return Panel(
        f"{shown}, eps0 = {epsilon0:g}", rows, "clients", styles,
        f"central epsilon at delta = {DELTA:g}", xlabel="reports n", logx=True,
    )  # fmt: skip


def _figure(options: Options, settings: Settings) -> Result:
    rows: list[dict[str, Any]] = []
    parts = []
    largest: dict[float, dict[str, float]] = {epsilon0: {} for epsilon0 in settings["epsilon0"]}
    for name in settings["randomizers"]:
        shown = SHOWN[name]
        for epsilon0 in settings["epsilon0"]:
            options.say(f"{shown}, eps0 = {epsilon0:g}")
            found = [curves(name, epsilon0, n) for n in settings["clients"]]
            rows += found
            parts.append(_panel(shown, epsilon0, found, STYLES))
            largest[epsilon0][shown] = max(_less(found, LOWER, UPPER))
    best = [{**row, "best": min(row[label] for label in BASELINES)} for row in rows]
    facts = {
        "points": len(rows),
        "gains": _less(best, UPPER, "best"),
        "joint": _less(rows, "4-joint upper", UPPER),
        "ordered": sum(row["4-joint upper"] < row["2-joint upper"] < row[UPPER] for row in rows),
        "clone": sum(row["standard clone"] > row["Bennett"] for row in rows),
        "largest": largest,
    }
    return Result({"bounds": rows}, {"bounds": panels(parts, 2)}, facts)


def _less(rows: Rows, smaller: str, larger: str) -> list[float]:
    """By which share one column is below another, row by row."""
    return [1.0 - row[smaller] / row[larger] for row in rows]


def _parallel(_: Options, settings: Settings) -> Result:
    (epsilon0,) = settings["epsilon0"]
    rows = [parallel_curves(epsilon0, n) for n in settings["clients"]]
    colours = {"10-RR": "C1", "BLH": "C2", "parallel": "C0"}
    styles = {
        f"{label} {side}": {"color": colour, "ls": "-" if side == "upper" else ":"}
        for label, colour in colours.items()
        for side in ("upper", "lower")
    }
    styles |= {f"parallel {label}": style for label, style in BASELINE_STYLES.items()}
    parts = [(row["10-RR upper"], row["parallel upper"], row["BLH upper"]) for row in rows]
    best = [{**row, "best": min(row[f"parallel {label}"] for label in BASELINES)} for row in rows]
    facts = {
        "points": len(rows),
        "between": sum(min(a, b) <= both <= max(a, b) for a, both, b in parts),
        "last": rows[-1],
        "gains": _less(best, "parallel upper", "best"),
        "gaps": _less(rows, "parallel lower", "parallel upper"),
    }
    figure = panels([_panel("10-RR and BLH", epsilon0, rows, styles)], 1)
    return Result({"bounds": rows}, {"bounds": figure}, facts)


TARGETS = {
    "su2025-figure-2": _figure,
    "su2025-figure-3": _figure,
    "su2025-figure-5": _parallel,
    "su2025-figure-6": _parallel,
}
