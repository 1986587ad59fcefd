"""What can be asked of the accountant, validated once: `BoundQuery`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fl_shuffle import settings_schema
from fl_shuffle._internal.csv_files import read_rows
from fl_shuffle._internal.renamed import warn_renamed
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets, client_count
from fl_shuffle.accounting.bounds.sum_release.honest import require_honest
from fl_shuffle.accounting.limits import (
    MAX_CLIENTS,
    MAX_EPSILON0,
    MAX_ORDER,
    MAX_ROUNDS,
    MIN_DELTA,
    MIN_PARTICIPATION,
)
from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    NotApplicableError,
    require_choice,
    require_real,
)
from fl_shuffle.settings_schema import setting

if TYPE_CHECKING:
    from fl_shuffle.accounting.distributions.finite import AccountedRandomizer, MatrixRandomizer

QUERY_PROFILE_POINTS = 300
"""Points at which a Gaussian profile is handed over; chords between them lie above it."""

RANDOMIZERS = ("krr", "blh", "rappor", "oue", "hadamard", "laplace", "gaussian")
COMPOSED = ("joint:", "parallel:")
"""How the text of a composition of randomizers begins."""
UNITS = ("record", "client")
CALIBRATIONS = ("classical", "analytic")
RELEASES = ("reports", "sum")
SAMPLINGS = ("each-round", "once")
MAX_EPSILON = 400.0
"""Questions end here: nobody asks for more, and e^epsilon overflows at 709."""
LARGEST_MATRIX = 1 << 24
"""Bytes of a file: some thousand inputs by reports, whose pairs are all looked at."""
Profile = str | Sequence[tuple[float, float]]
Matrix = str | Sequence[Sequence[float]] | Sequence[Mapping[str, float]]
Budgets = str | Sequence[LocalBudget] | Sequence[Sequence[float]]


OLD_METHODS = {"proven": "vector"}
"""Methods as version 0.2 calls them -> their names."""


def method_named(name: str) -> str:
    """Return the method's name; of an older name today's, with a warning."""
    if name not in OLD_METHODS:
        return name
    warn_renamed(f"method {name!r}", repr(OLD_METHODS[name]), stacklevel=4)
    return OLD_METHODS[name]


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
    """Return points of the profile of mu-GDP.

    They are close enough that chords between them cost nothing.
    """
    from fl_shuffle.accounting.distributions.gaussian_mechanism import (
        gaussian_delta,
        gaussian_epsilon,
    )

    try:
        shift = float(mu)
    except ValueError:
        raise InvalidValueError("profile", f"gdp:{mu}", "must be gdp: and a number") from None
    require_real("profile gdp", shift, minimum=0.0, exclusive_minimum=True, maximum=5.0)
    # Below 1e-30 the profile is left at its last value, which is above it.
    end = gaussian_epsilon(1e-30, shift)
    grid = [end * step / QUERY_PROFILE_POINTS for step in range(QUERY_PROFILE_POINTS + 1)]
    return tuple((epsilon, gaussian_delta(epsilon, shift)) for epsilon in grid)


def _randomizer(value: object) -> str:
    """Return a name, or the text of a composition.

    Its parts are read with the rest of the question.
    """
    text = getattr(value, "text", value)
    if isinstance(text, str) and text.startswith(COMPOSED):
        return text
    return require_choice("randomizer", text, (*RANDOMIZERS, *(f"{name}..." for name in COMPOSED)))


def _budgets(value: object) -> tuple[LocalBudget, ...]:
    if isinstance(value, str):
        from fl_shuffle.budgets import read_budgets

        file = read_budgets(value)
        if file.of == "run":
            raise InvalidValueError(
                "budgets", value, "holds totals of a run; a query is about reports, whose "
                "budgets are epsilon and delta", "ask about a configuration: fl-shuffle bound "
                "CONFIG --budgets FILE",
            )  # fmt: skip
        return tuple(
            LocalBudget(float(epsilon), float(delta), 1)
            for epsilon, delta in zip(file.epsilon, file.delta, strict=True)
        )
    if not isinstance(value, Sequence):
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


def _matrix(value: object) -> tuple[tuple[float, ...], ...]:
    """Return a row of probabilities for each input.

    What some input never reports has probability 0.
    """
    rows: Any = _matrix_file(Path(value)) if isinstance(value, str) else value
    try:
        rows = list(rows)
        if rows and all(isinstance(row, Mapping) for row in rows):
            kinds = list(dict.fromkeys(kind for row in rows for kind in row))
            rows = [[row.get(kind, 0.0) for kind in kinds] for row in rows]
        found = tuple(tuple(float(each) for each in row) for row in rows)
    except (TypeError, ValueError):
        raise InvalidValueError(
            "matrix", value, "must list a row of probabilities for each input"
        ) from None
    if len({len(row) for row in found}) != 1:
        raise InvalidValueError("matrix", value, "must have rows of one length, two or more")
    from fl_shuffle.accounting.distributions.finite import MatrixRandomizer

    # One place decides what a randomizer is.
    MatrixRandomizer(found)  # raises for what is no distribution
    return found


def _matrix_file(path: Path) -> Any:
    if path.suffix.lower() == ".csv":
        return read_rows(path, "matrix file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_MATRIX + 1)
        if len(content) > LARGEST_MATRIX:
            raise ConfigError(f"matrix file {path} is larger than {LARGEST_MATRIX:,} bytes")
        return json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"matrix file {path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"matrix file {path} cannot be read: {error}") from None


@dataclass(frozen=True, kw_only=True)
class BoundQuery:
    """One question about shuffled reports: which epsilon at `delta`, or which delta at `epsilon`.

    Exactly one of `epsilon` and `delta` is given. Parameters are those of `fl_shuffle.bound`, where
    type, unit, range, and default stand; the text below each field is its help on the command line.

    Raises
    ------
    InvalidValueError
        For a field outside its range, and for missing or clashing fields.

    Examples
    --------
    >>> from fl_shuffle.accounting import BoundQuery, bound
    >>> question = BoundQuery(epsilon0=1.0, clients=10_000, delta=1e-6)
    >>> bound(question).method
    'profile'
    """

    randomizer: str | None = setting(None, choices=RANDOMIZERS, read=_randomizer, metavar="NAME")
    """local randomizer, joint:PART,PART,... or parallel:WEIGHT*PART,...; not set: any randomizer
    with that local budget"""
    k: int | None = setting(None, low=2, high=MAX_CLIENTS, metavar="K")
    """number of categories (krr, rappor, oue)"""
    epsilon0: float | None = setting(None, low=0.0, high=MAX_EPSILON0, metavar="X")
    """local epsilon (nats) of one report"""
    delta0: float = setting(0.0, low=0.0, below=1.0, metavar="Y")
    """local delta of one report"""
    sigma: float | None = setting(None, above=0.0, metavar="S")
    """noise of a vector report, as a multiple of the clipping norm; replaces epsilon0 and delta0"""
    profile: Profile = setting((), read=_profile, metavar="EPSILON:DELTA,...|gdp:MU")
    """local guarantees of one report, all of which hold (method profile)"""
    matrix: Matrix = setting((), read=_matrix, metavar="FILE.json|FILE.csv")
    """user-defined randomizer: a row of report probabilities per input, or a JSON object that maps
    reports to probabilities"""
    clients: int | None = setting(None, low=1, high=MAX_CLIENTS, metavar="N")
    """number of shuffled reports"""
    delta: float | None = setting(None, low=MIN_DELTA, below=1.0, metavar="D")
    """delta at which epsilon is computed"""
    epsilon: float | None = setting(None, low=0.0, high=MAX_EPSILON, metavar="E")
    """epsilon (nats) at which delta is computed"""
    rounds: int = setting(1, low=1, high=MAX_ROUNDS, metavar="T")
    """number of rounds"""
    unit: str | None = setting(None, choices=UNITS, metavar="UNIT")
    """unit of privacy: what neighbors replace; required if a report averages several records"""
    records: int = setting(1, low=1, high=MAX_CLIENTS, metavar="B")
    """number of records that one report averages"""
    calibration: str = setting("analytic", choices=CALIBRATIONS, metavar="NAME")
    """calibration of Gaussian noise"""
    participation: float = setting(1.0, low=MIN_PARTICIPATION, high=1.0, metavar="Q")
    """probability with which each client takes part, in secret (see sampling)"""
    sampling: str = setting("each-round", choices=SAMPLINGS, metavar="WHEN")
    """when the clients that take part are drawn: in each round, or once for all rounds"""
    release: str = setting("reports", choices=RELEASES, metavar="WHAT")
    """what the attacker sees: shuffled reports, or only their sum"""
    assumed_honest: int | float | None = setting(None, metavar="K|SHARE")
    """with --release sum: number or share of reports whose noise counts; not set: all"""
    budgets: Budgets = setting((), read=_budgets, metavar="FILE.csv")
    """file with personal budgets of one report (client_id,epsilon,delta), or, with CONFIG, with
    totals of the run (client_id,total_epsilon)"""
    order: float | None = setting(None, above=1.0, high=MAX_ORDER, metavar="X")
    """Renyi order of the methods that use one; not set: the best order"""
    method: str | None = setting(None, metavar="NAME")
    """method of the bound (--all lists them); not set: the smallest proven bound"""

    def __post_init__(self) -> None:
        for name, each in settings_schema.settings_of(type(self)).items():
            if name != "method" and getattr(self, name) != each.default:
                self._set(name, each.check(name, getattr(self, name)))
        if self.method is not None:
            if not isinstance(self.method, str):
                raise InvalidValueError("method", self.method, "must be a name")
            self._set("method", method_named(self.method))
        if self.unit is None:
            if self.records > 1:
                raise InvalidValueError(
                    "unit",
                    None,
                    f"is required if a report averages {self.records} records: client (all "
                    "of them are replaced) or record (one of them)",
                )
            self._set("unit", "record")
        if self.matrix:
            self._read_matrix()
        elif self.randomizer is not None and self.randomizer.startswith(COMPOSED):
            self._read_composition(self.randomizer)
        if self.sampling == "once" and self.participation == 1.0:
            raise InvalidValueError(
                "sampling", "once", "has no effect with participation = 1", "leave it out"
            )
        if self.assumed_honest is not None and self.release != "sum":
            raise InvalidValueError("assumed_honest", self.assumed_honest, "needs release = 'sum'")
        if (self.epsilon is None) == (self.delta is None):
            raise InvalidValueError(
                "epsilon and delta", (self.epsilon, self.delta), "give exactly one of the two"
            )
        if self.profile:
            # Methods that know one pair take the one with the smallest delta.
            smallest = min(self.profile, key=lambda pair: (pair[1], pair[0]))
            if self.epsilon0 not in (None, smallest[0]) or self.budgets:
                raise InvalidValueError(
                    "profile", self.profile, "must not be given beside epsilon0 or budgets"
                )
            # The pair of the smallest delta is the one that methods of a single pair can use; the
            # bound of the whole profile is `profile`.
            self._set("epsilon0", smallest[0])
            self._set("delta0", smallest[1])
        self._check_clients()
        require_honest(self.assumed_honest, self.clients or 1)
        if self.randomizer == "krr" and self.k is None:
            raise InvalidValueError("k", None, "is required by krr (the number of categories)")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _read_matrix(self) -> None:
        """Set the local budget to the matrix's own."""
        local = self.own_randomizer.local_epsilon
        if self.randomizer is not None or self.profile:
            raise InvalidValueError(
                "matrix", "given", "must not be given beside randomizer or profile"
            )
        if self.epsilon0 not in (None, local) or self.sigma is not None or self.budgets:
            raise InvalidValueError(
                "matrix",
                "given",
                "has its local budget already: leave epsilon0, sigma, and budgets out",
            )
        if not local <= MAX_EPSILON0:
            raise InvalidValueError(
                "matrix",
                local,
                f"must have a local epsilon of at most {MAX_EPSILON0:g}: every report must be "
                "possible for every input",
            )
        self._set("epsilon0", local)

    def _read_composition(self, text: str) -> None:
        """Set the local budget to the composition's; its parts carry all of their parameters."""
        from fl_shuffle.accounting.distributions.composed import read_composition

        for name in ("sigma", "profile", "budgets", "delta0"):
            if getattr(self, name):
                raise InvalidValueError(
                    name, getattr(self, name), "must not be given beside a joint or parallel "
                    "randomizer, whose parts have pure local budgets"
                )  # fmt: skip
        found = read_composition(text, self.epsilon0, self.k)
        local = found.local_epsilon
        # A text with all parameters was written by a query before (`replace` reads it again):
        # then epsilon0 is what its parts have.
        if text == found.text and self.epsilon0 not in (None, local):
            raise InvalidValueError(
                "epsilon0",
                self.epsilon0,
                f"follows from the parts, {local:g} in total: leave it out",
            )
        require_real("epsilon0 of all parts", local, minimum=0.0, maximum=MAX_EPSILON0)
        self._set("randomizer", found.text)
        self._set("epsilon0", local)

    def _check_clients(self) -> None:
        if self.budgets:
            merged = check_budgets(self.classes)
            # A single class is kept as epsilon0 too, so a copy of such a query carries both.
            if self.epsilon0 not in (None, merged[0].epsilon0 if len(merged) == 1 else None):
                raise InvalidValueError(
                    "epsilon0", self.epsilon0, "must not be given beside personal budgets"
                )
            self._set("budgets", merged)
            count = client_count(merged)
            if self.clients is None:
                self._set("clients", count)
            if self.clients != count:
                raise InvalidValueError(
                    "clients", self.clients, f"must be {count}, the number of personal budgets"
                )
            if len(merged) == 1:
                # One budget for all: methods for a common budget apply.
                self._set("epsilon0", merged[0].epsilon0)
                self._set("delta0", merged[0].delta0)
        if self.epsilon0 is None and self.sigma is None and not self.budgets:
            raise InvalidValueError(
                "epsilon0", None, "is required: give epsilon0, sigma, or personal budgets"
            )
        if self.clients is None:
            raise InvalidValueError("clients", None, "is required")

    # Fields that take several forms hold one; here they are by what they hold.
    @property
    def classes(self) -> tuple[LocalBudget, ...]:
        """Personal budgets, equal ones together; empty where all clients share one."""
        return cast(tuple[LocalBudget, ...], self.budgets)

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """(epsilon, delta) that all hold for one report."""
        return cast(tuple[tuple[float, float], ...], self.profile)

    @property
    def own_randomizer(self) -> MatrixRandomizer:
        """The randomizer that `matrix` is."""
        from fl_shuffle.accounting.distributions.finite import MatrixRandomizer

        return MatrixRandomizer(cast(tuple[tuple[float, ...], ...], self.matrix))

    @property
    def replaced(self) -> str:
        """The unit that neighbors change: a client, or a record of one."""
        return str(self.unit)

    @property
    def drawn_once(self) -> bool:
        """Whether several rounds share one secret sample of the clients."""
        return self.sampling == "once" and self.rounds > 1

    @property
    def personal(self) -> bool:
        """Whether clients have different budgets."""
        return len(self.budgets) > 1

    @property
    def pure(self) -> bool:
        """Whether a report has a finite epsilon at delta 0."""
        # Of several statements one with delta 0 is enough; of several clients all need one.
        smallest = min((pair[1] for pair in self.pairs), default=self.delta0)
        if self.budgets:
            smallest = max(budget.delta0 for budget in self.classes)
        return self.randomizer != "gaussian" and smallest == 0.0

    @property
    def local(self) -> tuple[float, float, int]:
        """(epsilon0, delta0, clients) of a query without personal budgets."""
        if self.sigma is not None:
            raise NotApplicableError(
                f"{self.method} needs a local budget: give epsilon0 in place of sigma, or use "
                "vector or sum"
            )
        if self.epsilon0 is None or self.clients is None:
            raise NotApplicableError(
                f"{self.method} is stated for one local budget shared by all clients; with "
                "personal budgets use gspa, or blanket for krr, blh, hadamard, laplace"
            )
        return self.epsilon0, self.delta0, self.clients

    @property
    def local_budgets(self) -> tuple[LocalBudget, ...]:
        """The budgets as classes, whether personal or shared."""
        if self.budgets:
            return self.classes
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
        """Return a query from JSON-like names; what is None counts as not given.

        Parameters
        ----------
        values : mapping of str to object
            Values of the fields, by name.

        Returns
        -------
        BoundQuery
            The question.

        Raises
        ------
        InvalidValueError
            For an unknown name, and as the class.
        """
        if not isinstance(values, Mapping):
            raise InvalidValueError("query", values, "must be an object of names and values")
        given = {key: value for key, value in values.items() if value is not None}
        for key in given:
            require_choice("query key", key, settings_schema.settings_of(cls))
        return settings_schema.read(cls, given, "", "query key")


