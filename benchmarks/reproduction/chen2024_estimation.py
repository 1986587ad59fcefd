"""Chen, Cao and Ge 2024 (GSPA), Figure 3: mean and frequency estimation under personal budgets.

Users are conservative, moderate or liberal (eps_C, 0.5, 1); every repetition draws new data, new
reports and every estimate with the library's own randomizers and estimators. The error is that of
the mean (or share) of the users at hand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
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

Array = NDArray[np.float64]
Rng = np.random.Generator

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


BINARY, LAPLACE = "proven, binary reports", "proven, Laplace per group"


class Study(ABC):
    """One of the two estimates: data, and errors of every estimator on them."""

    labels: tuple[str, ...]
    unit: str
    proven: tuple[str, ...]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.share, self.epsilon = settings["default f_C, eps_C"]

    @abstractmethod
    def draw(self, rng: Rng) -> Array:
        """A value for each client."""

    @abstractmethod
    def errors(self, values: Array, epsilon0: Array, rng: Rng) -> Iterator[float]:
        """Signed error of every estimate, in the order of `labels`."""

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
        # One budget per user, conservative users first.
        epsilon0 = np.repeat([each.epsilon0 for each in budgets], [each.count for each in budgets])
        rows = []
        for _ in range(self.settings["repetitions"]):
            values = self.draw(rng)
            rows.append([*self.errors(np.sort(values) if ordered else values, epsilon0, rng)])
        return dict(zip(self.labels, np.array(rows).T, strict=True))

    def central(self, budgets: Sequence[LocalBudget]) -> dict[str, float]:
        """Central epsilon of the release: published, and proven for each randomizer."""
        present, delta = tuple(each for each in budgets if each.count), self.settings["delta"]
        query = Question(method="gspa", budgets=present, delta=delta)
        binary = Question(randomizer="krr", k=2, budgets=present, delta=delta)
        return {
            "GSPA epsilon": bound(query).epsilon,
            BINARY: bound(binary).epsilon,
            LAPLACE: max(
                blanket_epsilon(LaplaceRandomizer(each.epsilon0), each.count, delta).epsilon
                for each in present
            ),
        }

    def row(self, share: float, epsilon: float, point: int) -> dict[str, Any]:
        """One line of a table: mean absolute errors, their standard errors, and the budgets."""
        budgets = self.groups(share, epsilon)
        line = {"f_C": share, "eps_C": epsilon, "repetitions": self.settings["repetitions"]}
        for label, errors in self.simulate(budgets, point, ordered=False).items():
            absolute = np.abs(errors)
            line[f"MAE, {label}"] = float(absolute.mean())
            line[f"standard error, {label}"] = _standard_error(absolute)
        return {**line, **self.central(budgets)}

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
            styles = {label: STYLES[label] for label in self.labels}
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
        published = f"MAE, {self.labels[0]}"

        def ratios(upper: str, lower: str) -> list[float]:
            return [each[upper] / each[lower] for own in rows.values() for each in own]

        moves = []
        for axis, lines in rows.items():
            x, y = ([line[name] for line in lines] for name in (axis, published))
            moves.append((axis, x, y, np.corrcoef([x, y])[0, 1]))
        facts = {
            "moves": moves,
            "errors": {label: ratios(f"MAE, {label}", published) for label in self.labels[1:]},
            "biased": [row for row in lean if abs(row["bias"]) > 4.0 * row["standard error"]],
            "delta": self.settings["delta"],
            "budgets": {kind: ratios(kind, "GSPA epsilon") for kind in self.proven},
        }
        tables = {**{f"against_{axis}": lines for axis, lines in rows.items()}, "ordered": lean}
        return Result(tables, {"error": panels(parts, 2)}, facts)


class Means(Study):
    """Of clipped normal data."""

    labels, unit, proven = (PLAIN, WEIGHTED, DUCHI), "(range 20 to 80)", (LAPLACE, BINARY)

    def draw(self, rng: Rng) -> Array:
        (centre, deviation), (low, high) = self.settings["normal"], self.settings["range"]
        normal: Array = rng.normal(centre, deviation, self.settings["clients"])
        return normal.clip(low, high)

    def errors(self, values: Array, epsilon0: Array, rng: Rng) -> Iterator[float]:
        kinds = [BoundedRandomizer(kind, *self.settings["range"]) for kind in ("laplace", "duchi")]
        noisy, signs = ((kind, kind.randomize(values, epsilon0, rng)) for kind in kinds)
        ways = ((noisy, "published"), (noisy, "inverse-variance"), (signs, "inverse-variance"))
        for (kind, reports), estimator in ways:
            found = estimate_mean(reports, epsilon0, kind, estimator=estimator)
            yield float(found.value[0] - values.mean())


class Frequencies(Study):
    """Of a share of ones, in random order."""

    labels, unit, proven = (PUBLISHED, UNBIASED, INVERSE), "of the share", (BINARY,)

    def draw(self, rng: Rng) -> Array:
        clients = self.settings["clients"]
        ones = np.arange(clients) < self.settings["density"] * clients
        return rng.permutation(np.where(ones, 1.0, 0.0))

    def errors(self, values: Array, epsilon0: Array, rng: Rng) -> Iterator[float]:
        kind = KaryRandomizedResponse(2)
        reports = kind.randomize(values.astype(np.int64), epsilon0, rng)
        for estimator in ("published", "unbiased", "inverse-variance"):
            found = estimate_frequency(reports, epsilon0, kind, estimator=estimator)
            yield float(found.value[1] - values.mean())


def _standard_error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


TARGETS = {
    "chen2024-gspa-figure-3-mean": lambda options, settings: Means(settings).result(options),
    "chen2024-gspa-figure-3-frequency": lambda options, settings: Frequencies(settings).result(
        options
    ),
}
