"""What every client has spent where only sums of reports leave, over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from fl_shuffle.accounting.bounds.sum_release.gaussian import (
    attacked_variance,
    sum_epsilon,
    sum_mu,
    sum_profile,
)
from fl_shuffle.accounting.bounds.sum_release.honest import (
    AssumedHonest,
    honest_reports,
    sum_assumption,
)
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.report_grid import report_grids
from fl_shuffle.accounting.rounds.events import ClientClass, Column
from fl_shuffle.accounting.rounds.local_guarantees import gaussian_epsilons
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_real

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]

__all__ = [
    "SUM_SOURCE",
    "AssumedHonest",
    "SumAccount",
    "SumCurve",
    "honest_reports",
    "sum_assumption",
]

SUM_SOURCE = (
    "sum of independent Gaussian noise on grids (theorem in docs/proofs.md, section 14), squares "
    "of the Gaussian-DP parameters added over rounds"
)
SEQUENTIAL_SUM = (
    "in a sequential schedule each report meets the model alone: no sum hides it, and only the "
    "local guarantee holds"
)
LAPLACE_SUM = (
    "not available for Laplace reports: nothing is proven here yet about sums of Laplace noise in "
    "several coordinates"
)
UNKNOWN_SUM = (
    "not available: the law of the user's randomizer is not known to the accountant, hence neither "
    "is that of a sum of its reports"
)


@dataclass(frozen=True)
class SumCurve:
    """One client's privacy curve towards whoever sees sums: Gaussian, with parameter `mu`."""

    mu: float

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon (nats) at `delta`, rounded up."""
        return sum_epsilon(delta, self.mu)

    def profile(self, epsilons: ArrayLike) -> Vector:
        """Upper bounds on delta at each epsilon >= 0."""
        return sum_profile(epsilons, self.mu)

    def trade_off(self, type_one: ArrayLike) -> Vector:
        """An attacker's smallest type II error at each type I error, to plot (f-DP)."""
        errors = np.asarray(type_one, dtype=np.float64)
        if not np.all((errors >= 0.0) & (errors <= 1.0)):
            raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
        result: Vector = ndtr(-ndtri(errors) - self.mu)
        return result

    def to_json(self) -> dict[str, float]:
        """As JSON data; `from_json` restores it exactly."""
        return {"mu": self.mu}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SumCurve:
        """Restore a curve; raises `InvalidValueError` for anything else."""
        if not isinstance(data, Mapping) or set(data) != {"mu"}:
            raise InvalidValueError("curve of sums", data, "must hold mu alone")
        return cls(require_real("mu", data["mu"], minimum=0.0))


@dataclass(frozen=True)
class _Table:
    """What the classes of clients contribute to a sum, as arrays [classes]."""

    scale: Vector
    shift: Vector
    grid: Vector

    @classmethod
    def of(cls, classes: Sequence[ClientClass]) -> _Table:
        rows = [(kind.scale, kind.radius, kind.sensitivity) for kind in classes]
        scale, radius, sensitivity = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return cls(scale, np.minimum(sensitivity, 2.0 * radius), report_grids(scale, radius))


