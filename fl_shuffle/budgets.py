"""Each client's budget, of one report or of the whole run: named distributions, CSV files, a user's
provider.

Budgets are public: they fix each client's randomizer, never its data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.csv_files import (
    looks_like_number,
    read_table,
    real_number,
    whole_number,
    whole_text,
)
from fl_shuffle._internal.plugins import load_function
from fl_shuffle.configuration.sections import BudgetsSection, Config
from fl_shuffle.errors import ConfigError, DataError, InvalidValueError

LIFETIME = "lifetime_epsilon"
OF_REPORTS = ("client_id", "epsilon", "delta")
TOTALS = ("client_id", "total_epsilon")
HEADERS = tuple(
    (*columns, *last)
    for columns in (OF_REPORTS, TOTALS, (*TOTALS, "total_delta"))
    for last in ((), (LIFETIME,))
)
"""Columns of a budgets file: of reports, or of totals."""

NEEDS_DELTA = ("gaussian", "discrete-gaussian")
"""Randomizers without an epsilon at delta = 0."""

BY_PLACE = (
    "the budgets file names clients, and they are numbered here: its lines are taken in their "
    "order, the first for client 0"
)

# Chen, Cao, Ge (AAAI 2024), Table 2 and the "Unif 3" of their text.
UNIFORM_RANGES = {"unif1": (0.01, 1.0), "unif2": (0.01, 2.0), "unif3": (0.5, 1.0)}
MIXED = (0.5, 0.01)


@dataclass(frozen=True)
class Budgets:
    """Budgets of all clients: float64 arrays of shape [clients].

    They are `of` one "report" each, or of the whole "run": then `epsilon` is a client's total, and
    `delta` is 0 where nothing but the run's target delta was named for it. `lifetime`, if given,
    bounds each client's own proven epsilon over the whole run. `by_place`: a file named the
    clients, and nothing else does (`BY_PLACE` says it in words). `before`: epsilons and deltas
    before they were rounded down to levels, if they were. `lines` [clients]: line and id in the
    `file` that they were read from, if they were.
    """

    epsilon: NDArray[np.float64]
    delta: NDArray[np.float64]
    lifetime: NDArray[np.float64] | None = None
    by_place: bool = False
    before: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    file: str = ""
    lines: Sequence[tuple[int, str]] | None = None
    of: str = "report"

    def __post_init__(self) -> None:
        for name, values in (("epsilon", self.epsilon), ("delta", self.delta)):
            if values.ndim != 1 or values.shape != self.epsilon.shape or values.size == 0:
                raise ConfigError(f"budgets: {name} must hold one number per client")
        checks = (
            ("epsilon", np.isfinite(self.epsilon), "must be a finite number"),
            ("delta", np.isfinite(self.delta), "must be a finite number"),
            ("epsilon", self.epsilon > 0, "must be > 0"),
            ("delta", (self.delta >= 0) & (self.delta < 1), "must be in [0, 1)"),
        )
        for name, good, allowed in checks:
            for client in np.flatnonzero(~good)[:1]:
                wrong = float(getattr(self, name)[client])
                raise InvalidValueError(f"{self.where(int(client))}: {name}", wrong, allowed)

    def __len__(self) -> int:
        return int(self.epsilon.size)

    def where(self, client: int) -> str:
        """Return where a client's budget stands, in words."""
        if self.lines is None:
            return f"budget of client {client}"
        line, name = self.lines[client]
        return f"budgets file {self.file} line {line} (client {_short(name)})"

    def require_delta(self, randomizer: str) -> None:
        """Raise `InvalidValueError` for a delta of 0 where noise has the Gaussian distribution."""
        if randomizer not in NEEDS_DELTA or self.of == "run":
            return
        for client in np.flatnonzero(self.delta == 0)[:1]:
            raise InvalidValueError(
                f"{self.where(int(client))}: delta", 0.0,
                f"{randomizer} noise needs a delta in (0, 1), for example 1e-6",
                "or set privacy.randomizer = 'laplace', which takes 0",
            )  # fmt: skip

    def require_target_delta(self, delta: float) -> None:
        """Raise `InvalidValueError` for a total of another delta than the run's target `delta`."""
        if self.of == "run":
            for client in np.flatnonzero((self.delta != 0.0) & (self.delta != delta))[:1]:
                raise InvalidValueError(
                    f"{self.where(int(client))}: total_delta", float(self.delta[client]),
                    f"must be privacy.target_delta = {delta:g}, the delta of every epsilon of a "
                    "run", "leave the column out, or change privacy.target_delta",
                )  # fmt: skip

    @property
    def limit(self) -> str:
        """What stops a client, in words: its lifetime budget, or its total of the run."""
        if self.of == "report":
            return "lifetime budget"
        return "total of the run" + " or lifetime budget" * (self.lifetime is not None)

    @property
    def limits(self) -> NDArray[np.float64] | None:
        """The epsilon that each client's own may not exceed over the run; None where nobody has
        one. A total is a limit too, as it was before rounding, and the smaller one binds."""
        if self.of == "report":
            return self.lifetime
        totals = self.epsilon if self.before is None else self.before[0]
        return totals if self.lifetime is None else np.minimum(totals, self.lifetime)

    def words(self) -> str:
        """Return how many distinct budgets there are, and what rounding them to levels has
        changed."""
        now = distinct_budgets(self.epsilon, self.delta)
        low, high = float(self.epsilon.min()), float(self.epsilon.max())
        ends = f"epsilon {low:.4g}" + f" to {high:.4g}" * (low != high)
        kind = "total" if self.of == "run" else "budget"
        what = "the run" if self.of == "run" else "a report"
        said = f"{now:,} distinct {kind}{'s' * (now > 1)} of {what}, {ends}"
        if self.before is None:
            return said
        lost = 1.0 - self.epsilon / self.before[0]
        if not lost.any() and np.array_equal(self.delta, self.before[1]):
            return f"{said} (budgets.levels changes none)"
        asked = distinct_budgets(*self.before)
        return (
            f"{said}, rounded down from {asked:,} (budgets.levels): a client gives up "
            f"{lost.mean():.1%} of its epsilon on average, {lost.max():.1%} at most"
        )


