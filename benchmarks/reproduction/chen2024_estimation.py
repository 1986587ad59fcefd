"""Chen, Cao and Ge 2024 (GSPA), Figure 3: mean and frequency estimation under personal budgets.

Users are conservative, moderate or liberal (eps_C, 0.5, 1). Every repetition draws new data, and
every estimate is one call of `fl_shuffle.private_mean` or `fl_shuffle.private_frequencies`, which
draws new reports. The error is that of the mean (or share) of the users at hand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import fl_shuffle as fs
from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery

Array = NDArray[np.float64]
Rng = np.random.Generator

PLAIN = "Algorithm 1: Laplace, plain average (unbiased)"
WEIGHTED = "Laplace, inverse-variance weights"
SIGNS = "Duchi et al., weights of Algorithm 2"
DUCHI = "Duchi et al., inverse-variance weights"
PUBLISHED = "Algorithm 2 (weights p - q)"
UNBIASED = "unbiased always (equal weights)"
INVERSE = "inverse-variance weights"
STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": "C1", "marker": "o"},
    WEIGHTED: {"color": "C0", "marker": "s"},
    SIGNS: {"color": "C4", "marker": "D"},
    DUCHI: {"color": "C2", "marker": "^"},
    PUBLISHED: {"color": "C1", "marker": "o"},
    UNBIASED: {"color": "C3", "marker": "v"},
    INVERSE: {"color": "C0", "marker": "s"},
}
ABSOLUTE = math.sqrt(2.0 / math.pi)
"""Mean absolute value of a normal error, in standard deviations."""


class Study(ABC):
    """One of the two estimates: data, and errors of every estimator on them."""

    calls: ClassVar[Mapping[str, tuple[str, str]]]
    """Randomizer and estimator of each label; the published one first."""
    unit: str

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.share, self.epsilon = settings["default f_C, eps_C"]

    @abstractmethod
    def draw(self, rng: Rng) -> Array:
        """A value for each client."""

    @abstractmethod
    def estimate(self, values: Array, epsilon0: Array, rng: Rng, label: str) -> fs.PrivateEstimate:
        """One call of the product; its last entry is the estimate."""

    def groups(self, share: float, epsilon: float) -> tuple[LocalBudget, ...]:
        """How many users have which budget; `share` and `epsilon` are those of the conservative."""
        clients, (moderate, liberal) = self.settings["clients"], self.settings["eps_M, eps_L"]
        conservative, free = round(share * clients), round(self.settings["f_L"] * clients)
        return (
            LocalBudget(epsilon, 0.0, conservative),
            LocalBudget(moderate, 0.0, clients - conservative - free),
            LocalBudget(liberal, 0.0, free),
        )

    def simulate(
        self, budgets: Sequence[LocalBudget], point: int, *, ordered: bool
    ) -> dict[str, Array]:
        """Signed errors [repetitions] by estimator; `ordered`: budgets grow with values."""
        rng = Rng(np.random.Philox(key=[self.settings["seed"], point]))
        epsilon0 = self.budgets_of_users(budgets)
        rows = []
        for _ in range(self.settings["repetitions"]):
            values = self.draw(rng)
            values = np.sort(values) if ordered else values
            truth = float(values.mean())
            found = (self.estimate(values, epsilon0, rng, label) for label in self.calls)
            rows.append([float(each.value[-1]) - truth for each in found])
        return dict(zip(self.calls, np.array(rows).T, strict=True))

    @staticmethod
    def budgets_of_users(budgets: Sequence[LocalBudget]) -> Array:
        """One budget for each user, conservative users first."""
        return np.repeat([each.epsilon0 for each in budgets], [each.count for each in budgets])

    def costs(self, budgets: Sequence[LocalBudget], label: str) -> dict[str, float]:
        """What a call says before any report: its largest expected error, its proven epsilon."""
        rng = Rng(np.random.Philox(key=[self.settings["seed"], 0]))
        found = self.estimate(self.draw(rng), self.budgets_of_users(budgets), rng, label)
        if not found.central.is_guarantee:
            raise AssertionError(f"{label}: {found.central}")
        return {
            f"largest expected MAE, {label}": ABSOLUTE * found.expected_error,
            f"proven epsilon, {label}": found.central.epsilon,
        }

    def row(self, share: float, epsilon: float, point: int) -> dict[str, Any]:
        """One line of a table: mean absolute errors, their standard errors, and the budgets."""
        budgets = self.groups(share, epsilon)
        line = {"f_C": share, "eps_C": epsilon, "repetitions": self.settings["repetitions"]}
        for label, errors in self.simulate(budgets, point, ordered=False).items():
            absolute = np.abs(errors)
            line[f"MAE, {label}"] = float(absolute.mean())
            line[f"standard error, {label}"] = _standard_error(absolute)
            line |= self.costs(budgets, label)
        present = tuple(each for each in budgets if each.count)
        query = BoundQuery(method="gspa", budgets=present, delta=self.settings["delta"])
        return {**line, "GSPA epsilon": bound(query).epsilon}

    def result(self, options: Options) -> Result:
        """All of it."""
        rows, parts = {}, []
        for letter, axis in (("a", "f_C"), ("b", "eps_C")):
            options.say(f"error against {axis}, {self.settings['repetitions']} repetitions")
            values = enumerate(self.settings[axis])
            if axis == "f_C":
                rows[axis] = [self.row(value, self.epsilon, number) for number, value in values]
                fixed = f"eps_C = {self.epsilon:g}"
            else:
                rows[axis] = [self.row(self.share, value, 100 + number) for number, value in values]
                fixed = f"f_C = {self.share:g}"
            styles = {label: STYLES[label] for label in self.calls}
            title, error = f"({letter}) against {axis}, {fixed}", f"mean absolute error {self.unit}"
            part = Panel(title, rows[axis], axis, styles, error, prefix="MAE, ", logy=False)
            parts.append(part)
        budgets = self.groups(self.share, self.epsilon)
        lean: list[dict[str, Any]] = [
            {
                "estimator": label,
                "bias": float(errors.mean()),
                "standard error": _standard_error(errors),
                "MAE": float(np.abs(errors).mean()),
            }
            for label, errors in self.simulate(budgets, 200, ordered=True).items()
        ]
        first, *others = self.calls
        published = f"MAE, {first}"

        def ratios(upper: str, lower: str) -> list[float]:
            return [each[upper] / each[lower] for own in rows.values() for each in own]

        moves = []
        for axis, lines in rows.items():
            x, y = ([line[name] for line in lines] for name in (axis, published))
            moves.append((axis, x, y, np.corrcoef([x, y])[0, 1]))
        facts = {
            "moves": moves,
            "errors": {label: ratios(f"MAE, {label}", published) for label in others},
            "expected": ratios(published, f"largest expected MAE, {first}"),
            "biased": [row for row in lean if abs(row["bias"]) > 4.0 * row["standard error"]],
            "delta": self.settings["delta"],
            "budgets": {
                label: ratios(f"proven epsilon, {label}", "GSPA epsilon") for label in self.calls
            },
        }
        tables = {**{f"against_{axis}": lines for axis, lines in rows.items()}, "ordered": lean}
        return Result(tables, {"error": panels(parts, 2)}, facts)


class Means(Study):
    """Of clipped normal data."""

    calls: ClassVar[Mapping[str, tuple[str, str]]] = {
        PLAIN: ("laplace", "published"),
        WEIGHTED: ("laplace", "inverse-variance"),
        SIGNS: ("duchi", "published"),
        DUCHI: ("duchi", "inverse-variance"),
    }
    unit = "(range 20 to 80)"

    def draw(self, rng: Rng) -> Array:
        (centre, deviation), (low, high) = self.settings["normal"], self.settings["range"]
        normal: Array = rng.normal(centre, deviation, self.settings["clients"])
        return normal.clip(low, high)

    def estimate(self, values: Array, epsilon0: Array, rng: Rng, label: str) -> fs.PrivateEstimate:
        (low, high), (randomizer, estimator) = self.settings["range"], self.calls[label]
        return fs.private_mean(
            values, epsilon0, low=low, high=high, delta=self.settings["delta"],
            randomizer=randomizer, estimator=estimator, seed=rng,
        )  # fmt: skip


class Frequencies(Study):
    """Of a share of ones, in random order."""

    calls: ClassVar[Mapping[str, tuple[str, str]]] = {
        PUBLISHED: ("krr", "published"),
        UNBIASED: ("krr", "unbiased"),
        INVERSE: ("krr", "inverse-variance"),
    }
    unit = "of the share"

    def draw(self, rng: Rng) -> Array:
        clients = self.settings["clients"]
        ones = np.arange(clients) < self.settings["density"] * clients
        return rng.permutation(np.where(ones, 1.0, 0.0))

    def estimate(self, values: Array, epsilon0: Array, rng: Rng, label: str) -> fs.PrivateEstimate:
        randomizer, estimator = self.calls[label]
        return fs.private_frequencies(
            values.astype(np.int64), epsilon0, categories=2, delta=self.settings["delta"],
            randomizer=randomizer, estimator=estimator, seed=rng,
        )  # fmt: skip


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


TARGETS = {
    "chen2024-gspa-figure-3-mean": lambda options, settings: Means(settings).result(options),
    "chen2024-gspa-figure-3-frequency": lambda options, settings: Frequencies(settings).result(
        options
    ),
}
