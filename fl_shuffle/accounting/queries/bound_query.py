"""What can be asked of the accountant, validated once: `BoundQuery`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fl_shuffle.accounting.bounds.participation import require_participation
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets, client_count
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0, MAX_ROUNDS
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import (
    InvalidValueError,
    NotApplicableError,
    require_choice,
    require_integer,
    require_open_unit,
    require_real,
    suggestion,
)

if TYPE_CHECKING:
    from fl_shuffle.accounting.laws.finite import Randomizer

RANDOMIZERS = ("krr", "blh", "rappor", "oue", "hadamard", "laplace", "gaussian", "privunit")
UNITS = ("record", "client")
CALIBRATIONS = ("classical", "analytic")
RELEASES = ("reports", "sum")
MAX_EPSILON = 400.0
"""Questions end here: nobody asks for more, and e^epsilon overflows at 709."""
MIN_RELATIVE_ERROR, MAX_RELATIVE_ERROR = 1e-9, 0.5


@dataclass(frozen=True)
class BoundQuery:
    """One question: which delta at `epsilon`, or which epsilon at `delta` (exactly one is given).

    `randomizer` names the local randomizer (`None`: any randomizer with this local budget), `k` its
    domain size (krr; optional for rappor and oue), `cap` the cap probability of privunit.
    `epsilon0`, `delta0` are the local budget of one report (nats); with `joint` = K the report
    holds K answers that share epsilon0 evenly; `parallel` lists (name, weight) of randomizers of
    which each client uses one. `budgets` gives personal budgets instead of epsilon0, delta0.
    `clients` is the number of reports shuffled in each of `rounds` rounds. `participation` = q < 1:
    each of `clients` takes part in a round by its own coin with probability q, and nobody who sees
    the reports learns who did (secret check-in); who takes part publicly is counted in `clients`.
    `relative_error` is the numerical excess allowed to a computed bound, relative to delta (by
    default 1e-6 where reports have finitely many kinds, 2e-4 for Laplace noise, 5e-4 for `proven`).
    `unit`, `records` and `calibration` describe vector reports (Gaussian or Laplace noise) for the
    method `proven`.
    `profile` lists (epsilon, delta) pairs that all hold for one report, for the method `profile`.
    `release` says what leaves: `reports`, shuffled, or their `sum` alone; with sums, of the reports
    in one `assumed_honest` (a number, or a share in (0, 1); all, if None) carry noise unknown to
    the adversary.

    Raises `InvalidValueError` for a field outside its range, and for missing or clashing fields.
    """

    method: str = "blanket"
    randomizer: str | None = None
    k: int | None = None
    cap: float | None = None
    epsilon0: float | None = None
    delta0: float = 0.0
    clients: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    rounds: int = 1
    joint: int = 1
    parallel: tuple[tuple[str, float], ...] = ()
    unit: str = "record"
    records: int = 1
    calibration: str = "classical"
    budgets: tuple[LocalBudget, ...] = ()
    profile: tuple[tuple[float, float], ...] = ()
    participation: float = 1.0
    relative_error: float | None = None
    release: str = "reports"
    assumed_honest: int | float | None = None

    def __post_init__(self) -> None:
        if self.randomizer is not None:
            require_choice("randomizer", self.randomizer, RANDOMIZERS)
        require_choice("unit", self.unit, UNITS)
        require_choice("calibration", self.calibration, CALIBRATIONS)
        require_choice("release", self.release, RELEASES)
        if self.assumed_honest is not None:
            honest_reports(self.assumed_honest, 1)
            if self.release != "sum":
                raise InvalidValueError(
                    "assumed_honest", self.assumed_honest, "needs release = 'sum'"
                )
        require_integer("rounds", self.rounds, minimum=1, maximum=MAX_ROUNDS)
        require_integer("joint", self.joint, minimum=1, maximum=64)
        require_integer("records", self.records, minimum=1, maximum=MAX_CLIENTS)
        require_participation(self.participation)
        if self.relative_error is not None:
            require_real(
                "relative_error",
                self.relative_error,
                minimum=MIN_RELATIVE_ERROR,
                maximum=MAX_RELATIVE_ERROR,
            )
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0, exclusive_maximum=True)
        if self.k is not None:
            require_integer("k", self.k, minimum=2, maximum=MAX_CLIENTS)
        if (self.epsilon is None) == (self.delta is None):
            raise InvalidValueError(
                "epsilon and delta", (self.epsilon, self.delta), "give exactly one of the two"
            )
        if self.epsilon is not None:
            require_real("epsilon", self.epsilon, minimum=0.0, maximum=MAX_EPSILON)
        if self.delta is not None:
            require_open_unit("delta", self.delta)
        if self.profile:
            # Methods that know one pair take the one with the smallest delta.
            smallest = min(self.profile, key=lambda pair: (pair[1], pair[0]))
            if self.epsilon0 not in (None, smallest[0]) or self.budgets:
                raise InvalidValueError(
                    "profile", self.profile, "must not be given beside epsilon0 or budgets"
                )
            object.__setattr__(self, "epsilon0", smallest[0])
            object.__setattr__(self, "delta0", smallest[1])
        self._check_clients()
        self._check_shape()

    def _check_clients(self) -> None:
        if self.budgets:
            merged = check_budgets(self.budgets)
            # A single class is kept as epsilon0 too, so a copy of such a query carries both.
            if self.epsilon0 not in (None, merged[0].epsilon0 if len(merged) == 1 else None):
                raise InvalidValueError(
                    "epsilon0", self.epsilon0, "must not be given beside personal budgets"
                )
            object.__setattr__(self, "budgets", merged)
            count = client_count(merged)
            if self.clients is None:
                object.__setattr__(self, "clients", count)
            if self.clients != count:
                raise InvalidValueError(
                    "clients", self.clients, f"must be {count}, the number of personal budgets"
                )
            if len(merged) == 1:
                object.__setattr__(self, "epsilon0", merged[0].epsilon0)
                object.__setattr__(self, "delta0", merged[0].delta0)
        if self.epsilon0 is None and not self.budgets:
            raise InvalidValueError("epsilon0", None, "is required (or personal budgets)")
        if self.clients is None:
            raise InvalidValueError("clients", None, "is required")
        require_integer("clients", self.clients, minimum=1, maximum=MAX_CLIENTS)
        if self.epsilon0 is not None:
            require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)

    def _check_shape(self) -> None:
        for name, weight in self.parallel:
            require_choice("parallel", name, RANDOMIZERS)
            require_real(
                "parallel weight", weight, minimum=0.0, maximum=1.0, exclusive_minimum=True
            )
        if self.parallel and (self.randomizer is not None or self.joint > 1):
            raise InvalidValueError(
                "parallel", self.parallel, "must not be given beside randomizer or joint"
            )
        needs_k = self.randomizer == "krr" or any(name == "krr" for name, _ in self.parallel)
        if needs_k and self.k is None:
            raise InvalidValueError("k", None, "is required by krr (the number of categories)")

    @property
    def personal(self) -> bool:
        """Whether clients have different budgets."""
        return len(self.budgets) > 1

    @property
    def local(self) -> tuple[float, float, int]:
        """(epsilon0, delta0, clients) of a query without personal budgets."""
        if self.epsilon0 is None or self.clients is None:
            raise NotApplicableError(
                f"{self.method} is stated for one local budget shared by all clients; with "
                "personal budgets use gspa, gspa-exact, echo, or blanket for krr, laplace, privunit"
            )
        return self.epsilon0, self.delta0, self.clients

    @property
    def local_budgets(self) -> tuple[LocalBudget, ...]:
        """The budgets as classes, whether personal or shared."""
        if self.budgets:
            return self.budgets
        epsilon0, delta0, clients = self.local
        return (LocalBudget(epsilon0, delta0, clients),)

    def require_pure(self) -> None:
        """Raise `NotApplicableError` unless every delta0 is zero."""
        worst = max((budget.delta0 for budget in self.local_budgets), default=0.0)
        if worst > 0.0:
            raise NotApplicableError(
                f"{self.method} is stated for pure local budgets: delta0 must be 0, got {worst:g}"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> BoundQuery:
        """A query from JSON-like names; `parallel` may be "NAME:WEIGHT,...", budgets a list.

        `budgets` lists [epsilon0, delta0] or [epsilon0, delta0, count]. Unknown names raise.
        """
        if not isinstance(values, Mapping):
            raise InvalidValueError("query", values, "must be an object of names and values")
        names = [field.name for field in fields(cls)]
        for key in values:
            if key not in names:
                raise InvalidValueError(
                    "query key", key, f"must be one of {', '.join(names)}", suggestion(key, names)
                )
        given = {key: value for key, value in values.items() if value is not None}
        if "method" in given and not isinstance(given["method"], str):
            raise InvalidValueError("method", given["method"], "must be a name")
        if "parallel" in given:
            given["parallel"] = _parallel(given["parallel"])
        if "budgets" in given:
            given["budgets"] = _budgets(given["budgets"])
        if "profile" in given:
            given["profile"] = _profile(given["profile"])
        return cls(**given)


def _parallel(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, str):
        if isinstance(value, Sequence) and all(
            isinstance(part, Sequence) and len(part) == 2 for part in value
        ):
            return tuple((part[0], part[1]) for part in value)
        raise InvalidValueError("parallel", value, "must look like NAME:WEIGHT,NAME:WEIGHT")
    parts = []
    for item in value.split(","):
        name, _, weight = item.strip().partition(":")
        try:
            parts.append((name.strip(), float(weight)))
        except ValueError:
            raise InvalidValueError(
                "parallel", value, "must look like NAME:WEIGHT,NAME:WEIGHT"
            ) from None
    return tuple(parts)


def _profile(given: object) -> tuple[tuple[float, float], ...]:
    value = given
    if isinstance(value, str):
        name, _, mu = value.partition(":")
        if name == "gdp":
            return _gaussian_pairs(mu)
        value = [item.split(":") for item in value.split(",")]
    try:
        if not isinstance(value, Sequence):
            raise TypeError
        pairs = tuple((float(epsilon), float(delta)) for epsilon, delta in value)
    except (TypeError, ValueError):
        raise InvalidValueError(
            "profile", given, "must list pairs, EPSILON:DELTA,EPSILON:DELTA, or be gdp:MU"
        ) from None
    for epsilon, delta in pairs:
        require_real("profile epsilon", epsilon, minimum=0.0, maximum=MAX_EPSILON0)
        require_real("profile delta", delta, minimum=0.0, maximum=1.0)
    return pairs


def _gaussian_pairs(mu: str) -> tuple[tuple[float, float], ...]:
    """Points of the profile of mu-GDP, close enough that chords between them cost nothing."""
    from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta, gaussian_epsilon

    try:
        shift = float(mu)
    except ValueError:
        raise InvalidValueError("profile", f"gdp:{mu}", "must be gdp: and a number") from None
    require_real("profile gdp", shift, minimum=0.0, exclusive_minimum=True, maximum=5.0)
    end = gaussian_epsilon(1e-30, shift)
    grid = [
        end * step / TOLERANCES.query_profile_points
        for step in range(TOLERANCES.query_profile_points + 1)
    ]
    return tuple((epsilon, gaussian_delta(epsilon, shift)) for epsilon in grid)


def _budgets(value: object) -> tuple[LocalBudget, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidValueError("budgets", value, "must list [epsilon0, delta0] or with a count")
    result = []
    for item in value:
        if isinstance(item, LocalBudget):
            result.append(item)
        elif isinstance(item, Sequence) and not isinstance(item, str) and 1 <= len(item) <= 3:
            result.append(LocalBudget(*item))
        else:
            raise InvalidValueError("budgets", item, "must be [epsilon0, delta0, count]")
    return tuple(result)


def make_randomizer(query: BoundQuery, epsilon0: float) -> Randomizer:
    """The accountant's view of the named randomizer at local budget `epsilon0`.

    Raises `NotApplicableError` if no randomizer is named or it has no pure law (Gaussian noise).
    """
    from fl_shuffle.accounting.laws.products import JointComposition, ParallelComposition

    if query.parallel:
        return ParallelComposition(
            tuple((weight, _single(name, query, epsilon0)) for name, weight in query.parallel)
        )
    if query.randomizer is None:
        raise NotApplicableError(
            f"{query.method} needs a randomizer ({', '.join(RANDOMIZERS)}); for any randomizer of "
            "a given local budget use clone"
        )
    if query.joint == 1:
        return _single(query.randomizer, query, epsilon0)
    part = _single(query.randomizer, query, epsilon0 / query.joint)
    return JointComposition((part,) * query.joint)


def _single(name: str, query: BoundQuery, epsilon0: float) -> Randomizer:
    from fl_shuffle.accounting.laws import finite, frequency_oracles
    from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer

    if name == "krr":
        if query.k is None:
            raise InvalidValueError("k", None, "is required by krr (the number of categories)")
        return finite.KRandomizedResponse(epsilon0, query.k)
    if name == "privunit":
        cap = 0.5 if query.cap is None else query.cap
        return finite.CapRandomizer(epsilon0, cap)
    if name == "gaussian":
        raise NotApplicableError(
            f"{query.method} needs a pure randomizer; for Gaussian noise use proven, or clone, "
            "feldman2022 and gspa with delta0"
        )
    if name == "laplace":
        return LaplaceRandomizer(epsilon0)
    if name in ("rappor", "oue"):
        unary = (
            frequency_oracles.Rappor
            if name == "rappor"
            else frequency_oracles.OptimizedUnaryEncoding
        )
        return unary(epsilon0, query.k)
    hashed = (
        frequency_oracles.BinaryLocalHashing
        if name == "blh"
        else frequency_oracles.HadamardResponse
    )
    return hashed(epsilon0)
