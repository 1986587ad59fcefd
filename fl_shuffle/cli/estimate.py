"""`fl-shuffle estimate`: a mean or frequencies, estimated from randomized reports."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from fl_shuffle.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fl_shuffle.budgets import Budgets
    from fl_shuffle.estimators.weights import Estimate

SUMMARY = "Estimate a mean or frequencies from locally randomized reports with personal budgets."

MEAN_RANDOMIZERS = ("laplace", "gaussian", "duchi")
FREQUENCY_RANDOMIZERS = ("krr", "oue", "rappor", "blh", "hadamard")
ESTIMATORS = ("unbiased", "published", "inverse-variance")


def configure(parser: argparse.ArgumentParser) -> None:
    quantities = parser.add_subparsers(dest="quantity", required=True, metavar="mean|frequency")
    mean = quantities.add_parser(
        "mean", help="the mean of one number per client",
        description="Estimate the mean of one number per client.",
    )  # fmt: skip
    frequency = quantities.add_parser(
        "frequency", help="the share of each category",
        description="Estimate the share of each category, one per client.",
    )  # fmt: skip
    for sub, randomizers in ((mean, MEAN_RANDOMIZERS), (frequency, FREQUENCY_RANDOMIZERS)):
        sub.add_argument(
            "--data",
            required=True,
            metavar="FILE.csv",
            help="columns client_id,value; clients numbered, or named, as in the budgets; where "
            "only one file names them, its lines count from 0 as they stand",
        )
        sub.add_argument(
            "--budgets",
            required=True,
            metavar="FILE.csv",
            help="columns client_id,epsilon,delta: each client's local budget",
        )
        sub.add_argument(
            "--randomizer",
            choices=randomizers,
            default=randomizers[0],
            metavar="NAME",
            help=f"{', '.join(randomizers)} (default: {randomizers[0]})",
        )
        sub.add_argument(
            "--estimator",
            choices=ESTIMATORS,
            default="unbiased",
            metavar="NAME",
            help="unbiased (always; the default), published (Chen, Cao, Ge 2024), or "
            "inverse-variance (most precise); the last two are unbiased only if budgets are "
            "independent of the data",
        )
        sub.add_argument(
            "--confidence", type=float, default=0.95, metavar="P",
            help="of each interval (default: 0.95)",
        )  # fmt: skip
        sub.add_argument(
            "--seed", type=int, metavar="N",
            help="reproducible noise, for simulations (default: system entropy)",
        )  # fmt: skip
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    mean.add_argument(
        "--low", type=float, metavar="X", required=True, help="public lower end of the range"
    )
    mean.add_argument(
        "--high", type=float, metavar="Y", required=True, help="public upper end of the range"
    )
    mean.add_argument(
        "--clip", action="store_true", help="move values outside the range to its ends"
    )
    frequency.add_argument(
        "--categories",
        metavar="A,B,...",
        help="the public list of categories; default: those found in the data",
    )


def run(args: argparse.Namespace) -> int:
    from fl_shuffle.budgets import BY_PLACE, read_budgets
    from fl_shuffle.estimators.tables import read_values
    from fl_shuffle.seeds import SeedTree

    values, names = read_values(args.data)
    budgets = read_budgets(args.budgets, len(values), names)
    rng = SeedTree(args.seed).numpy_generator("estimate", args.quantity)
    quantity = _mean if args.quantity == "mean" else _frequency
    answer = quantity(args, values, budgets, rng)
    if budgets.by_place:
        answer["notes"].append(BY_PLACE)
    print(json.dumps(answer) if args.json else _text(answer))
    return 0


def _mean(
    args: argparse.Namespace, values: list[str], budgets: Budgets, rng: np.random.Generator
) -> dict[str, Any]:
    import numpy as np

    from fl_shuffle.estimators.mean import estimate_mean
    from fl_shuffle.estimators.tables import as_numbers
    from fl_shuffle.randomizers.bounded import BoundedRandomizer

    delta = budgets.delta if args.randomizer == "gaussian" else 0.0
    randomizer = BoundedRandomizer(args.randomizer, args.low, args.high, delta)
    numbers = as_numbers(values)
    if args.clip:
        numbers = np.clip(numbers, args.low, args.high)
    reports = randomizer.randomize(numbers, budgets.epsilon, rng)
    estimate = estimate_mean(
        reports,
        budgets.epsilon,
        randomizer,
        estimator=args.estimator,
        confidence=args.confidence,
    )
    return _answer(args, len(values), estimate, ["mean"], np.array([numbers.mean()]))


def _frequency(
    args: argparse.Namespace, values: list[str], budgets: Budgets, rng: np.random.Generator
) -> dict[str, Any]:
    import numpy as np

    from fl_shuffle.estimators.frequency import estimate_frequency
    from fl_shuffle.estimators.tables import as_codes
    from fl_shuffle.randomizers.categorical import categorical_randomizer

    if args.categories is None:
        categories = sorted(set(values))
    else:
        categories = [name.strip() for name in args.categories.split(",")]
    if "" in categories or len(set(categories)) < max(2, len(categories)):
        raise ConfigError(
            f"categories = {','.join(categories)}: must be at least two distinct names; "
            "give the public list with --categories A,B,..."
        )
    codes = as_codes(values, categories)
    randomizer = categorical_randomizer(args.randomizer, len(categories))
    estimate = estimate_frequency(
        randomizer.randomize(codes, budgets.epsilon, rng),
        budgets.epsilon,
        randomizer,
        estimator=args.estimator,
        confidence=args.confidence,
    )
    truth = np.bincount(codes, minlength=len(categories)) / len(codes)
    answer = _answer(args, len(values), estimate, categories, truth)
    if args.categories is None:
        answer["notes"].append(
            "the list of categories was read from the data, which is not private"
        )
    return answer


def _answer(
    args: argparse.Namespace,
    clients: int,
    estimate: Estimate,
    names: list[str],
    truth: NDArray[np.float64],
) -> dict[str, Any]:
    notes = []
    if args.seed is not None:
        notes.append("simulation: whoever knows the seed can remove the noise")
    return {
        "quantity": args.quantity,
        "clients": clients,
        "randomizer": args.randomizer,
        "estimator": args.estimator,
        "unbiased": estimate.unbiased,
        "confidence": estimate.confidence,
        "seed": args.seed,
        "notes": notes,
        "results": [
            {
                "name": name,
                "estimate": float(estimate.value[i]),
                "standard_error": float(estimate.error[i]),
                "low": float(estimate.low[i]),
                "high": float(estimate.high[i]),
                "true_value_not_private": float(truth[i]),
            }
            for i, name in enumerate(names)
        ],
    }


def _text(answer: dict[str, Any]) -> str:
    width = max(8, *(len(row["name"]) for row in answer["results"]))
    percent = f"{100 * answer['confidence']:g}%"
    lines = [
        f"{answer['quantity']} of {answer['clients']:,} clients, randomizer "
        f"{answer['randomizer']}, estimator {answer['estimator']} "
        f"(unbiased {answer['unbiased']})",
        f"{'':{width}}  {'estimate':>12}  {percent + ' interval':^28}  {'true (not private)':>18}",
    ]
    lines += [
        f"{row['name']:{width}}  {row['estimate']:12.6g}  "
        f"{row['low']:>12.6g} .. {row['high']:<12.6g}  {row['true_value_not_private']:18.6g}"
        for row in answer["results"]
    ]
    return "\n".join(lines + [f"note: {note}" for note in answer["notes"]])
