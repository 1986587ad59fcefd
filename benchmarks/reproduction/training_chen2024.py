"""Chen, Cao and Ge 2024: federated training on MNIST, as published and with correct clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.reproduction.core import Options, Panel, Result, Target, panels
from benchmarks.reproduction.training_runs import dataset_name, settings_of, train_each

# Distribution of local budgets -> accuracy the paper reports.
GSPA_CLAIMS = {
    "unif1": "",
    "unif2": "93.5%",
    "unif3": "96.78% (best of all)",
    "constant": "94.8%",
    "mixed": "",
}
SHOWN = {
    "unif1": "Unif 1: U(0.01, 1)",
    "unif2": "Unif 2: U(0.01, 2)",
    "unif3": "Unif 3: U(0.5, 1)",
    "constant": "constant 0.5",
    "mixed": "half 0.5, half 0.01",
}
AS_PUBLISHED = ("privacy.clip=average", "privacy.calibration=as-published")
VERSIONS = {"as published": AS_PUBLISHED, "every record clipped": ()}
TITLES = {
    "as published": "as published (not private as labelled)",
    "every record clipped": "every record clipped (honest)",
}


def _gspa_distributions(options: Options) -> list[str]:
    return ["constant", "unif2"] if options.fast else list(GSPA_CLAIMS)


def _gspa_parameters(options: Options) -> Mapping[str, Any]:
    return {
        "distributions": _gspa_distributions(options),
        "versions": {name: list(settings) for name, settings in VERSIONS.items()},
        "configurations": settings_of(["mnist_gspa"]),
    }


def _gspa(options: Options) -> Result:
    rows: list[dict[str, Any]] = []
    epochs, parts, last = [], [], {}
    wanted = [
        ("mnist_gspa", (f"budgets.distribution={name}", *settings))
        for settings in VERSIONS.values()
        for name in _gspa_distributions(options)
    ]
    outcomes = iter(train_each(options, wanted))
    for version in VERSIONS:
        curves: dict[str, list[float]] = {}
        x: list[int] = []
        for name in _gspa_distributions(options):
            outcome = next(outcomes)
            x = [number for number, _ in outcome.rounds]
            curves[SHOWN[name]] = [100.0 * accuracy for _, accuracy in outcome.rounds]
            last[version, name] = outcome
            rows.append(
                {
                    "budgets": name,
                    "version": version,
                    "paper": GSPA_CLAIMS[name],
                    "accuracy": outcome.accuracy,
                    "best epoch": outcome.best,
                    "published epsilon (GSPA)": outcome.column("gspa"),
                    "proven epsilon": outcome.proven,
                    "seconds": round(outcome.seconds, 1),
                }
            )
            epochs += [
                {"budgets": name, "version": version, "epoch": number, "accuracy": accuracy}
                for number, accuracy in outcome.rounds
            ]
        title = f"{TITLES[version]}, {dataset_name(options)}"
        parts.append(Panel(title, x, curves, "epoch", "test accuracy, %", logy=False))

    def listed(version: str) -> str:
        return "; ".join(
            f"{name} {last[version, name].accuracy:.2%}" for name in _gspa_distributions(options)
        )

    published, honest = (last[version, "constant"] for version in VERSIONS)
    return Result(
        {"table3": rows, "figure4": epochs},
        {"figure4": panels(parts, 2)},
        f"Test accuracy on {dataset_name(options)} after the last epoch, one seed, the average "
        f"clipped and the noise as published: {listed('as published')}. The paper gives no "
        f"width for the network; here it has {outcome.width} hidden units (widths of 300 and 1000 "
        f"were tried, and the one nearer to the paper's numbers kept). At constant 0.5 the "
        f"published formula says epsilon {published.column('gspa'):.3g}; the noise really gives "
        f"{published.proven:.3g}. Training took {sum(row['seconds'] for row in rows):.0f} s for "
        f"{len(rows)} runs.",
        "The same noise is right if every record's gradient is clipped instead: "
        f"{listed('every record clipped')}; at constant 0.5 epsilon {honest.proven:.3g} is proven "
        "(local: in a sequential schedule the shuffler adds nothing).",
    )


RENYI_VERSIONS = {"every record clipped": (), "average clipped": AS_PUBLISHED}
RENYI_TITLES = {
    "every record clipped": "every record clipped (honest)",
    "average clipped": "average clipped (not private as labelled)",
}
RENYI_BLOCKS = 200


def _renyi_epsilons(options: Options) -> list[float]:
    return [0.5, 2.0] if options.fast else [0.1, 0.5, 1.0, 2.0]


def _renyi_parameters(options: Options) -> Mapping[str, Any]:
    return {
        "epsilon0": _renyi_epsilons(options),
        "versions": {name: list(settings) for name, settings in RENYI_VERSIONS.items()},
        "configurations": settings_of(["mnist_rdp"]),
    }


def renyi_epsilon(epsilon0: float, epochs: int, blocks: int, delta: float) -> float:
    """Chen, Cao, Ge (ICASSP 2024), Theorem 3: mu = 2 sqrt(T / (m - 1)) e^(eps0 / 2), as epsilon.

    As published: T epochs over m blocks; the exact conversion of mu-Gaussian DP at `delta`.
    """
    from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon

    return gaussian_epsilon(delta, 2.0 * math.sqrt(epochs / (blocks - 1)) * math.exp(epsilon0 / 2))


def _renyi(options: Options) -> Result:
    rows: list[dict[str, Any]] = []
    epochs, by_epoch = [], []
    curves: dict[str, list[float]] = {}
    epsilons = _renyi_epsilons(options)
    wanted = [
        ("mnist_rdp", (f"budgets.epsilon={epsilon0}", *settings))
        for settings in RENYI_VERSIONS.values()
        for epsilon0 in epsilons
    ]
    outcomes = iter(train_each(options, wanted))
    for version in RENYI_VERSIONS:
        curves[version] = []
        progress: dict[str, list[float]] = {}
        x: list[int] = []
        for epsilon0 in epsilons:
            outcome = next(outcomes)
            curves[version].append(100.0 * outcome.accuracy)
            x = [number for number, _ in outcome.rounds]
            progress[f"eps0 = {epsilon0:g}"] = [100.0 * each for _, each in outcome.rounds]
            rows.append(
                {
                    "epsilon0": epsilon0,
                    "version": version,
                    "accuracy": outcome.accuracy,
                    "best epoch": outcome.best,
                    "published epsilon (Theorem 3)": renyi_epsilon(
                        epsilon0,
                        int(outcome.summary["rounds"]),
                        RENYI_BLOCKS,
                        float(outcome.summary["delta"]),
                    ),
                    "proven epsilon": outcome.proven,
                    "seconds": round(outcome.seconds, 1),
                }
            )
            epochs += [
                {"epsilon0": epsilon0, "version": version, "epoch": number, "accuracy": accuracy}
                for number, accuracy in outcome.rounds
            ]
        title = f"{RENYI_TITLES[version]}, {dataset_name(options)}"
        by_epoch.append(Panel(title, x, progress, "epoch", "test accuracy, %", logy=False))

    def listed(version: str, key: str, form: str) -> str:
        chosen = [row for row in rows if row["version"] == version]
        return "; ".join(f"{row['epsilon0']:g}: {row[key]:{form}}" for row in chosen)

    panel = Panel(
        f"{dataset_name(options)}, Laplace noise",
        epsilons,
        {RENYI_TITLES[version]: values for version, values in curves.items()},
        "local epsilon of a report",
        "test accuracy, % (last epoch)",
        logy=False,
    )
    return Result(
        {"table2": rows, "epochs": epochs},
        {"figure4": panels(by_epoch, 2), "accuracy": panels([panel], 1)},
        f"Test accuracy on {dataset_name(options)} after the last epoch, one seed, by local "
        f"epsilon, with {outcome.width} hidden units (the paper gives no number). With the "
        "averaged gradient clipped at C = 10, the noise as published: "
        f"{listed('average clipped', 'accuracy', '.2%')}; the epsilon really given is "
        f"{listed('average clipped', 'proven epsilon', '.3g')}. Training took "
        f"{sum(row['seconds'] for row in rows):.0f} s for {len(rows)} runs.",
        "With every record clipped, as Algorithm 1 is written, the noise is right: "
        f"{listed('every record clipped', 'accuracy', '.2%')}. Proven after all epochs, delta "
        f"1e-5: {listed('every record clipped', 'proven epsilon', '.3g')} (local: in a sequential "
        "schedule the shuffler adds nothing); Theorem 3 as published: "
        f"{listed('every record clipped', 'published epsilon (Theorem 3)', '.3g')}.",
    )


TARGETS = {
    target.name: target
    for target in (
        Target(
            "chen2024-gspa-table-3",
            "Table 3 and Figure 4: accuracy for five distributions of budgets",
            "Chen, Cao, Ge 2024 (GSPA)",
            "96.78% at best after about 50 epochs; constant 0.5 gives 94.8%, U(0.01, 2) 93.5%.",
            _gspa_parameters,
            _gspa,
        ),
        Target(
            "chen2024-renyi-table-2",
            "Table 2 and Figure 4: accuracy against the local epsilon, Laplace noise",
            "Chen, Cao, Ge 2024 (Renyi)",
            "97.07% after about 50 epochs; close to the accuracy without noise for a local "
            "epsilon above 1.",
            _renyi_parameters,
            _renyi,
        ),
    )
}