def distinct_budgets(epsilon: NDArray[np.float64], delta: NDArray[np.float64]) -> int:
    """Return how many different (epsilon, delta) there are."""
    return int(np.unique(np.stack([epsilon, delta], axis=1), axis=0).shape[0])


def require_file(section: BudgetsSection) -> None:
    """Raise `ConfigError` if the section names a file that is not there."""
    if section.distribution == "file" and not Path(section.file).exists():
        raise ConfigError(
            f"budgets file {section.file} does not exist; `flwr run` packs no .csv: name it by its "
            "absolute path there, or write budgets.epsilons with budgets.distribution = 'listed'"
        )


def require_readable(config: Config) -> None:
    """Raise what is wrong with a budgets file, as far as it shows without the data.

    Reading records and making features may take minutes: nobody should wait for them to learn of
    a mistake in line 2. Which names the clients have is only known then.
    """
    section, data = config.budgets, config.data
    require_file(section)
    if section.distribution != "file":
        return
    if data.partition != "natural":
        budgets = read_budgets(section.file, data.clients)
    else:
        header, ids, values = _lines_of(Path(section.file))
        if len(ids) != data.clients:
            raise ConfigError(
                f"budgets file {section.file} has {len(ids)} lines, and there are {data.clients} "
                "clients; keep one line for each, or change data.clients"
            )
        lines = list(enumerate(ids, start=2))
        budgets = _of_table(header, np.array(values), Path(section.file), lines)
    _require_kind(section, budgets)
    budgets.require_delta(config.privacy.randomizer)
    budgets.require_target_delta(config.privacy.target_delta)


def are_totals(section: BudgetsSection) -> bool:
    """Return whether the section's budgets are totals of the run: it says so, or its file's columns
    do."""
    if section.of == "run" or section.distribution != "file":
        return section.of == "run"
    require_file(section)
    header, _ = read_table(Path(section.file), "budgets file", *HEADERS)
    return "total_epsilon" in header


