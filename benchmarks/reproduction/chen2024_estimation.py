"""Chen, Cao and Ge 2024 (GSPA), Figure 3: mean and frequency estimation under personal budgets.

Users are conservative, moderate or liberal (eps_C, 0.5, 1); every repetition draws new data, new
reports and every estimate with the library's own randomizers and estimators. The error is that of
the mean (or share) of the users at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction.core import Options, Panel, Result, Target, panels
from fl_shuffle.accounting.bounds.blanket import blanket_epsilon
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.estimators import (
    BoundedRandomizer,
    KaryRandomizedResponse,
    estimate_frequency,
    estimate_mean,
)

PAPER = "Chen, Cao, Ge 2024 (GSPA)"
CLIENTS = 10_000
LIBERAL_SHARE = 0.09
EPS_MODERATE, EPS_LIBERAL = 0.5, 1.0
DEFAULT_SHARE, DEFAULT_EPS = 0.54, 0.1
LOW, HIGH, CENTRE, SPREAD = 20.0, 80.0, 50.0, 10.0
DENSITY = 0.7
DELTA = 1e-4
SEED = 3

Array = NDArray[np.float64]
Errors = dict[str, float]


@dataclass(frozen=True)
class Groups:
    """How many users have which budget."""

    conservative_share: float = DEFAULT_SHARE
    conservative_epsilon: float = DEFAULT_EPS

    def budgets(self) -> tuple[LocalBudget, ...]:
        conservative = round(self.conservative_share * CLIENTS)
        liberal = round(LIBERAL_SHARE * CLIENTS)
        return (
            LocalBudget(self.conservative_epsilon, 0.0, conservative),
            LocalBudget(EPS_MODERATE, 0.0, CLIENTS - conservative - liberal),
            LocalBudget(EPS_LIBERAL, 0.0, liberal),
        )

    def epsilons(self) -> Array:
        """One budget per user, conservative users first."""
        classes = self.budgets()
        return np.repeat([each.epsilon0 for each in classes], [each.count for each in classes])


@dataclass(frozen=True)
class Task:
    """One of the two estimates: data, and errors of every estimator on them."""

    labels: tuple[str, ...]
    draw: Callable[[np.random.Generator], Array]
    errors: Callable[[Array, Array, np.random.Generator], Errors]


PLAIN = "Algorithm 1: Laplace, plain average (unbiased)"
WEIGHTED = "Laplace, inverse-variance weights"
DUCHI = "Duchi et al., inverse-variance weights"
PUBLISHED = "Algorithm 2 (weights p - q)"
UNBIASED = "unbiased always (equal weights)"
INVERSE = "inverse-variance weights"
STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": "C1", "marker": "o"},
    WEIGHTED: {"color": "C0", "marker": "s"},
    DUCHI: {"color": "C2", "marker": "^"},
    PUBLISHED: {"color": "C1", "marker": "o"},
    UNBIASED: {"color": "C3", "marker": "v"},
    INVERSE: {"color": "C0", "marker": "s"},
}


def draw_numbers(rng: np.random.Generator) -> Array:
    """Clipped normal data."""
    return np.clip(rng.normal(CENTRE, SPREAD, CLIENTS), LOW, HIGH)


def mean_errors(values: Array, epsilon0: Array, rng: np.random.Generator) -> Errors:
    """Signed error of every mean estimate."""
    laplace, duchi = (BoundedRandomizer(name, LOW, HIGH) for name in ("laplace", "duchi"))
    noisy = laplace.randomize(values, epsilon0, rng)
    signs = duchi.randomize(values, epsilon0, rng)
    truth = values.mean()
    weighted = "inverse-variance"
    found = {
        PLAIN: estimate_mean(noisy, epsilon0, laplace, estimator="published"),
        WEIGHTED: estimate_mean(noisy, epsilon0, laplace, estimator=weighted),
        DUCHI: estimate_mean(signs, epsilon0, duchi, estimator=weighted),
    }
    return {label: float(each.value[0] - truth) for label, each in found.items()}


def draw_bits(rng: np.random.Generator) -> Array:
    """Exactly a share `DENSITY` of ones, in random order."""
    return rng.permutation(np.where(np.arange(CLIENTS) < DENSITY * CLIENTS, 1.0, 0.0))


def frequency_errors(values: Array, epsilon0: Array, rng: np.random.Generator) -> Errors:
    """Signed error of every estimate of the share of ones."""
    randomizer = KaryRandomizedResponse(2)
    reports = randomizer.randomize(values.astype(np.int64), epsilon0, rng)
    truth = values.mean()
    names = {PUBLISHED: "published", UNBIASED: "unbiased", INVERSE: "inverse-variance"}
    return {
        label: float(
            estimate_frequency(reports, epsilon0, randomizer, estimator=name).value[1] - truth
        )
        for label, name in names.items()
    }


MEAN = Task((PLAIN, WEIGHTED, DUCHI), draw_numbers, mean_errors)
FREQUENCY = Task((PUBLISHED, UNBIASED, INVERSE), draw_bits, frequency_errors)


def simulate(
    task: Task, groups: Groups, repetitions: int, point: int, *, ordered: bool = False
) -> dict[str, Array]:
    """Signed errors [repetitions] by estimator; `ordered`: larger values have larger budgets."""
    rng = np.random.Generator(np.random.Philox(key=[SEED, point]))
    epsilon0 = groups.epsilons()
    found: dict[str, Array] = {label: np.empty(repetitions) for label in task.labels}
    for repetition in range(repetitions):
        values = task.draw(rng)
        if ordered:
            values = np.sort(values)
        for label, error in task.errors(values, epsilon0, rng).items():
            found[label][repetition] = error
    return found


def central(groups: Groups) -> dict[str, float]:
    """Central epsilon of the release: published, and proven for each randomizer."""
    budgets = tuple(each for each in groups.budgets() if each.count)
    query = Question(method="gspa", budgets=budgets, delta=DELTA)
    binary = Question(randomizer="krr", k=2, budgets=budgets, delta=DELTA)
    return {
        "GSPA epsilon": bound(query).epsilon,
        "proven, binary reports": bound(binary).epsilon,
        "proven, Laplace per group": max(
            blanket_epsilon(LaplaceRandomizer(each.epsilon0), each.count, DELTA).epsilon
            for each in budgets
        ),
    }


def shares(options: Options) -> list[float]:
    """Shares of conservative users."""
    return [0.01, 0.5] if options.fast else [0.01, 0.1, 0.2, 0.3, 0.4, 0.5]


def epsilons(options: Options) -> list[float]:
    """Budgets of conservative users."""
    return [0.1, 0.5] if options.fast else [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]


def repetitions(options: Options) -> int:
    """The paper repeats 1,000 times."""
    return 60 if options.fast else 1000


def row(groups: Groups, found: Mapping[str, Array]) -> dict[str, Any]:
    """One line of the table: mean absolute error, its standard error, and the budgets."""
    line: dict[str, Any] = {
        "f_C": groups.conservative_share,
        "eps_C": groups.conservative_epsilon,
        "repetitions": next(iter(found.values())).size,
    }
    for label, errors in found.items():
        absolute = np.abs(errors)
        line[f"MAE, {label}"] = float(absolute.mean())
        line[f"standard error, {label}"] = float(absolute.std(ddof=1) / np.sqrt(absolute.size))
    return {**line, **central(groups)}


def _run(task: Task, unit: str) -> Callable[[Options], Result]:
    def run(options: Options) -> Result:
        count = repetitions(options)
        sweeps = {
            "f_C": [Groups(conservative_share=share) for share in shares(options)],
            "eps_C": [Groups(conservative_epsilon=epsilon) for epsilon in epsilons(options)],
        }
        rows: dict[str, list[dict[str, Any]]] = {}
        parts = []
        for axis, settings in sweeps.items():
            options.say(f"error against {axis}, {count} repetitions")
            start = 0 if axis == "f_C" else 100
            lines = [
                row(groups, simulate(task, groups, count, start + point))
                for point, groups in enumerate(settings)
            ]
            rows[axis] = lines
            fixed = f"eps_C = {DEFAULT_EPS:g}" if axis == "f_C" else f"f_C = {DEFAULT_SHARE:g}"
            parts.append(
                Panel(
                    f"{'(a)' if axis == 'f_C' else '(b)'} against {axis}, {fixed}",
                    [line[axis] for line in lines],
                    {label: [line[f"MAE, {label}"] for line in lines] for label in task.labels},
                    axis,
                    f"mean absolute error {unit}",
                    logy=False,
                    styles=STYLES,
                )
            )
        ordered = simulate(task, Groups(), count, 200, ordered=True)
        lean = [
            {
                "estimator": label,
                "bias": float(errors.mean()),
                "standard error": float(errors.std(ddof=1) / np.sqrt(count)),
                "MAE": float(np.abs(errors).mean()),
            }
            for label, errors in ordered.items()
        ]
        return Result(
            {"against_f_C": rows["f_C"], "against_eps_C": rows["eps_C"], "ordered": lean},
            {"error": panels(parts, 2)},
            _reproduction(rows, task.labels[0]),
            _honest(rows, lean, task.labels),
        )

    return run


def _reproduction(rows: Mapping[str, Sequence[dict[str, Any]]], label: str) -> str:
    texts = []
    for axis, lines in rows.items():
        first, last = lines[0], lines[-1]
        fit = np.corrcoef([line[axis] for line in lines], [line[f"MAE, {label}"] for line in lines])
        texts.append(
            f"as {axis} goes from {first[axis]:g} to {last[axis]:g}, from "
            f"{first[f'MAE, {label}']:.3g} to {last[f'MAE, {label}']:.3g} "
            f"(linear correlation {fit[0, 1]:.2f})"
        )
    return f"The error of the published estimator moves, {'; '.join(texts)}."


def _honest(
    rows: Mapping[str, Sequence[dict[str, Any]]],
    lean: Sequence[dict[str, Any]],
    labels: Sequence[str],
) -> str:
    texts = []
    lines = [line for each in rows.values() for line in each]
    for label in labels[1:]:
        values = [line[f"MAE, {label}"] / line[f"MAE, {labels[0]}"] for line in lines]
        texts.append(f"{label}: {min(values):.2f} to {max(values):.2f} times")
    biased = [
        f"{each['estimator']} {each['bias']:+.3g}"
        for each in lean
        if abs(each["bias"]) > 4.0 * each["standard error"]
    ]
    kinds = ["proven, binary reports"]
    if PLAIN in labels:
        kinds.insert(0, "proven, Laplace per group")
    budgets = []
    for kind in kinds:
        ratio = [line[kind] / line["GSPA epsilon"] for line in lines]
        budgets.append(f"{min(ratio):.2f} to {max(ratio):.2f} ({kind})")
    text = f"Error as a multiple of the published estimator's: {'; '.join(texts)}. "
    if biased:
        text += (
            "Unequal weights are unbiased only if budgets have nothing to do with the data; with "
            f"users in the same order by value and by budget the bias is {'; '.join(biased)}. "
        )
    return text + (
        f"Proven central epsilon at delta = {DELTA:g} as a multiple of GSPA's number: "
        f"{', '.join(budgets)}."
    )


def _parameters(options: Options) -> dict[str, Any]:
    return {
        "clients": CLIENTS,
        "repetitions": repetitions(options),
        "f_C": shares(options),
        "eps_C": epsilons(options),
        "default f_C, eps_C": [DEFAULT_SHARE, DEFAULT_EPS],
        "f_L": LIBERAL_SHARE,
        "eps_M, eps_L": [EPS_MODERATE, EPS_LIBERAL],
        "seed": SEED,
        "delta": DELTA,
    }


def _mean_parameters(options: Options) -> dict[str, Any]:
    return {**_parameters(options), "normal": [CENTRE, SPREAD], "range": [LOW, HIGH]}


def _frequency_parameters(options: Options) -> dict[str, Any]:
    return {**_parameters(options), "density": DENSITY}


CLAIM = (
    "The error grows with the share f_C of conservative users and falls with their budget eps_C, "
    "both about linearly"
)
TARGETS = {
    target.name: target
    for target in (
        Target(
            "chen2024-gspa-figure-3-mean",
            "Figure 3, mean estimation: error against f_C and eps_C",
            PAPER,
            f"{CLAIM} (Algorithm 1: the average of Laplace reports).",
            _mean_parameters,
            _run(MEAN, "(range 20 to 80)"),
        ),
        Target(
            "chen2024-gspa-figure-3-frequency",
            "Figure 3, frequency estimation at density 0.7: error against f_C and eps_C",
            PAPER,
            f"{CLAIM}; Algorithm 2 is unbiased.",
            _frequency_parameters,
            _run(FREQUENCY, "of the share"),
        ),
    )
}