def make_randomizer(query: BoundQuery, epsilon0: float) -> AccountedRandomizer:
    """Return the accountant's view of the named randomizer at local budget `epsilon0`.

    Raises `NotApplicableError` if no randomizer is named or it has no pure distribution (Gaussian
    noise).
    """
    from fl_shuffle.accounting.distributions import finite, frequency_oracles
    from fl_shuffle.accounting.distributions.continuous import LaplaceRandomizer

    if query.matrix:
        return query.own_randomizer
    if query.randomizer is None:
        raise NotApplicableError(
            f"{query.method} needs a randomizer ({', '.join(RANDOMIZERS)}); for any randomizer of "
            "a given local budget use clone"
        )
    if query.randomizer == "gaussian":
        raise NotApplicableError(
            f"{query.method} needs a pure randomizer; for Gaussian noise use vector, or profile "
            "and gspa with delta0"
        )
    # The text carries each part's epsilon0, so the argument does not matter here.
    if query.randomizer.startswith(COMPOSED):
        from fl_shuffle.accounting.distributions.composed import read_composition

        return read_composition(query.randomizer, None, None)
    makers: dict[str, Callable[[], AccountedRandomizer]] = {
        "krr": lambda: finite.KRandomizedResponse(epsilon0, query.k or 2),
        "laplace": lambda: LaplaceRandomizer(epsilon0),
        "rappor": lambda: frequency_oracles.RapporDistribution(epsilon0, query.k),
        "oue": lambda: frequency_oracles.OptimizedUnaryEncodingDistribution(epsilon0, query.k),
        "blh": lambda: frequency_oracles.BinaryLocalHashingDistribution(epsilon0),
        "hadamard": lambda: frequency_oracles.HadamardResponseDistribution(epsilon0),
    }
    return makers[query.randomizer]()