@dataclass(frozen=True)
class SumAccount:
    """Every client's spending towards whoever sees only one sum of reports a round; immutable.

    `mu_squared[i]` bounds client i's squared Gaussian-DP parameter over the sums its report was in;
    `attacked_mu_squared[i]` is what the best test on them reaches. `reason` says why there is no
    such guarantee (None: there is). Relation: replace-one. Statement: docs/proofs.md, section 14.
    """

    class_of: NDArray[np.int64]
    reason: str | None
    assumed_honest: AssumedHonest
    mu_squared: Vector
    attacked_mu_squared: Vector
    coarsest: float = 0.0
    """The coarsest grid of any report, in units of its noise scale."""
    _table: _Table | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        *,
        schedule: str,
        assumed_honest: AssumedHonest = None,
    ) -> SumAccount:
        """Nothing released yet. `class_of[i]` is client i's class; scales are those in the sum."""
        honest_reports(assumed_honest, 1)
        reason = None
        if schedule == "sequential":
            reason = SEQUENTIAL_SUM
        elif any(kind.noise == "user" for kind in classes):
            reason = UNKNOWN_SUM
        elif any(kind.noise != "gaussian" for kind in classes):
            reason = LAPLACE_SUM
        none = np.zeros(len(class_of))
        if reason is not None:
            return cls(class_of, reason, assumed_honest, none, none)
        table = _Table.of(classes)
        coarsest = float(np.max(table.grid / table.scale, initial=0.0))
        return cls(class_of, None, assumed_honest, none, none, coarsest, table)

    def after(self, present: Mask) -> SumAccount:
        """One more sum, of the reports of these clients [n]."""
        table = self._table
        if table is None or not present.any():
            return self
        counts = np.bincount(self.class_of[present], minlength=len(table.scale))
        honest = honest_reports(self.assumed_honest, int(counts.sum()))
        mu = sum_mu(table.scale, table.shift, table.grid, counts, honest)
        variance = attacked_variance(table.scale, counts, honest)
        taking = self.class_of[present]
        spent, attacked = self.mu_squared.copy(), self.attacked_mu_squared.copy()
        spent[present] += (mu * mu)[taking]
        attacked[present] += (table.shift**2 / variance)[taking]
        return replace(self, mu_squared=spent, attacked_mu_squared=attacked)

    def epsilons(self, delta: float) -> Vector:
        """Every client's epsilon [n] at `delta` (nats), proven.

        Raises `NotApplicableError` where there is no such guarantee.
        """
        self._require()
        values, inverse = np.unique(self.mu_squared, return_inverse=True)
        found = gaussian_epsilons(delta * TOLERANCES.sum_delta_share, np.sqrt(values))
        result: Vector = found[inverse.reshape(-1)]
        return result

    def worst_epsilon(self, delta: float) -> float:
        """The most exposed client's epsilon at `delta`."""
        self._require()
        return sum_epsilon(delta, math.sqrt(float(np.max(self.mu_squared, initial=0.0))))

    def class_epsilons(self, delta: float, classes: Iterable[int]) -> dict[int, float]:
        """The epsilon at `delta` of the most exposed client of each of these classes."""
        self._require()
        worst = self.worst_of_classes(self.mu_squared)
        return {index: sum_epsilon(delta, math.sqrt(worst[index])) for index in classes}

    def worst_of_classes(self, values: Vector) -> Vector:
        """The largest of the clients' `values` [n] in each class [classes]; 0 for an empty one."""
        size = 1 + int(np.max(self.class_of, initial=-1))
        worst = np.zeros(size if self._table is None else len(self._table.scale))
        np.maximum.at(worst, self.class_of, values)
        return worst

    def worst_client(self) -> int | None:
        """The most exposed client; None where nothing was released."""
        if not np.any(self.mu_squared > 0.0):
            return None
        return int(np.argmax(self.mu_squared))

    def curve(self, client: int) -> SumCurve:
        """One client's privacy curve over all its rounds."""
        self._require()
        return SumCurve(math.sqrt(float(self.mu_squared[client])))

    def column(self, delta: float, classes: Iterable[int], *, overall: bool = False) -> Column:
        """The column `sum` of a round: these classes, and the worst client if `overall`."""
        if self.reason is not None:
            return Column("sum", Status.PROVEN, SUM_SOURCE, note=self.reason)
        worst = self.worst_epsilon(delta) if overall else None
        epsilon = self.class_epsilons(delta, classes)
        return Column("sum", Status.PROVEN, SUM_SOURCE, epsilon, overall=worst)

    def _require(self) -> None:
        if self.reason is not None:
            raise NotApplicableError(f"sum: {self.reason}")