def _require_kind(section: BudgetsSection, budgets: Budgets) -> None:
    """Refuse a file of reports' budgets where totals are expected, and a setting that acts on
    totals alone where there are none."""
    if section.of == "run" and budgets.of == "report":
        raise ConfigError(
            f"budgets file {section.file} line 1: budgets.of = 'run' needs the column "
            "total_epsilon in place of epsilon and delta, which are those of one report; rename "
            "it, or set budgets.of = 'report'"
        )
    if section.expected_share is not None and budgets.of == "report":
        raise InvalidValueError(
            "budgets.expected_share", section.expected_share,
            "applies to totals of the run, but the budgets are those of one report",
            "leave it out, or set budgets.of = 'run'",
        )  # fmt: skip
    if section.against != "release" and budgets.of == "report":
        raise InvalidValueError(
            "budgets.against", section.against,
            "applies to totals of the run, but the budgets are those of one report",
            "leave it out, or set budgets.of = 'run'",
        )  # fmt: skip


def _of_table(
    header: tuple[str, ...],
    table: NDArray[np.float64],
    file: Path,
    lines: Sequence[tuple[int, str]],
    *,
    by_place: bool = False,
) -> Budgets:
    """Return budgets of a file's numbers [clients, columns - 1] under `header`, in the clients'
    order."""
    columns = dict(zip(header[1:], table.T, strict=True))
    lifetime, source = columns.get(LIFETIME), str(file)
    if "epsilon" in columns:
        epsilon, delta, of = columns["epsilon"], columns["delta"], "report"
    else:
        epsilon, of = columns["total_epsilon"], "run"
        delta = columns.get("total_delta", np.zeros(len(table)))
    return Budgets(epsilon, delta, lifetime, by_place, file=source, lines=lines, of=of)


