"""Chen, Cao and Ge 2024 (GSPA), Figure 3: mean and frequency estimation under personal budgets.

Users are conservative, moderate or liberal (eps_C, 0.5, 1); every repetition draws new data, new
reports and every estimate with the library's own randomizers and estimators. The error is that of
the mean (or share) of the users at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction.core import Options, Panel, Result, Target, panels, target
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


def groups(share: float = DEFAULT_SHARE, epsilon: float = DEFAULT_EPS) -> tuple[LocalBudget, ...]:
    """How many users have which budget, `share` and `epsilon` being those of the conservative."""
    conservative, liberal = round(share * CLIENTS), round(LIBERAL_SHARE * CLIENTS)
    return (
        LocalBudget(epsilon, 0.0, conservative),
        LocalBudget(EPS_MODERATE, 0.0, CLIENTS - conservative - liberal),
        LocalBudget(EPS_LIBERAL, 0.0, liberal),
    )


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
    task: Task, budgets: Sequence[LocalBudget], repetitions: int, point: int, *, ordered: bool
) -> dict[str, Array]:
    """Signed errors [repetitions] by estimator; `ordered`: larger values have larger budgets."""
    rng = np.random.Generator(np.random.Philox(key=[SEED, point]))
    # One budget per user, conservative users first.
    epsilon0 = np.repeat([each.epsilon0 for each in budgets], [each.count for each in budgets])
    found: dict[str, Array] = {label: np.empty(repetitions) for label in task.labels}
    for repetition in range(repetitions):
        values = task.draw(rng)
        if ordered:
            values = np.sort(values)
        for label, error in task.errors(values, epsilon0, rng).items():
            found[label][repetition] = error
    return found


BINARY, LAPLACE = "proven, binary reports", "proven, Laplace per group"


def central(budgets: Sequence[LocalBudget]) -> dict[str, float]:
    """Central epsilon of the release: published, and proven for each randomizer."""
    present = tuple(each for each in budgets if each.count)
    query = Question(method="gspa", budgets=present, delta=DELTA)
    binary = Question(randomizer="krr", k=2, budgets=present, delta=DELTA)
    return {
        "GSPA epsilon": bound(query).epsilon,
        BINARY: bound(binary).epsilon,
        LAPLACE: max(
            blanket_epsilon(LaplaceRandomizer(each.epsilon0), each.count, DELTA).epsilon
            for each in present
        ),
    }


SHARES, EPSILONS = [0.01, 0.1, 0.2, 0.3, 0.4, 0.5], [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]


def points(options: Options) -> dict[str, list[float]]:
    """Shares of conservative users, and their budgets."""
    if options.fast:
        return {"f_C": [0.01, 0.5], "eps_C": [0.1, 0.5]}
    return {"f_C": SHARES, "eps_C": EPSILONS}


def repetitions(options: Options) -> int:
    """The paper repeats 1,000 times."""
    return 60 if options.fast else 1000


def mean_error(errors: Array) -> tuple[float, float]:
    """Mean absolute error and its standard error."""
    absolute = np.abs(errors)
    return float(absolute.mean()), _standard_error(absolute)


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def row(task: Task, share: float, epsilon: float, count: int, point: int) -> dict[str, Any]:
    """One line of a table: mean absolute errors, their standard errors, and the budgets."""
    budgets = groups(share, epsilon)
    line: dict[str, Any] = {"f_C": share, "eps_C": epsilon, "repetitions": count}
    for label, errors in simulate(task, budgets, count, point, ordered=False).items():
        line[f"MAE, {label}"], line[f"standard error, {label}"] = mean_error(errors)
    return {**line, **central(budgets)}


def _run(task: Task, unit: str, options: Options) -> Result:
    count = repetitions(options)
    rows: dict[str, list[dict[str, Any]]] = {}
    parts = []
    for letter, (axis, values) in zip("ab", points(options).items(), strict=True):
        options.say(f"error against {axis}, {count} repetitions")
        shares = axis == "f_C"
        rows[axis] = [
            row(task, value, DEFAULT_EPS, count, number)
            if shares
            else row(task, DEFAULT_SHARE, value, count, 100 + number)
            for number, value in enumerate(values)
        ]
        fixed = f"eps_C = {DEFAULT_EPS:g}" if shares else f"f_C = {DEFAULT_SHARE:g}"
        parts.append(
            Panel(
                f"({letter}) against {axis}, {fixed}",
                rows[axis],
                axis,
                {label: STYLES[label] for label in task.labels},
                f"mean absolute error {unit}",
                prefix="MAE, ",
                logy=False,
            )
        )
    lean: list[dict[str, Any]] = [
        {
            "estimator": label,
            "bias": float(errors.mean()),
            "standard error": _standard_error(errors),
            "MAE": mean_error(errors)[0],
        }
        for label, errors in simulate(task, groups(), count, 200, ordered=True).items()
    ]
    published = f"MAE, {task.labels[0]}"
    kinds = [LAPLACE, BINARY] if PLAIN in task.labels else [BINARY]

    def ratios(upper: str, lower: str) -> list[float]:
        return [each[upper] / each[lower] for own in rows.values() for each in own]

    moves = []
    for axis, lines in rows.items():
        x, y = ([line[name] for line in lines] for name in (axis, published))
        moves.append((axis, x, y, np.corrcoef([x, y])[0, 1]))
    facts = {
        "moves": moves,
        "errors": {label: ratios(f"MAE, {label}", published) for label in task.labels[1:]},
        "biased": [row for row in lean if abs(row["bias"]) > 4.0 * row["standard error"]],
        "delta": DELTA,
        "budgets": {kind: ratios(kind, "GSPA epsilon") for kind in kinds},
    }
    tables = {**{f"against_{axis}": lines for axis, lines in rows.items()}, "ordered": lean}
    return Result(tables, {"error": panels(parts, 2)}, facts)


def _target(name: str, task: Task, unit: str, own: Mapping[str, Any]) -> Target:
    def parameters(options: Options) -> dict[str, Any]:
        return {
            "clients": CLIENTS,
            "repetitions": repetitions(options),
            **points(options),
            "default f_C, eps_C": [DEFAULT_SHARE, DEFAULT_EPS],
            "f_L": LIBERAL_SHARE,
            "eps_M, eps_L": [EPS_MODERATE, EPS_LIBERAL],
            "seed": SEED,
            "delta": DELTA,
            **own,
        }

    return target(f"chen2024-gspa-figure-3-{name}", parameters, partial(_run, task, unit))


OF_MEAN = {"normal": [CENTRE, SPREAD], "range": [LOW, HIGH]}
TARGETS = (
    _target("mean", MEAN, "(range 20 to 80)", OF_MEAN),
    _target("frequency", FREQUENCY, "of the share", {"density": DENSITY}),
)