def make_budgets(
    section: BudgetsSection, clients: int, names: Sequence[str] | None = None
) -> Budgets:
    """Return budgets for `clients` clients as the section says; the same section gives the same
    budgets.

    `names` are the clients' own, where they have any, for a file that calls them so. Raises
    `ConfigError` or `InvalidValueError` for a CSV or provider that does not fit, and `DataError`
    for a CSV that does not fit the clients' names.
    """
    generator = np.random.Generator(np.random.Philox(key=[section.seed, 0x42554447]))
    # A total has the run's target delta, which this section does not know.
    named = 0.0 if section.of == "run" else section.delta
    delta = np.full(clients, named)
    name = section.distribution
    require_file(section)
    if name == "file":
        try:
            budgets = read_budgets(section.file, clients, names)
        except ConfigError as error:
            if names is None:
                raise
            # Which of them it is depends on the names of clients, which are data.
            raise DataError(str(error)) from None
    elif name == "listed":
        budgets = Budgets(np.array(section.epsilons), delta)
    elif name == "constant":
        budgets = Budgets(np.full(clients, section.epsilon), delta)
    elif name in UNIFORM_RANGES or name == "uniform":
        low, high = UNIFORM_RANGES.get(name, (section.low, section.high))
        budgets = Budgets(generator.uniform(low, high, clients), delta)
    elif name == "mixed":
        epsilon = np.where(np.arange(clients) < (clients + 1) // 2, *MIXED)
        budgets = Budgets(generator.permutation(epsilon), delta)
    elif name == "groups":
        budgets = Budgets(generator.permutation(_group_epsilons(section, clients)), delta)
    else:
        budgets = _provided(name, clients, generator, named)
    if name != "file":
        budgets = replace(budgets, of=section.of)
    _require_kind(section, budgets)
    if section.levels:
        return round_down(budgets, section.levels)
    return budgets


def _group_epsilons(section: BudgetsSection, clients: int) -> NDArray[np.float64]:
    conservative = round(section.conservative_fraction * clients)
    moderate = round(section.moderate_fraction * clients)
    moderate = min(moderate, clients - conservative)
    liberal = clients - conservative - moderate
    return np.repeat(
        [section.conservative, section.moderate, section.liberal],
        [conservative, moderate, liberal],
    )


def _provided(
    path: str, clients: int, generator: np.random.Generator, default_delta: float
) -> Budgets:
    provider = load_function(path, "clients", "generator", field="budgets.distribution")
    answer = provider(clients, generator)
    pair = answer if isinstance(answer, tuple) else (answer, np.full(clients, default_delta))
    try:
        epsilon, delta = (np.asarray(part, dtype=np.float64) for part in pair)
    except (TypeError, ValueError):
        raise ConfigError(
            f"budgets.distribution = {path!r} must return epsilons or (epsilons, deltas) as numbers"
        ) from None
    if epsilon.shape != (clients,) or delta.shape != (clients,):
        raise ConfigError(
            f"budgets.distribution = {path!r} returned shapes {epsilon.shape} and {delta.shape}; "
            f"each must be ({clients},)"
        )
    return Budgets(epsilon, delta)


def round_down(budgets: Budgets, levels: int) -> Budgets:
    """Return budgets rounded *down* to at most `levels` values, so that more clients share a
    randomizer.

    Clients are cut into groups of nearly equal size by epsilon; each group takes its smallest
    epsilon (and the smallest delta of all), so no budget grows. Clients of equal epsilon stay in
    one group, and where `levels` are enough for every distinct epsilon, all are kept.
    """
    values, counts = np.unique(budgets.epsilon, return_counts=True)
    ends, floors, first = np.cumsum(counts), [], 0
    for left in range(min(levels, len(values)), 0, -1):
        floors.append(values[first])
        taken = ends[first - 1] if first else 0
        # An equal share of the clients that are left, cut before the epsilon that exceeds it. Each
        # group has one distinct epsilon at least, and leaves one for each group after it.
        share = -(-(len(budgets) - taken) // left)
        cut = int(np.searchsorted(ends, taken + share, side="right"))
        first = min(max(cut, first + 1), len(values) - left + 1)
    epsilon = np.array(floors)[np.searchsorted(floors, budgets.epsilon, side="right") - 1]
    delta = np.full_like(budgets.delta, budgets.delta.min())
    return replace(budgets, epsilon=epsilon, delta=delta, before=(budgets.epsilon, budgets.delta))


def read_budgets(
    path: str | Path, clients: int | None = None, names: Sequence[str] | None = None
) -> Budgets:
    """Read `client_id,epsilon,delta` or `client_id,total_epsilon` (`HEADERS`), in any order.

    The file has a line for each of `clients` clients (not given: of as many as it has).
    Ids are the clients' `names` where all of them are; else numbers 0 .. clients-1, unless a
    client's name looks like a number; else, where clients have no names, texts, taken in the order
    of the file. Raises `ConfigError` naming the
    file and line for a missing file, wrong columns, an empty line, a number that does not parse,
    ids of two kinds, and missing, duplicate or extra clients.
    """
    source = Path(path)
    header, ids, values = _lines_of(source)
    count = len(ids) if clients is None else clients
    places, by_place = _places(source, ids, count, names)
    table, lines = np.full((count, len(header) - 1), np.nan), [(0, "")] * count
    for number, (place, row) in enumerate(zip(places, values, strict=True), start=2):
        if not np.isnan(table[place, 0]):
            raise _twice(f"budgets file {source} line {number}", str(place))
        table[place], lines[place] = row, (number, ids[number - 2])
    absent = np.flatnonzero(np.isnan(table[:, 0]))
    if absent.size:
        first = str(absent[0]) if names is None else f"{absent[0]} ({names[absent[0]]})"
        raise ConfigError(
            f"budgets file {source}: {absent.size} of {count} clients are missing, first client "
            f"{first}; add a line for each"
        )
    return _of_table(header, table, source, lines, by_place=by_place)


def _lines_of(source: Path) -> tuple[tuple[str, ...], list[str], list[list[float]]]:
    """Return the columns of a budgets file, and each line's id and numbers; line 2 is the first."""
    header, rows = read_table(source, "budgets file", *HEADERS)
    ids: dict[str, int] = {}
    values = []
    for number, (where, row) in enumerate(rows):
        values.append(_budget_row(where, header, row))
        if ids.setdefault(row[0].strip(), number) != number:
            raise _twice(where, row[0].strip())
    return header, list(ids), values


def names_of_lines(path: str | Path) -> list[str]:
    """Return the names in a budgets file that is taken line by line; empty where numbers stand
    there."""
    _, rows = read_table(Path(path), "budgets file", *HEADERS)
    names = [row[0].strip() for _, row in rows]
    return [] if any(map(looks_like_number, names)) else names


def _places(
    source: Path, ids: list[str], clients: int, names: Sequence[str] | None
) -> tuple[list[int], bool]:
    """Return which client each line is for, and whether that is so by its place in the file alone.

    A line belongs to the client of its name. A whole number is a position instead only where no
    client's name looks like a number: between "client 3" and "the client called 3" nobody can
    choose, and budgets would go to the wrong people.
    """
    known = {name: place for place, name in enumerate(names or ())}
    found = [known.get(name, known.get(whole_text(name) or name)) for name in ids]
    if names is not None and None not in found:
        return [place for place in found if place is not None], False
    positions = [_position(name) for name in ids]
    if names is None and not any(looks_like_number(name) for name in ids):
        if len(ids) == clients:
            return list(range(clients)), True
        raise ConfigError(
            f"budgets file {source} names {len(ids)} clients, but data.clients = {clients}; keep "
            "one line for each, or change data.clients"
        )
    numbered = next((name for name in names or () if looks_like_number(name)), None)
    by_name = numbered is not None or any(
        place is not None and number is None for place, number in zip(found, positions, strict=True)
    )
    for line, (name, place, number) in enumerate(zip(ids, found, positions, strict=True), start=2):
        where = f"budgets file {source} line {line}"
        if by_name and place is not None:
            continue
        if by_name or number is None:
            raise ConfigError(
                f"{where}: client_id = {_short(name)} {_allowed(clients, names, numbered)}"
            )
        if number >= clients:
            raise ConfigError(
                f"{where}: client {number} is not one of this run's 0 to {clients - 1}; "
                "remove the line or change data.clients"
            )
    return [number for number in positions if number is not None], False


def _position(name: str) -> int | None:
    """Return the position that a text stands for, or None; "3.0" is 3."""
    return whole_number(whole_text(name) or name)


def _allowed(clients: int, names: Sequence[str] | None, numbered: str | None) -> str:
    if names is None:
        return (
            f"must be a whole number, 0 to {clients - 1}, as for the others; or name all clients: "
            "their lines are then taken as they stand"
        )
    if numbered is not None:
        return (
            f"is no client of these data: their names look like numbers, as {_short(numbered)}, so "
            "no number is taken for a position; write every client's own name"
        )
    return (
        f"is no client of these data, whose first is {_short(names[0])}; correct it, or give all "
        f"clients whole numbers, 0 to {clients - 1}"
    )


def _twice(where: str, client: str) -> ConfigError:
    return ConfigError(f"{where}: client {_short(client)} appears twice; keep one line per client")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _budget_row(where: str, header: tuple[str, ...], row: list[str]) -> list[float]:
    numbers = [real_number(cell) for cell in row[1:]]
    values = [number for number in numbers if number is not None]
    if not row[0].strip() or len(values) != len(numbers):
        raise ConfigError(
            f"{where}: {','.join(row)!r} must be a client's number or name, and "
            f"{len(numbers)} numbers"
        )
    whom = f"for client {_short(row[0].strip())}"
    for name, cell, value in zip(header[1:], row[1:], values, strict=True):
        if name == LIFETIME:
            good, allowed = value > 0, "must be > 0 (it may be inf)"
        elif name.endswith("epsilon"):
            good = bool(np.isfinite(value)) and value > 0
            allowed = "must be finite and > 0, for example 1.0"
        else:
            # What is 0 in `Budgets` of totals is what no file has named.
            good, allowed = 0 <= value < 1, "must be in [0, 1), for example 1e-6"
            if name == "total_delta":
                good, allowed = 0 < value < 1, "must be in (0, 1), for example 1e-6"
        if not good:
            raise ConfigError(f"{where}: {name} = {cell} {whom} {allowed}")
    return values
